// Convolution of each channel by itself and pools on a CUDA device (DepthwiseArgs and PoolArgs of
// kernels/conv.h). Roofline: memory, x and out once.
#pragma once

#include "kernels/conv.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

CudaStatus depthwise(const DepthwiseArgs& args, Stream stream);
CudaStatus pool(const PoolArgs& args, Stream stream);

}  // namespace oar::cuda
