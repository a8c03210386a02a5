// Grouped Hadamard transforms on a CUDA device (kernels/hadamard.h). Roofline: memory, x and out once.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/hadamard.h"

namespace oar::cuda {

// Bytes for blocks that do not fit shared memory.
uint64_t hadamard_scratch(const HadamardArgs& args);
CudaStatus hadamard(const HadamardArgs& args, void* scratch, Stream stream);

}  // namespace oar::cuda
