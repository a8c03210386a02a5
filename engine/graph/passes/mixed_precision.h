// Automatic mixed precision as a graph pass (https://arxiv.org/abs/1710.03740): which ops of a training graph
// compute in bf16, with the levels and op lists of Paddle's AMP (python/paddle/amp/amp_lists.py) as data.
//
// What bf16 means here. The operands of such an op are rounded to bf16, its sums are f32, and its result is
// rounded to bf16 once and kept so. Matrices of products are read as bf16 by their kernels. An op without a
// kernel that reads bf16 runs in f32 on copies of its operands that are widened in front of it, each reader
// its own: what lives between two ops takes two bytes a number. Parameters stay f32 (master weights) and are
// rounded in front of each reader; constants are rounded by the pass.
//
// O1: ops of the white list in bf16, of the black list in f32. Others are in bf16 where what they read is.
// O2: all ops of the forward part but those of a shorter black list. Nodes behind it are derived; many are
// pieces of one op's gradient, which a kernel would compute in f32 inside: they go by the rules of O1.
// A user's own lists go before both.
//
// Never rounded: integers, single numbers, vectors among parameters and constants (norms, biases,
// frequencies), results of effects, and graph outputs, which gradients are.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace oar::passes {

enum class Amp : uint8_t { kF32, kO1, kO2 };
// By the enum's values: f32, O1, O2.
const std::vector<std::string>& amp_names();
// In their order, by names of ops in engine/ops.
std::span<const std::string_view> amp_white(), amp_black_o1(), amp_black_o2();

struct AmpOptions {
  Amp level = Amp::kF32;
  std::vector<std::string> white, black;  // the user's
};
// INVALID_ARGUMENT names an op that does not exist or is in both of the user's lists, or lists without a
// level.
Status check_amp(const AmpOptions& options);

// What the pass cannot read from a graph.
struct AmpOps {
  // Names in the lists of ops that have others. What is missing goes by its own.
  std::map<std::string_view, std::string_view> listed_as;
  // Whether the op reads this operand, a matrix, in whatever format it has.
  std::function<bool(const Node&, size_t operand)> reads_stored;
  // Whether results are f32 whatever the operands are: sums, losses.
  std::function<bool(const Node&)> wide_results;
  // Whether the op rounds such an operand as it reads it: of a state, no rounded copy is made. Null: none.
  std::function<bool(const Node&, size_t operand)> rounds_itself;
  // Whether the operand is a vector for each of several layers, a matrix by its shape alone. Null: none is.
  std::function<bool(const Node&, size_t operand)> vectors;
};

// What a graph's precision comes to.
struct AmpReport {
  size_t ops = 0, narrow = 0;          // nodes that compute on floats; of them in bf16
  std::map<std::string, int> widened;  // of them by op: without a kernel for bf16
  uint64_t cast_bytes = 0;             // read and written by casts, where sizes are numbers
};

// The first `forward` nodes are the forward part. Types must be known.
Result<AmpReport> mixed_precision(Graph& g, size_t forward, const AmpOptions& options, const AmpOps& ops);

}  // namespace oar::passes
