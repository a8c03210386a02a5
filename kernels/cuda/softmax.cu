// A block per row; a thread's elements are threadIdx.x + k kThreads, so out may be x.
#include "kernels/cuda/softmax.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr size_t kSharedBytes = 2 * 128;

__global__ void __launch_bounds__(kThreads) softmax_kernel(SoftmaxArgs a) {
  wait_for_launches();
  SharedMemory shared;
  float* tops = shared.take<float>(kWarps);
  float* sums = shared.take<float>(kWarps);
  const int64_t r = blockIdx.x;
  const float* x = a.x + r * a.n;
  const float* mask = a.mask != nullptr ? a.mask + r * a.mask_row : nullptr;
  float* out = a.out + r * a.n;
  const auto score = [&](int64_t j) {
    const float scaled = __fmul_rn(x[j], a.scale);
    return mask != nullptr ? __fadd_rn(scaled, mask[j]) : scaled;
  };

  float top = -INFINITY;
  for (int64_t j = threadIdx.x; j < a.n; j += kThreads) top = fmaxf(top, score(j));
  top = warp_max(top);
  if (lane() == 0) tops[warp()] = top;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w]);

  float sum = 0.f;
  for (int64_t j = threadIdx.x; j < a.n; j += kThreads) sum += expf(score(j) - top);
  sum = warp_sum(sum);
  if (lane() == 0) sums[warp()] = sum;
  __syncthreads();
  sum = 0.f;
  for (int w = 0; w < kWarps; ++w) sum += sums[w];

  for (int64_t j = threadIdx.x; j < a.n; j += kThreads) out[j] = quotient(expf(score(j) - top), sum);
}

}  // namespace

CudaStatus softmax(const SoftmaxArgs& a, Stream stream) {
  if (a.rows <= 0 || a.n <= 0) return {};
  return {launch(softmax_kernel, static_cast<unsigned>(a.rows), kThreads, kSharedBytes, stream, a)};
}

}  // namespace oar::cuda
