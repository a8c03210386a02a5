// What is done element by element on a CUDA device: unary, binary, swiglu, activate (kernels/activation.h,
// conv.h). Roofline: memory, each operand once.
#pragma once

#include "kernels/activation.h"
#include "kernels/conv.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

CudaStatus unary(const UnaryArgs& args, Stream stream);
CudaStatus binary(const BinaryArgs& args, Stream stream);
CudaStatus swiglu(const SwiGluArgs& args, Stream stream);
CudaStatus activate(const ActivateArgs& args, Stream stream);

}  // namespace oar::cuda
