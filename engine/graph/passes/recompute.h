// Recomputation as a graph pass (https://arxiv.org/abs/1604.06174): what the backward part of a training
// graph reads of a layer's inside is computed once more there, from the layer's inputs, instead of being kept
// since the forward part. The same ops on the same values: losses and gradients keep their bits.
//
// The second computation reads its inputs through a barrier, which waits for the backward part to come there,
// and which no pass merges: cse finds nothing equal, and no order of the nodes brings it forward.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace oar::passes {

enum class Recompute : uint8_t {
  kNone,
  kActivations,  // computed again: what costs nothing beside a product, such as activations, norms and casts
  kLayers,       // kept: what each layer is given. Every layer is computed twice
  kFull,  // kept: the inputs of every k-th layer, k about the root of their number. Computed up to thrice
};
// By the enum's values: none, activations, layers, full.
const std::vector<std::string>& recompute_names();

// Nodes before `forward` are the forward part. A layer's number is the first of the dotted parts of its
// weights' names that is one ("3" of "model.layers.3.mlp.up_proj.weight"); what reads no weight belongs to
// the last layer that it depends on. A graph without such names stays as it is. `barrier (x, after) -> x`:
// the op, impure.
Status recompute(Graph& g, size_t forward, Recompute how, const OpDef& barrier);

}  // namespace oar::passes
