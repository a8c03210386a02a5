// An implicit product: a block gathers what its output pixels see, rounded, and its filters, 64 bytes of each
// at a time, while it multiplies those before. 16 bytes of a row are what a lane of ldmatrix gives the
// address of, whichever the type, so all three share one kernel.
#include "kernels/cuda/rounded_conv.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"
#include "kernels/cuda/mma_rounded.h"

namespace oar::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kRowBytes = kRoundedStepBytes;  // of a pixel or filter between two barriers: two products
constexpr int kPieces = kRowBytes / 16;

// Pieces change places with the row, so that one piece of eight rows, and all of two, are in all banks.
OAR_DEVICE int place_of(int row, int piece) { return row * kRowBytes + (piece ^ row / 2 % kPieces) * 16; }

template <Rounding kTo>
constexpr int kValueBytes = kTo == Rounding::kTf32 ? 4 : 2;
template <Rounding kTo>
constexpr int kStepValues = kRowBytes / kValueBytes<kTo>;

// Four values, rounded, to shared memory.
template <Rounding kTo>
OAR_DEVICE void store_rounded(unsigned char* to, const float (&x)[4]) {
  if constexpr (kTo == Rounding::kTf32) {
    store(reinterpret_cast<uint4*>(to),
          make_uint4(round_tf32(x[0]), round_tf32(x[1]), round_tf32(x[2]), round_tf32(x[3])));
  } else if constexpr (kTo == Rounding::kF16) {
    store(reinterpret_cast<uint2*>(to), make_uint2(pack_f16(x[0], x[1]), pack_f16(x[2], x[3])));
  } else {
    store(reinterpret_cast<uint2*>(to), make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])));
  }
}

template <Rounding kTo>
OAR_DEVICE void multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kTo == Rounding::kTf32) mma_tf32(c, a, b);
  else if constexpr (kTo == Rounding::kF16) mma_f16(c, a, b);
  else mma_bf16(c, a, b);
}

// A block's warps lie kDown of them along pixels and the others along filters; each has kBands bands of 16
// pixels and kColumns columns of 8 filters.
template <int kBands_, int kColumns_, int kDown_>
struct TileShape {
  static constexpr int kBands = kBands_, kColumns = kColumns_, kDown = kDown_;
  static constexpr int kPixels = 16 * kBands * kDown, kFilters = 8 * kColumns * (kWarps / kDown);
  // A warp's sums on their way out: so far apart that fragments are stored from different banks.
  static constexpr int kSumRow = 8 * kColumns + (kColumns % 2 == 0 ? 8 : 0);
  static constexpr int kSums = 16 * kBands * kSumRow;
  static constexpr size_t kShared = 2 * (kPixels + kFilters) * kRowBytes + kWarps * kSums * sizeof(float);
};
using ManyPixels = TileShape<2, 8, 4>;   // 128 x 128
using UsualPixels = TileShape<1, 4, 4>;  // 64 x 64
using FewPixels = TileShape<1, 1, 1>;    // 16 x 64

