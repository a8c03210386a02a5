// A block of threads per run of `block` elements, which lies in shared memory: butterflies of the power of
// two in place, then each dense core from one buffer to the other.
#include "kernels/cuda/hadamard.h"

#include <cuda_runtime_api.h>

#include <cmath>

#include "kernels/cuda/device.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSharedFloats = 56 << 10;  // both buffers: 224 KiB of the 227 that a block may have

OAR_DEVICE void swap_buffers(float*& a, float*& b) {
  float* kept = a;
  a = b;
  b = kept;
}

__global__ void __launch_bounds__(kThreads) hadamard_kernel(HadamardArgs a, float* scratch, float scale) {
  const int block = static_cast<int>(a.block), thread = static_cast<int>(threadIdx.x);
  const int64_t run = blockIdx.x, row = blockIdx.y + int64_t{blockIdx.z} * gridDim.y;
  if (row >= a.rows) return;
  float* v = scratch != nullptr ? scratch + (row * gridDim.x + run) * 2 * block
                                : SharedMemory().take<float>(2 * block);
  float* other = v + block;
  const float* x = a.x + row * a.ldx + run * block;
  const float* signs = a.signs != nullptr ? a.signs + run * block : nullptr;
  float* out = a.out + row * a.ldo + run * block;

  for (int i = thread; i < block; i += kThreads)
    v[i] = signs != nullptr && a.inverse == 0 ? x[i] * signs[i] : x[i];
  __syncthreads();
  for (int h = 1; h < static_cast<int>(a.power); h *= 2) {
    for (int i = thread; i < block / 2; i += kThreads) {
      const int at = i / h * 2 * h + i % h;  // the i-th index without bit h
      const float p = v[at], q = v[at + h];
      v[at] = p + q;
      v[at + h] = p - q;
    }
    __syncthreads();
  }
  int stride = static_cast<int>(a.power);
  for (int c = 0; c < a.num_cores; ++c) {
    const int order = static_cast<int>(a.core_order[c]);
    for (int i = thread; i < block; i += kThreads) {
      const int r = i / stride % order, first = i - r * stride;
      float sum = 0.f;
      for (int k = 0; k < order; ++k) sum = __fmaf_rn(a.cores[c][r * order + k], v[first + k * stride], sum);
      other[i] = sum;
    }
    __syncthreads();
    swap_buffers(v, other);
    stride *= order;
  }
  for (int i = thread; i < block; i += kThreads) {
    const float y = v[i] * scale;
    out[i] = signs != nullptr && a.inverse != 0 ? y * signs[i] : y;
  }
}

}  // namespace

uint64_t hadamard_scratch(const HadamardArgs& a) {
  if (2 * a.block <= kSharedFloats || a.block <= 0) return 0;
  return static_cast<uint64_t>(a.rows * (a.n / a.block) * 2 * a.block) * sizeof(float);
}

CudaStatus hadamard(const HadamardArgs& a, void* scratch, Stream stream) {
  if (a.rows <= 0 || a.n <= 0) return {};
  constexpr int64_t kMaxY = 65535;
  const int64_t y = a.rows < kMaxY ? a.rows : kMaxY;
  const dim3 grid(static_cast<unsigned>(a.n / a.block), static_cast<unsigned>(y),
                  static_cast<unsigned>((a.rows + y - 1) / y));
  const bool fits = hadamard_scratch(a) == 0;
  const size_t shared = fits ? (2 * static_cast<size_t>(a.block) * sizeof(float) + 127) / 128 * 128 : 0;
  const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.block)));
  return {launch(hadamard_kernel, grid, kThreads, shared, stream, a,
                 fits ? nullptr : static_cast<float*>(scratch), scale)};
}

}  // namespace oar::cuda
