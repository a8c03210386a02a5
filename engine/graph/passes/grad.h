// grad: reverse-mode differentiation as a graph pass. Out comes a graph of ordinary nodes: the one that went
// in, and behind it the nodes that compute gradients. It is printed, fused, planned, run and differentiated
// again as any other. Nothing of it is known to who runs it.
//
// How. From the outputs back to the inputs each node turns the cotangents of its results into those of its
// operands. A primitive says how in `OpDef::vjp` (op.h), written in ops; of a composite, which has none, the
// definition is emitted behind the forward graph and differentiated. So the forward graph keeps its
// composites and their kernels, and what the definition needs in between is computed anew from the
// composite's operands. Where a composite has no kernel either, name it in `GradOptions::keep`, and it is
// computed once.
//
// Conventions. The gradient of an output y is that of sum(seed * y). At kinks: abs has slope 0 at 0, of equal
// operands of max and min the second gets all (so relu has slope 0 at 0), equal elements of reduce_max share
// equally, clip has slope 1 on its bounds. Choices (comparisons, indices, floor,
// routes) are piecewise constant: nothing flows through them. Who is read twice gets the sum, in the order of
// the nodes that read it, last reader first; the order never depends on threads.
//
// Types. Gradients are f32 and shaped like what they belong to, whatever that is stored as (a bf16 or int4
// weight has an f32 gradient). evaluate_reference() computes the same graph in double. Sizes may be symbols
// where every op on the way has a shape rule (all of a language model's); else they must be numbers, see
// typed.h.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace oar::passes {

struct GradOptions {
  // One per output: the value that its elements are weighted by, of the output's shape (say a graph input
  // made for it). Empty, or kNoValue: all ones.
  std::vector<ValueId> seeds;
  // Gradients become graph outputs under this and the input's name. Of a second derivative another: two
  // outputs of one name are refused.
  std::string prefix = "grad/";
  // Composites for which it says no are replaced by their definitions before anything else; null: all stay.
  std::function<bool(const Node&)> keep;
};

// The graph, with values of the same ids and outputs as before, and one output more for each of `inputs`, in
// their order. `outputs`: floats that are summed into what is differentiated, most often one scalar loss;
// they need not be graph outputs. `inputs`: graph inputs, states, constants (weights of a checkpoint) or
// results of nodes, whose producers are then not passed. An input that no output depends on, or only through
// piecewise constant ops, has a gradient of zeros.
//
// INVALID_ARGUMENT names what is wrong with outputs, inputs or seeds (integers have no gradient).
// UNIMPLEMENTED names op, node and input where the way leads through an op that has no gradient.
Result<Graph> grad(const Graph& graph, std::span<const ValueId> outputs, std::span<const ValueId> inputs,
                   const GradOptions& options = {});

// The value that a gradient output, or any other, is: by graph output name, then by the name of an input,
// state or constant. NOT_FOUND names it.
Result<ValueId> find_value(const Graph& graph, std::string_view name);

}  // namespace oar::passes
