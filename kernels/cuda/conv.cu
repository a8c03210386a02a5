// An implicit product: a block gathers what its output pixels see and its filters, kStep products at a time,
// and a thread sums a few outputs in registers. The tile's shape does not change how an output is summed.
#include "kernels/cuda/conv.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"

namespace oar::cuda {
namespace {

constexpr int kSide = 16;  // a block's threads are a square
constexpr int kThreads = kSide * kSide;
constexpr int kStep = kConvStep;  // products of an output between two barriers; kSide threads gather them
static_assert(kStep == kSide);

// Elements of a step's row: the lanes that write a column of 16 in two rows meet different banks.
template <int kEach>
constexpr int kRowFloats = int{kEach} * kSide + 2;
template <int kEach>
constexpr size_t kStepBytes = (kStep * kRowFloats<kEach> * sizeof(float) + 127) / 128 * 128;

// Pixels and filters of a block: kSide times kPixels and kFilters, which a thread has kSide apart.
template <int kPixels, int kFilters>
__global__ void __launch_bounds__(kThreads) conv_kernel(ConvArgs a, int64_t filter_tiles) {
  wait_for_launches();
  constexpr int kXRow = kRowFloats<kPixels>, kWRow = kRowFloats<kFilters>;
  constexpr int kTileFilters = kSide * kFilters;
  SharedMemory shared;
  float* xs = shared.take<float>(kStep * kXRow);
  float* ws = shared.take<float>(kStep * kWRow);
  float* sums = shared.take<float>(kSide * kPixels * kTileFilters);
  const WindowShape& w = a.window;
  const int64_t pixels = w.N * w.OH * w.OW, filters = a.M / a.groups;
  const auto per = static_cast<uint32_t>(a.C / a.groups), taps_of_row = static_cast<uint32_t>(w.KW);
  const auto K = static_cast<uint32_t>(w.KH * w.KW) * per;
  const int64_t rest = blockIdx.x / filter_tiles, group = rest % a.groups;
  const int64_t first_filter = blockIdx.x % filter_tiles * kTileFilters;
  const int64_t first_pixel = rest / a.groups * (kSide * kPixels);
  const int thread = static_cast<int>(threadIdx.x), column = thread % kSide, row = thread / kSide;

  // Where the windows of the pixels begin that this thread gathers.
  int64_t image[kPixels];
  int top[kPixels], left[kPixels];
#pragma unroll
  for (int e = 0; e < kPixels; ++e) {
    const int64_t p = first_pixel + row + e * kSide;
    image[e] = p < pixels ? p / (w.OH * w.OW) : -1;
    top[e] = static_cast<int>(p / w.OW % w.OH * w.stride_h - w.pad_top);
    left[e] = static_cast<int>(p % w.OW * w.stride_w - w.pad_left);
  }
  float mine[kPixels][kFilters] = {};
  for (uint32_t k0 = 0; k0 < K; k0 += kStep) {
    const uint32_t k = k0 + static_cast<uint32_t>(column), tap = k / per, c = k - tap * per;
    const auto down = static_cast<int>(tap / taps_of_row * static_cast<uint32_t>(w.dilation_h)),
               right = static_cast<int>(tap % taps_of_row * static_cast<uint32_t>(w.dilation_w));
    const int64_t channel = group * per + c;
#pragma unroll
    for (int e = 0; e < kPixels; ++e) {
      const int64_t y = top[e] + down, x = left[e] + right;
      float v = 0.f;
      if (k < K && image[e] >= 0 && y >= 0 && y < w.H && x >= 0 && x < w.W) {
        v = a.planar != 0 ? a.x[((image[e] * a.C + channel) * w.H + y) * w.W + x]
                          : a.x[((image[e] * w.H + y) * w.W + x) * a.ldx + channel];
      }
      xs[column * kXRow + row + e * kSide] = v;
    }
#pragma unroll
    for (int e = 0; e < kFilters; ++e) {
      const int64_t m = first_filter + row + e * kSide;
      ws[column * kWRow + row + e * kSide] = k < K && m < filters ? a.w[(group * filters + m) * K + k] : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      float x[kPixels];
#pragma unroll
      for (int e = 0; e < kPixels; ++e) x[e] = xs[i * kXRow + row + e * kSide];
#pragma unroll
      for (int f = 0; f < kFilters; ++f) {
        const float weight = ws[i * kWRow + column + f * kSide];
#pragma unroll
        for (int e = 0; e < kPixels; ++e) mine[e][f] = __fmaf_rn(x[e], weight, mine[e][f]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int e = 0; e < kPixels; ++e) {
#pragma unroll
    for (int f = 0; f < kFilters; ++f) {
      sums[(row + e * kSide) * kTileFilters + column + f * kSide] = mine[e][f];
    }
  }
  __syncthreads();

  // Neighbours write neighbouring filters. One copy of the activations' code for all outputs.
  const int64_t out_row = a.out_row != 0 ? a.out_row : w.OW * a.ldo;
#pragma unroll 1
  for (int i = thread; i < kSide * kPixels * kTileFilters; i += kThreads) {
    const int64_t p = first_pixel + i / kTileFilters, f = first_filter + i % kTileFilters;
    if (p >= pixels || f >= filters) continue;
    const int64_t m = group * filters + f, at = p / w.OW * out_row + p % w.OW * a.ldo + m;
    float sum = sums[i];
    if (a.bias != nullptr) sum += a.bias[m];
    if (a.residual != nullptr) sum += a.residual[at];
    a.out[at] = epilogue(a.epilogue, sum, a.alpha, a.beta);
  }
}

template <int kPixels, int kFilters>
CudaStatus run(const ConvArgs& a, int64_t pixels, int64_t filters, Stream stream) {
  constexpr int64_t kMostBlocks = 0x7fffffff;  // of a grid's first dimension
  constexpr int kTilePixels = kSide * kPixels, kTileFilters = kSide * kFilters;
  constexpr size_t kShared =
      kStepBytes<kPixels> + kStepBytes<kFilters> + kTilePixels * kTileFilters * sizeof(float);
  const int64_t filter_tiles = (filters + kTileFilters - 1) / kTileFilters;
  const int64_t blocks = (pixels + kTilePixels - 1) / kTilePixels * filter_tiles * a.groups;
  if (blocks > kMostBlocks) return {cudaErrorInvalidValue};
  return {launch(conv_kernel<kPixels, kFilters>, static_cast<unsigned>(blocks), kThreads, kShared, stream, a,
                 filter_tiles)};
}

}  // namespace

CudaStatus conv(const ConvArgs& a, Stream stream) {
  const int64_t pixels = a.window.N * a.window.OH * a.window.OW;
  if (pixels <= 0 || a.M <= 0) return {};
  const int64_t filters = a.M / a.groups;
  const ConvTile tile = conv_tile(pixels, filters);
  if (tile.filters == kSide) return run<4, 1>(a, pixels, filters, stream);
  if (tile.pixels == kSide) return run<1, 4>(a, pixels, filters, stream);
  return run<4, 4>(a, pixels, filters, stream);
}

}  // namespace oar::cuda