// kWide: four channels are one access.
template <Rounding kTo, class Shape, bool kWide>
__global__ void __launch_bounds__(kThreads) rounded_kernel(ConvArgs a, int64_t filter_tiles) {
  wait_for_launches();
  constexpr int kFours = kStepValues<kTo> / 4;  // of a row, each a thread's
  constexpr int kRows = kThreads / kFours, kGathers = (Shape::kPixels + kRows - 1) / kRows;
  constexpr int kPixelBytes = Shape::kPixels * kRowBytes, kFilterBytes = Shape::kFilters * kRowBytes;
  SharedMemory shared;
  auto* const xs = shared.take<unsigned char>(2 * kPixelBytes);
  auto* const ws = shared.take<unsigned char>(2 * kFilterBytes);
  float* const sums = shared.take<float>(kWarps * Shape::kSums) + warp() * Shape::kSums;
  const WindowShape& w = a.window;
  const int64_t pixels = w.N * w.OH * w.OW;
  const auto channels = static_cast<uint32_t>(a.C), taps_of_row = static_cast<uint32_t>(w.KW);
  const auto K = static_cast<uint32_t>(w.KH * w.KW) * channels;
  const uint32_t steps = (K + kStepValues<kTo> - 1) / kStepValues<kTo>;
  const int64_t first_filter = blockIdx.x % filter_tiles * Shape::kFilters;
  const int64_t first_pixel = blockIdx.x / filter_tiles * Shape::kPixels;
  const int thread = static_cast<int>(threadIdx.x), column = thread % kFours, row = thread / kFours;

  // Where the windows of the pixels begin that this thread gathers.
  int64_t image[kGathers];
  int top[kGathers], left[kGathers];
#pragma unroll
  for (int e = 0; e < kGathers; ++e) {
    const int64_t p = first_pixel + row + e * kRows;
    image[e] = row + e * kRows < Shape::kPixels && p < pixels ? p / (w.OH * w.OW) : -1;
    top[e] = static_cast<int>(p / w.OW % w.OH * w.stride_h - w.pad_top);
    left[e] = static_cast<int>(p % w.OW * w.stride_w - w.pad_left);
  }
  // What pixel e sees at k of its window; null: padding, or nothing.
  const auto seen = [&](uint32_t k, int e) -> const float* {
    if (k >= K || image[e] < 0) return nullptr;
    const uint32_t tap = k / channels, c = k - tap * channels;
    const int64_t y = top[e] + static_cast<int>(tap / taps_of_row * static_cast<uint32_t>(w.dilation_h)),
                  x = left[e] + static_cast<int>(tap % taps_of_row * static_cast<uint32_t>(w.dilation_w));
    if (y < 0 || y >= w.H || x < 0 || x >= w.W) return nullptr;
    return a.x + ((image[e] * w.H + y) * w.W + x) * a.ldx + c;
  };
  float next[kGathers][4] = {};
  const auto gather = [&](uint32_t step) {
    const uint32_t k = step * kStepValues<kTo> + 4 * static_cast<uint32_t>(column);
#pragma unroll
    for (int e = 0; e < kGathers; ++e) {
      if constexpr (kWide) {
        const float* at = seen(k, e);
        const float4 v =
            at != nullptr ? load(reinterpret_cast<const float4*>(at)) : make_float4(0.f, 0.f, 0.f, 0.f);
        next[e][0] = v.x, next[e][1] = v.y, next[e][2] = v.z, next[e][3] = v.w;
      } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) {
          const float* at = seen(k + i, e);
          next[e][i] = at != nullptr ? *at : 0.f;
        }
      }
    }
  };
  const auto store_gathered = [&](uint32_t step) {
    constexpr int kBytes = 4 * kValueBytes<kTo>;
#pragma unroll
    for (int e = 0; e < kGathers; ++e) {
      if (row + e * kRows >= Shape::kPixels) break;
      store_rounded<kTo>(xs + step % 2 * kPixelBytes + place_of(row + e * kRows, column * kBytes / 16) +
                             column * kBytes % 16,
                         next[e]);
    }
  };
  const int64_t filter_bytes = int64_t{steps} * kRowBytes;
  const auto start_filters = [&](uint32_t step) {
    const auto* from = reinterpret_cast<const unsigned char*>(a.w) + int64_t{step} * kRowBytes;
#pragma unroll
    for (int i = thread; i < Shape::kFilters * kPieces; i += kThreads) {
      const int r = i / kPieces, piece = i % kPieces;
      const int64_t m = first_filter + r;
      copy_async16(ws + step % 2 * kFilterBytes + place_of(r, piece), from + m * filter_bytes + piece * 16,
                   m < a.M);
    }
    copy_async_commit();
  };

  const int warp_pixel = warp() % Shape::kDown * (16 * Shape::kBands);
  const int warp_filter = warp() / Shape::kDown * (8 * Shape::kColumns);
  float mine[Shape::kBands][Shape::kColumns][4] = {};
  if (steps > 0) {
    gather(0);
    start_filters(0);
    store_gathered(0);
  }
  for (uint32_t step = 0; step < steps; ++step) {
    copy_async_wait<0>();
    // This step is there, and nobody reads the one before it any more.
    __syncthreads();
    const bool more = step + 1 < steps;
    if (more) {
      gather(step + 1);
      start_filters(step + 1);
    }
    const unsigned char *const x = xs + step % 2 * kPixelBytes, *const f = ws + step % 2 * kFilterBytes;
    uint32_t left_half[Shape::kBands][4], right_half[Shape::kBands][4];
#pragma unroll
    for (int b = 0; b < Shape::kBands; ++b) {
      const int r = warp_pixel + 16 * b + lane() % 16;
      ldmatrix_x4<false>(left_half[b], x + place_of(r, lane() / 16));
      ldmatrix_x4<false>(right_half[b], x + place_of(r, 2 + lane() / 16));
    }
#pragma unroll
    for (int c = 0; c < Shape::kColumns; ++c) {
      uint32_t filters[4];
      ldmatrix_x4<false>(filters, f + place_of(warp_filter + 8 * c + lane() % 8, lane() / 8));
      const uint32_t first[2] = {filters[0], filters[1]}, second[2] = {filters[2], filters[3]};
#pragma unroll
      for (int b = 0; b < Shape::kBands; ++b) {
        multiply<kTo>(mine[b][c], left_half[b], first);
        multiply<kTo>(mine[b][c], right_half[b], second);
      }
    }
    if (more) store_gathered(step + 1);
  }

  const int g = lane() / 4, t = lane() % 4;
