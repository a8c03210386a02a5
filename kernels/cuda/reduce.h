// Sums, means and extremes along an axis on a CUDA device (kernels/reduce.h). Roofline: memory, x once.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/reduce.h"

namespace oar::cuda {

CudaStatus reduce(const ReduceArgs& args, Stream stream);

}  // namespace oar::cuda
