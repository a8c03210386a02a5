// Softmax over rows on a CUDA device (SoftmaxArgs of kernels/conv.h). Roofline: memory, x, mask and out once.
#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

CudaStatus softmax(const SoftmaxArgs& args, Stream stream);

}  // namespace oar::cuda
