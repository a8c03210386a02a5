// Linear quantization on a CUDA device (QuantizeArgs of kernels/quantize.h), to the bits of the reference.
// Roofline: 5 bytes an element, 9 with an own range; of integers 8.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/quantize.h"

namespace oar::cuda {

uint64_t quantize_scratch(const QuantizeArgs& args);
CudaStatus quantize(const QuantizeArgs& args, void* scratch, Stream stream);
// i32 to values.
CudaStatus integers(const QuantizeArgs& args, Stream stream);

}  // namespace oar::cuda
