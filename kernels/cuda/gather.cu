#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/embedding.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(T* out, const T* x, const int32_t* rows, int64_t n) {
  wait_for_launches();
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= n) return;
  store(out + blockIdx.x * n + i, load(x + rows[blockIdx.x] * n + i));
}

template <class T>
CudaStatus run(const GatherRowsArgs& a, Stream stream) {
  const int64_t n = a.E / static_cast<int64_t>(sizeof(T) / sizeof(float));
  const dim3 grid(static_cast<unsigned>(a.R), static_cast<unsigned>((n + kThreads - 1) / kThreads));
  return {launch(gather_kernel<T>, grid, kThreads, 0, stream, reinterpret_cast<T*>(a.out),
                 reinterpret_cast<const T*>(a.x), a.rows, n)};
}

}  // namespace

CudaStatus gather_rows(const GatherRowsArgs& a, Stream stream) {
  if (a.R <= 0 || a.E <= 0) return {};
  const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % sizeof(float4) == 0; };
  const bool wide = a.E % 4 == 0 && aligned(a.out) && aligned(a.x);
  return wide ? run<float4>(a, stream) : run<float>(a, stream);
}

}  // namespace oar::cuda
