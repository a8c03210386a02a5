// Passes: every change to a model is a rewrite of its Graph. Each pass is one file in passes/, listed in
// default_passes() in the order it runs; any can be switched off by name and dumped before and after.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/precision.h"

namespace oar {

class Backend;

// Why two neighbouring nodes stayed apart: the first condition of a fusion that did not hold. `second` reads
// what `first` computes; both are "op 'name'".
struct Refusal {
  std::string first, second, reason;
};

struct Pass {
  const char* name;
  const char* summary;  // one line for `oar inspect`
  // Returns how many rewrites it made.
  std::function<Result<int>(Graph& graph)> run;
  // What the pass left apart in a graph that it has been over, by the conditions it used; null: it has none.
  std::vector<Refusal> (*explain)(const Graph& graph) = nullptr;
};

// fold_constants, cse, fuse_definitions, fuse_residual_norm, fuse_head_norm_rope, fuse_linear,
// fuse_gated_linear, dce.
std::span<const Pass> default_passes();

// Those of ordinary models (importers' graphs), in order: fuse_quantized, fuse_dynamic, fuse_quantized_sums,
// fold_evaluated, sizes_as_attributes, cse, fuse_definitions, fuse_quantized_epilogues, matmul_to_linear,
// fuse_attention, fuse_epilogues, channels_last, winograd, dce.
std::span<const Pass> tensor_passes();
// The same with layers computed in fewer bits: lower_precision behind channels_last, unless it is f32. The
// model is planned for `backend`, which outlives the passes; of a device fuse_dynamic does nothing, and
// fuse_quantized leaves weights with zero points.
std::vector<Pass> tensor_passes(Precision precision, const Backend& backend);

// The same for a language model, with the rotations (passes/rotate.h) before the fusions that would hide what
// they look for: fold_norms, rotate_residual, rotate_values, rotate_queries_keys, rotate_ffn, equalize_heads.
// Those not asked for do nothing; `left_out` (may be null) receives those that find no place. And
// order_columns in front of fuse_linear: it moves rows of weights, so it is for devices, to which weights are
// copied anyway; a processor reads them where their files are mapped.
struct RotationOptions;
struct LeftOut;
std::vector<Pass> language_model_passes(const RotationOptions& rotation,
                                        const std::shared_ptr<std::vector<LeftOut>>& left_out = nullptr);

struct PassReport {
  std::string name;
  int rewrites = 0;
  size_t nodes_before = 0, nodes_after = 0;  // of all graphs
  bool disabled = false;
  std::vector<Refusal> refusals;  // where PassOptions::explain asked for them
};

struct PassOptions {
  std::set<std::string> disabled;
  bool explain = false;
  // Called around each pass that runs, for each graph; it may be printed.
  std::function<void(const Pass&, const Graph& graph, bool after)> observer;
};

// Runs the passes in order, each over the graph and over its branches and loop bodies. An unknown name in
// `disabled` is an error that lists the names.
Result<std::vector<PassReport>> run_passes(Graph& graph, std::span<const Pass> passes,
                                           const PassOptions& options);

// Replaces every composite for which `keep` says no by its definition, recursively. Not one of the default
// passes: it undoes what a model file wrote, for backends without kernels and for tests of the fusion passes.
Result<int> decompose(Graph& graph, const std::function<bool(const Node&)>& keep);

namespace passes {
std::vector<Refusal> explain_quantized(const Graph& graph);
std::vector<Refusal> explain_quantized_symmetric(const Graph& graph);
std::vector<Refusal> explain_dynamic(const Graph& graph);
std::vector<Refusal> explain_quantized_sums(const Graph& graph);
std::vector<Refusal> explain_quantized_epilogues(const Graph& graph);
std::vector<Refusal> explain_definitions(const Graph& graph);
std::vector<Refusal> explain_linear(const Graph& graph);
std::vector<Refusal> explain_attention(const Graph& graph);
std::vector<Refusal> explain_epilogues(const Graph& graph);
std::vector<Refusal> explain_winograd(const Graph& graph);
Result<int> fold_constants(Graph& graph);
Result<int> fold_evaluated(Graph& graph);
Result<int> sizes_as_attributes(Graph& graph);
Result<int> fuse_quantized(Graph& graph);
Result<int> fuse_quantized_symmetric(Graph& graph);  // layers whose weights have no zero points
Result<int> fuse_dynamic(Graph& graph);
Result<int> fuse_quantized_sums(Graph& graph);
Result<int> fuse_quantized_epilogues(Graph& graph);
Result<int> matmul_to_linear(Graph& graph);
Result<int> fuse_attention(Graph& graph);
Result<int> fuse_epilogues(Graph& graph);
Result<int> channels_last(Graph& graph);
Result<int> winograd(Graph& graph);
Result<int> cse(Graph& graph);
Result<int> dce(Graph& graph);
Result<int> fuse_definitions(Graph& graph);
Result<int> fuse_residual_norm(Graph& graph);
Result<int> fuse_head_norm_rope(Graph& graph);
Result<int> order_columns(Graph& graph);
Result<int> fuse_linear(Graph& graph);
Result<int> fuse_gated_linear(Graph& graph);
}  // namespace passes

}  // namespace oar
