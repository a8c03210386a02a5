// Norms, one block of kNormThreads threads per row (norm_rows.h).
#include "kernels/cuda/norm.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/norm_rows.h"

namespace oar::cuda {
namespace {

constexpr size_t kSharedBytes = 128;  // for a sum over the block
static_assert(kNormWarps * sizeof(float) <= kSharedBytes);

template <bool kAligned>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(RmsNormArgs a) {
  wait_for_launches();
  rms_norm_rows<kAligned>(a, blockIdx.x, 1, SharedMemory().take<float>(kNormWarps));
}

// The sum over the block, the same bits in every thread. `partial` is for one sum alone: nobody waits until
// all have read it.
OAR_DEVICE float block_sum(float x, float* partial) {
  x = warp_sum(x);
  if (lane() == 0) partial[warp()] = x;
  __syncthreads();
  return sum_of_parts(partial, 0);
}

template <bool kAligned>
__global__ void __launch_bounds__(kNormThreads) layer_norm_kernel(LayerNormArgs a) {
  wait_for_launches();
  const int64_t r = blockIdx.x;
  const float* x = a.x + r * a.ldx;
  const float* residual = a.residual != nullptr ? a.residual + r * a.cols : nullptr;
  float* sum_out = a.sum_out != nullptr ? a.sum_out + r * a.cols : nullptr;
  float* out = a.out + r * a.ldo;
  SharedMemory shared;
  float* of_sum = shared.take<float>(kNormWarps);
  float* of_squares = shared.take<float>(kNormWarps);
  const int64_t first = int64_t{kNormWidth} * threadIdx.x, step = kNormWidth * kNormThreads;

  float sum = 0.f;
  for (int64_t i = first; i < a.cols; i += step) {
    const Quad h = load_sum<kAligned>(x, residual, i, a.cols);
    if (sum_out != nullptr) store_quad<kAligned>(sum_out, i, a.cols, h);
#pragma unroll
    for (int j = 0; j < kNormWidth; ++j) sum += h.v[j];
  }
  const float mean = block_sum(sum, of_sum) / static_cast<float>(a.cols);

  // sum_out may have replaced the residual; what this thread wrote there is h.
  const auto h_at = [&](int64_t i) {
    return sum_out != nullptr ? load_quad<kAligned>(sum_out, i, a.cols)
                              : load_sum<kAligned>(x, residual, i, a.cols);
  };
  float squares = 0.f;
  for (int64_t i = first; i < a.cols; i += step) {
    const Quad h = h_at(i);
#pragma unroll
    for (int j = 0; j < kNormWidth; ++j) {
      const float centred = i + j < a.cols ? h.v[j] - mean : 0.f;
      squares = __fmaf_rn(centred, centred, squares);
    }
  }
  const float scale = 1.f / sqrtf(block_sum(squares, of_squares) / static_cast<float>(a.cols) + a.eps);

  for (int64_t i = first; i < a.cols; i += step) {
    Quad h = h_at(i);
    Quad w{{1.f, 1.f, 1.f, 1.f}}, b{};
    if (a.w != nullptr) w = load_quad<kAligned>(a.w, i, a.cols);
    if (a.b != nullptr) b = load_quad<kAligned>(a.b, i, a.cols);
#pragma unroll
    for (int j = 0; j < kNormWidth; ++j) h.v[j] = (h.v[j] - mean) * scale * w.v[j] + b.v[j];
    store_quad<kAligned>(out, i, a.cols, h);
  }
}

}  // namespace

CudaStatus rms_norm(const RmsNormArgs& a, Stream stream) {
  if (a.rows < 0 || a.cols < 0 || a.rows > INT32_MAX) return {cudaErrorInvalidValue};
  if (a.rows == 0 || a.cols == 0) return {};
  const auto kernel = norm_rows_aligned(a) ? rms_norm_kernel<true> : rms_norm_kernel<false>;
  return {launch(kernel, static_cast<unsigned>(a.rows), kNormThreads, kSharedBytes, stream, a)};
}

CudaStatus layer_norm(const LayerNormArgs& a, Stream stream) {
  if (a.rows < 0 || a.cols < 0 || a.rows > INT32_MAX) return {cudaErrorInvalidValue};
  if (a.rows == 0 || a.cols == 0) return {};
  const auto kernel =
      norm_rows_aligned(a) && norm_aligned(a.b) ? layer_norm_kernel<true> : layer_norm_kernel<false>;
  return {launch(kernel, static_cast<unsigned>(a.rows), kNormThreads, 2 * kSharedBytes, stream, a)};
}

}  // namespace oar::cuda
