// A model in a rotated basis (engine/graph/passes/rotate.h), one weight at a time. What is quantized after a
// rotation is made of this: weights are rounded once, and never more than one of them is in memory. It also
// transposes matrices that are stored (in, out), as GPT-2's at Hugging Face, with a rotation or without:
// blocks of storage formats run along a row of inputs. Stacks of transposed experts come apart the same way.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/graph/passes/rotate.h"
#include "engine/graph/weights.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/model.h"
#include "kernels/thread_pool.h"

namespace oar {

class RotatedModel {
 public:
  // Decides what is rotated; computes nothing. Refers to the tensors of `checkpoint`, not to itself.
  // UNIMPLEMENTED where a rotation that was named finds no place.
  static Result<RotatedModel> make(const Checkpoint& checkpoint, const ModelConfig& config,
                                   const RotationOptions& wanted);

  // The checkpoint to be, but for its numbers: names, shapes and formats of all tensors, a tied head among
  // them under its own name, and what adapters need (stored_basis.h). The record in config.json tells loading
  // and calibration what the weights carry. The bytes of tensors that change() names are those before the
  // rotation.
  const Checkpoint& layout() const { return layout_; }
  bool changes(const std::string& name) const { return values_.contains(name); }

  // What was asked for and found no place.
  const std::vector<LeftOut>& left_out() const { return left_out_; }

  // A tensor of layout() with its numbers: f32 in new memory where changes(), as it lies otherwise.
  Result<Tensor> tensor(const std::string& name, ThreadPool& pool) const;

 private:
  RotatedModel() = default;
  // A weight that is made of a stack of all experts' becomes a tensor of layout(), and the stack goes.
  Status take_apart(const NamedWeight& weight);
  Graph graph_;
  Checkpoint layout_;
  std::vector<LeftOut> left_out_;
  std::map<std::string, ValueId> values_;  // of what changes
};

// Whether the graph reads a plain matrix of `checkpoint` transposed, or makes matrices of a stack.
Result<bool> stores_transposed(const Checkpoint& checkpoint, const ModelConfig& config);

// Whether weights of `checkpoint` would change under `wanted`: it asks for more than online transforms, the
// matrices are plain floats, and they carry no rotation yet.
bool rotates_weights(const Checkpoint& checkpoint, const RotationOptions& wanted);

}  // namespace oar
