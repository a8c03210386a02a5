#include "kernels/cuda/status.h"

#include <cuda_runtime_api.h>

namespace oar::cuda {

const char* CudaStatus::message() const { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

}  // namespace oar::cuda
