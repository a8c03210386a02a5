#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

namespace oar::cuda {
namespace {

constexpr uint64_t kAlignment = 16;
constexpr uint32_t kMaxBox = 256;
constexpr uint64_t kMaxSize = uint64_t{1} << 32, kMaxStride = uint64_t{1} << 40;

bool valid(const TensorBoxes& b) {
  if (b.base == nullptr || reinterpret_cast<uintptr_t>(b.base) % kAlignment != 0) return false;
  if (b.rank != 2 && b.rank != 3) return false;
  if (b.element_bytes != 1 && b.element_bytes != 2 && b.element_bytes != 4) return false;
  for (int d = 0; d < b.rank; ++d) {
    if (b.size[d] == 0 || b.size[d] > kMaxSize || b.box[d] == 0 || b.box[d] > kMaxBox) return false;
    if (d > 0 && (b.stride[d - 1] % kAlignment != 0 || b.stride[d - 1] >= kMaxStride)) return false;
  }
  const uint32_t row = b.box[0] * b.element_bytes;
  if (b.swizzle == 0) return row % kAlignment == 0;
  return (b.swizzle == 32 || b.swizzle == 64 || b.swizzle == 128) && row == b.swizzle;
}

#if defined(__CUDACC__)
// The driver's function, without linking the driver.
int encode(TensorMap& map, const TensorBoxes& b) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kSince = 12000;  // CUDA 12.0
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                                             cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess || function == nullptr) return cudaErrorNotSupported;
  const auto type = b.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                    : b.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16
                                           : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  const auto swizzle = b.swizzle == 0    ? CU_TENSOR_MAP_SWIZZLE_NONE
                       : b.swizzle == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                       : b.swizzle == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_128B;
  const cuuint64_t size[3] = {b.size[0], b.size[1], b.size[2]}, stride[2] = {b.stride[0], b.stride[1]};
  const cuuint32_t every[3] = {1, 1, 1};
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
      &map, type, static_cast<cuuint32_t>(b.rank), const_cast<void*>(b.base), size, stride, b.box, every,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}
#else
int encode(TensorMap& map, const TensorBoxes& b) {
  map = {static_cast<const std::byte*>(b.base),
         b.rank,
         b.element_bytes,
         {b.size[0], b.size[1], b.size[2]},
         {b.stride[0], b.stride[1]},
         {b.box[0], b.box[1], b.box[2]},
         b.swizzle};
  return cudaSuccess;
}
#endif

}  // namespace

CudaStatus make_tensor_map(TensorMap& map, const TensorBoxes& boxes) {
  if (!valid(boxes)) return {cudaErrorInvalidValue};
  return {encode(map, boxes)};
}

}  // namespace oar::cuda
