// Interpolation on a CUDA device (kernels/resize.h). Roofline: memory, x and out once.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/resize.h"

namespace oar::cuda {

CudaStatus resize(const ResizeArgs& args, Stream stream);

}  // namespace oar::cuda
