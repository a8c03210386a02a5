// Rotary embeddings on a CUDA device (kernels/rope.h). Roofline: memory, x and out once each.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/rope.h"

namespace oar::cuda {

CudaStatus rope(const RopeArgs& args, Stream stream);

}  // namespace oar::cuda
