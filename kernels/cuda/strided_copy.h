// Boxes of elements on a CUDA device (kernels/strided_copy.h). Roofline: memory, x and out once.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/strided_copy.h"

namespace oar::cuda {

CudaStatus strided_copy(const StridedCopyArgs& args, Stream stream);

}  // namespace oar::cuda
