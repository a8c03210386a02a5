// Descriptions of tensors for copies of boxes (hopper.h), made by the host.
#pragma once

#include <cstdint>

#include "kernels/cuda/hopper.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

// A tensor of `rank` 2 or 3 in device memory, the fastest dimension first, and the box one copy brings.
struct TensorBoxes {
  const void* base = nullptr;  // a multiple of 16
  int rank = 2;
  uint32_t element_bytes = 2;    // 1, 2 or 4
  uint64_t size[3] = {1, 1, 1};  // elements, at least 1
  uint64_t stride[2] = {};       // bytes to the next element of the second and third: multiples of 16
  uint32_t box[3] = {1, 1, 1};   // elements, at most 256
  uint32_t swizzle = 0;          // 0, or 32, 64 or 128: then a row of the box has as many bytes
};

// cudaErrorInvalidValue for what a device does not take: that, and rows of a box that are no multiples of 16
// bytes. cudaErrorNotSupported where the driver has no such copies.
CudaStatus make_tensor_map(TensorMap& map, const TensorBoxes& boxes);

}  // namespace oar::cuda
