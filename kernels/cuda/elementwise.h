// What is done element by element on a CUDA device: unary, binary, swiglu, activate (kernels/activation.h,
// conv.h). Roofline: memory, each operand once.
#pragma once

#include "kernels/activation.h"
#include "kernels/conv.h"
#include "kernels/cuda/status.h"
#include "kernels/rope.h"

namespace oar::cuda {

// Unary and binary ops and copies behind each other, of few elements, in one launch. A thread does its
// element of each op, so an op may read what those before wrote, element by element. Steps of a chain of
// products may be such ops (ProductChain in matmul.h).
struct ElementStep {
  float* out = nullptr;
  const float *a = nullptr, *b = nullptr;  // b null: of one operand
  int64_t n = 0;                           // elements
  // Of element (i, j) of rows of `cols`: a[i a_row + j], b[i b_row + j b_col].
  int64_t cols = 1, a_row = 1, b_row = 0, b_col = 0;
  int32_t op = kCopy;  // a UnaryOp, a BinaryOp, that, or kGate - UnaryOp: op(a) b
  static constexpr int32_t kCopy = -1, kGate = -2;
  bool a_is_last = false, b_is_last = false;  // it is what the step before has just made
};
struct ElementSteps {
  static constexpr int kMost = 16;
  ElementStep steps[kMost];
  int count = 0;

  // False: it would read or write what another thread does, or there is no room.
  bool add(const ElementStep& step);
  int64_t most() const;  // elements of a step
};
// False: it is not done so, as of too many elements, of which wide accesses count.
bool element_step(const UnaryArgs& args, ElementStep* step);
bool element_step(const BinaryArgs& args, ElementStep* step);
// Of what does nothing but copy columns.
bool element_step(const RopeArgs& args, ElementStep* step);
bool element_step(const SwiGluArgs& args, ElementStep* step);

CudaStatus elements(const ElementSteps& steps, Stream stream);
CudaStatus unary(const UnaryArgs& args, Stream stream);
CudaStatus binary(const BinaryArgs& args, Stream stream);
CudaStatus swiglu(const SwiGluArgs& args, Stream stream);
CudaStatus activate(const ActivateArgs& args, Stream stream);

}  // namespace oar::cuda
