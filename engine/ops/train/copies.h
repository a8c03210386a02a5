// Weights that a training graph reads otherwise than its checkpoint keeps them. Only adapters beside such are
// trained, so each is a copy, made once.
#pragma once

#include <map>
#include <string>

#include "engine/graph/graph.h"

namespace oar::train {

// Matrices that a run reads and its checkpoint keeps otherwise, made once for all of its graphs; by name.
struct WeightCopies {
  std::map<std::string, Tensor> experts;  // of stacks: in the stack's format
  std::map<std::string, Tensor> heads;    // of a latent, those of a layer as one (heads, inputs, outputs) f32
  std::map<std::string, Tensor> turned;   // of layers that the checkpoint has as (inputs, outputs)
  static uint64_t bytes(const std::map<std::string, Tensor>& copies);
  uint64_t bytes() const { return bytes(experts) + bytes(heads) + bytes(turned); }
};

// Weights of experts, of a latent's heads and of layers that are expressions become constants: those of
// `copies` where they are there. Attention over a latent takes ops that have ways back. Before
// use_rows_ops().
Status copy_weights(Graph& g, WeightCopies& copies);

}  // namespace oar::train
