// Norms, one block of kThreads threads per row, two passes over the row: squares, then the scaled result.
// LayerNorm has one more in front, for the mean.
//
// Thread t owns the elements 4 (t + k kThreads) + {0..3}, k = 0, 1, ..., in both passes and in either load
// width, so the order of every sum is fixed by cols alone, and nobody reads a sum_out element that another
// thread wrote.
#include "kernels/cuda/norm.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kWidth = 4;             // floats of one 16-byte access
constexpr size_t kSharedBytes = 128;  // for a sum over the block

struct Quad {
  float v[kWidth];
};

// Elements [i, i + 4) of a row of `cols`; beyond the end zeros, which add nothing to a sum of squares.
template <bool kAligned>
OAR_DEVICE Quad load_quad(const float* row, int64_t i, int64_t cols) {
  if constexpr (kAligned) {
    const float4 q = load(reinterpret_cast<const float4*>(row + i));
    return {{q.x, q.y, q.z, q.w}};
  } else {
    Quad q;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) q.v[j] = i + j < cols ? row[i + j] : 0.f;
    return q;
  }
}

template <bool kAligned>
OAR_DEVICE void store_quad(float* row, int64_t i, int64_t cols, const Quad& q) {
  if constexpr (kAligned) {
    store(reinterpret_cast<float4*>(row + i), make_float4(q.v[0], q.v[1], q.v[2], q.v[3]));
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j)
      if (i + j < cols) row[i + j] = q.v[j];
  }
}

// The sum over the block, the same bits in every thread: a butterfly within each warp, then the warps in
// order.
// `partial` is for one sum alone: nobody waits until all have read it.
OAR_DEVICE float block_sum(float x, float* partial) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partial[w];
  return sum;
}

// h = x + residual, rounded to f32 as the stored sum is.
template <bool kAligned>
OAR_DEVICE Quad load_sum(const float* x, const float* residual, int64_t i, int64_t cols) {
  Quad h = load_quad<kAligned>(x, i, cols);
  if (residual != nullptr) {
    const Quad add = load_quad<kAligned>(residual, i, cols);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) h.v[j] = __fadd_rn(h.v[j], add.v[j]);
  }
  return h;
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormArgs a) {
  const int64_t r = blockIdx.x;
  const float* x = a.x + r * a.ldx;
  const float* residual = a.residual != nullptr ? a.residual + r * a.cols : nullptr;
  float* sum_out = a.sum_out != nullptr ? a.sum_out + r * a.cols : nullptr;
  float* out = a.out + r * a.ldo;

  const auto h_at = [&](int64_t i) { return load_sum<kAligned>(x, residual, i, a.cols); };

  float squares = 0.f;
  for (int64_t i = int64_t{kWidth} * threadIdx.x; i < a.cols; i += kWidth * kThreads) {
    const Quad h = h_at(i);
    if (sum_out != nullptr) store_quad<kAligned>(sum_out, i, a.cols, h);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares = __fmaf_rn(h.v[j], h.v[j], squares);
  }
  static_assert(kWarps * sizeof(float) <= kSharedBytes);
  float* partial = SharedMemory().take<float>(kWarps);
  const float scale = 1.f / sqrtf(block_sum(squares, partial) / static_cast<float>(a.cols) + a.eps);

  for (int64_t i = int64_t{kWidth} * threadIdx.x; i < a.cols; i += kWidth * kThreads) {
    // sum_out may have replaced the residual; what this thread wrote there is h.
    Quad h = sum_out != nullptr ? load_quad<kAligned>(sum_out, i, a.cols) : h_at(i);
    const Quad w = load_quad<kAligned>(a.w, i, a.cols);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) h.v[j] = h.v[j] * scale * (w.v[j] + a.w_offset);
    store_quad<kAligned>(out, i, a.cols, h);
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(LayerNormArgs a) {
  const int64_t r = blockIdx.x;
  const float* x = a.x + r * a.ldx;
  const float* residual = a.residual != nullptr ? a.residual + r * a.cols : nullptr;
  float* sum_out = a.sum_out != nullptr ? a.sum_out + r * a.cols : nullptr;
  float* out = a.out + r * a.ldo;
  SharedMemory shared;
  float* of_sum = shared.take<float>(kWarps);
  float* of_squares = shared.take<float>(kWarps);
  const int64_t first = int64_t{kWidth} * threadIdx.x, step = kWidth * kThreads;

  float sum = 0.f;
  for (int64_t i = first; i < a.cols; i += step) {
    const Quad h = load_sum<kAligned>(x, residual, i, a.cols);
    if (sum_out != nullptr) store_quad<kAligned>(sum_out, i, a.cols, h);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum += h.v[j];
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
    for (int j = 0; j < kWidth; ++j) {
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
    for (int j = 0; j < kWidth; ++j) h.v[j] = (h.v[j] - mean) * scale * w.v[j] + b.v[j];
    store_quad<kAligned>(out, i, a.cols, h);
  }
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % (kWidth * sizeof(float)) == 0; }

template <class Args>
bool rows_aligned(const Args& a) {
  return a.cols % kWidth == 0 && a.ldx % kWidth == 0 && a.ldo % kWidth == 0 && aligned(a.x) &&
         aligned(a.out) && aligned(a.w) && aligned(a.residual) && aligned(a.sum_out);
}

}  // namespace

CudaStatus rms_norm(const RmsNormArgs& a, Stream stream) {
  if (a.rows < 0 || a.cols < 0 || a.rows > INT32_MAX) return {cudaErrorInvalidValue};
  if (a.rows == 0 || a.cols == 0) return {};
  const auto kernel = rows_aligned(a) ? rms_norm_kernel<true> : rms_norm_kernel<false>;
  return {launch(kernel, static_cast<unsigned>(a.rows), kThreads, kSharedBytes, stream, a)};
}

CudaStatus layer_norm(const LayerNormArgs& a, Stream stream) {
  if (a.rows < 0 || a.cols < 0 || a.rows > INT32_MAX) return {cudaErrorInvalidValue};
  if (a.rows == 0 || a.cols == 0) return {};
  const auto kernel = rows_aligned(a) && aligned(a.b) ? layer_norm_kernel<true> : layer_norm_kernel<false>;
  return {launch(kernel, static_cast<unsigned>(a.rows), kThreads, 2 * kSharedBytes, stream, a)};
}

}  // namespace oar::cuda
