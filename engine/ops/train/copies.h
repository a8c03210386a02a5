// Weights that a training graph reads otherwise than its checkpoint keeps them: experts in a stack, turned or
// interleaved matrices, a latent's heads. Beside adapters, which leave them as they are, each is a copy that
// is made once. Where all is trained a step computes them from the tensors that it trains.
#pragma once

#include <map>
#include <string>

#include "engine/graph/graph.h"
#include "engine/graph/op.h"

namespace oar::train {

// Matrices that a run reads and its checkpoint keeps otherwise, made once for all of its graphs; by name.
struct WeightCopies {
  std::map<std::string, Tensor> experts;  // of stacks: in the stack's format
  std::map<std::string, Tensor> heads;    // of a latent, those of a layer as one (heads, inputs, outputs) f32
  std::map<std::string, Tensor> turned;   // of layers that the checkpoint has as (inputs, outputs)
  static uint64_t bytes(const std::map<std::string, Tensor>& copies);
  uint64_t bytes() const { return bytes(experts) + bytes(heads) + bytes(turned); }
  // By compute_weights(): what each step moves, in bytes of f32.
  uint64_t moved = 0;
};

// Weights of experts, of a latent's heads and of layers that are expressions become constants: those of
// `copies` where they are there. Attention over a latent takes ops that have ways back. Before
// use_rows_ops().
Status copy_weights(Graph& g, WeightCopies& copies);

// Instead, for all to be trained: constants that are rows of one of `tensors` become parts of it as a whole,
// and expressions nodes that have ways back. UNIMPLEMENTED names a tensor in a format without one. Sets
// copies.moved.
Status compute_weights(Graph& g, const std::map<std::string, Tensor, std::less<>>& tensors,
                       WeightCopies& copies);

// Constants become f32, since ordinary ops take operands of one type: all but matrices and tables that layers
// read in any format, `head` among them, and f32 and i32. `bias`: the head's.
Status widen_constants(Graph& g, Val head, Val bias);

}  // namespace oar::train