#pragma unroll
  for (int b = 0; b < Shape::kBands; ++b) {
#pragma unroll
    for (int c = 0; c < Shape::kColumns; ++c) {
      float* const to = sums + (16 * b + g) * Shape::kSumRow + 8 * c + 2 * t;
      store(reinterpret_cast<float2*>(to), make_float2(mine[b][c][0], mine[b][c][1]));
      store(reinterpret_cast<float2*>(to + 8 * Shape::kSumRow), make_float2(mine[b][c][2], mine[b][c][3]));
    }
  }
  __syncwarp();

  // Neighbours write neighbouring filters. One copy of the activations' code for all results.
  constexpr int kWidth = 8 * Shape::kColumns;
#pragma unroll 1
  for (int i = lane(); i < 16 * Shape::kBands * kWidth; i += kWarp) {
    const int64_t p = first_pixel + warp_pixel + i / kWidth, m = first_filter + warp_filter + i % kWidth;
    if (p >= pixels || m >= a.M) continue;
    const int64_t at = (a.out_row != 0 ? p / w.OW * a.out_row + p % w.OW * a.ldo : p * a.ldo) + m;
    float sum = sums[i / kWidth * Shape::kSumRow + i % kWidth];
    if (a.bias != nullptr) sum += a.bias[m];
    if (a.residual != nullptr) sum += a.residual[at];
    a.out[at] = epilogue(a.epilogue, sum, a.alpha, a.beta);
  }
}

template <Rounding kTo, class Shape>
CudaStatus run(const ConvArgs& a, int64_t pixels, bool wide, Stream stream) {
  constexpr int64_t kMostBlocks = 0x7fffffff;  // of a grid's first dimension
  const int64_t filter_tiles = (a.M + Shape::kFilters - 1) / Shape::kFilters;
  const int64_t blocks = (pixels + Shape::kPixels - 1) / Shape::kPixels * filter_tiles;
  if (blocks > kMostBlocks) return {cudaErrorInvalidValue};
  return {launch(wide ? rounded_kernel<kTo, Shape, true> : rounded_kernel<kTo, Shape, false>,
                 static_cast<unsigned>(blocks), kThreads, Shape::kShared, stream, a, filter_tiles)};
}

}  // namespace

template <Rounding kTo>
CudaStatus rounded_conv(const ConvArgs& a, Stream stream) {
  const int64_t pixels = a.window.N * a.window.OH * a.window.OW;
  if (pixels <= 0 || a.M <= 0) return {};
  if (a.groups != 1 || a.planar != 0) return {cudaErrorInvalidValue};
  const bool wide = a.C % 4 == 0 && a.ldx % 4 == 0 && reinterpret_cast<uintptr_t>(a.x) % 16 == 0;
  const ConvTile tile = rounded_conv_tile(pixels, a.M);
  if (tile.pixels == FewPixels::kPixels) return run<kTo, FewPixels>(a, pixels, wide, stream);
  if (tile.pixels == ManyPixels::kPixels) return run<kTo, ManyPixels>(a, pixels, wide, stream);
  return run<kTo, UsualPixels>(a, pixels, wide, stream);
}
template CudaStatus rounded_conv<Rounding::kBf16>(const ConvArgs&, Stream);
template CudaStatus rounded_conv<Rounding::kF16>(const ConvArgs&, Stream);
template CudaStatus rounded_conv<Rounding::kTf32>(const ConvArgs&, Stream);

}  // namespace oar::cuda
