// What products of warp groups share: the ends of their sums, and how their failures are said.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/cuda/device.h"
#include "kernels/cuda/libraries/library.h"
#include "kernels/cuda/matmul_tiles.h"
#include "kernels/cuda/occupancy.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/streamed.h"
#include "kernels/matmul.h"

namespace oar::cuda {

constexpr int kGroupRows = 128, kGroupOutputs = 128;  // of a tile: 64 rows a warp group

// One weight. out, bias and residual begin at its first column.
struct WarpGroupProduct {
  float* out;
  const float *bias, *residual;  // or null
  int64_t T, n, K, ldo;
  uint32_t across, down, band;  // how blocks come to tiles: place_of()
  bool wide;                    // pairs of columns lie at multiples of 8 bytes
  bool streams;                 // what is added at the end, and results, leave L2 before rows of x
  bool streams_weights;         // and so do weights
};
// Tiles in bands of rows, and what leaves L2 first: weights too, where those of blocks that run side by side
// would leave no room for a band until the next blocks want it. `element`: bytes of x and of weights.
inline void lay_group_tiles(WarpGroupProduct& p, int64_t element) {
  // Fewer tiles of rows would be read by blocks that run side by side together with many more weights.
  constexpr int64_t kLeastBand = 8;
  const auto tiles = [](int64_t n, int64_t of_tile) { return (n + of_tile - 1) / of_tile; };
  const int64_t across = tiles(p.n, kGroupOutputs), down = tiles(p.T, kGroupRows),
                tile_bytes = std::max<int64_t>(kGroupRows * p.K * element, 1),
                fit = std::max(rows_in_l2 / tile_bytes, kLeastBand), bands = tiles(down, fit),
                band = tiles(down, bands), at_once = std::min(across, tiles(kMultiprocessors, band));
  const bool again = across * band > kMultiprocessors;  // rows, by blocks that run later
  p.across = static_cast<uint32_t>(across);
  p.down = static_cast<uint32_t>(down);
  p.band = static_cast<uint32_t>(band);
  p.streams = again && (band + at_once) * tile_bytes >= rows_in_l2 / 4 * 3;
  p.streams_weights = again && (band + at_once) * tile_bytes > rows_in_l2 / 4 * 5;
}
// `element`: bytes of x.
inline WarpGroupProduct warp_group_product(const MatmulArgs& a, const MatmulSegment& s, int64_t element) {
  WarpGroupProduct p;
  p.out = a.out + s.out_col;
  p.bias = s.bias;
  p.residual = a.residual != nullptr ? a.residual + s.out_col : nullptr;
  p.T = a.T;
  p.n = s.n;
  p.K = a.K;
  p.ldo = a.ldo;
  const auto even = [](const float* at) { return reinterpret_cast<uintptr_t>(at) % sizeof(float2) == 0; };
  p.wide = even(p.out) && even(p.bias) && even(p.residual) && a.ldo % 2 == 0;
  lay_group_tiles(p, element);
  return p;
}

// Two columns of a row; `wide`: both are there, too.
[[maybe_unused]] OAR_DEVICE void finish_pair(const WarpGroupProduct& p, int64_t row, int64_t n, float a,
                                             float b, bool wide) {
  const int64_t at = row * p.ldo + n;
  if (wide) {
    float2 sum = make_float2(a, b);
    if (p.bias != nullptr) {
      const float2 bias = load(reinterpret_cast<const float2*>(p.bias + n));
      sum = make_float2(sum.x + bias.x, sum.y + bias.y);
    }
    if (p.residual != nullptr) {
      const float2 residual = load_streamed(reinterpret_cast<const float2*>(p.residual + at), p.streams);
      sum = make_float2(sum.x + residual.x, sum.y + residual.y);
    }
    store_streamed(reinterpret_cast<float2*>(p.out + at), sum, p.streams);
    return;
  }
  const float sums[2] = {a, b};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (n + i >= p.n) break;
    float sum = sums[i];
    if (p.bias != nullptr) sum += p.bias[n + i];
    if (p.residual != nullptr) sum += load_streamed(p.residual + at + i, p.streams);
    store_streamed(p.out + at + i, sum, p.streams);
  }
}

// A warp's 16 rows of a tile whose first row and output these are.
template <int kWords>
OAR_DEVICE void finish_tile(const WarpGroupProduct& p, int64_t row, int64_t output,
                            const float (&sums)[kWords]) {
  const int t = lane() % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t at = row + 16 * warp() + lane() / 4 + 8 * half;
    if (at >= p.T) continue;
#pragma unroll
    for (int j = 0; j < kWords / 4; ++j) {
      const int64_t n = output + 8 * j + 2 * t;
      if (n < p.n)
        finish_pair(p, at, n, sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1], p.wide && n + 1 < p.n);
    }
  }
}

inline LibraryStatus said(CudaStatus status, const char* what) {
  if (status.ok()) return {};
  return {status.code, std::string(what) + ": " + status.message()};
}

// Each weight of a product: `run` does what it takes, of rows that `narrow` makes before; `own` the others.
template <class Takes, class Narrow, class Run, class Own>
LibraryStatus run_weights(const MatmulArgs& a, const Takes& takes, const Narrow& narrow, const Run& run,
                          const Own& own) {
  if (a.T <= 0) return {};
  if (std::any_of(a.segments, a.segments + a.num_segments, takes)) {
    if (const int error = narrow(); error != 0) return said({error}, "rounding rows");
  }
  for (int64_t i = 0; i < a.num_segments; ++i) {
    const MatmulSegment& s = a.segments[i];
    if (!takes(s)) {
      MatmulArgs one = a;
      one.segments = &s;
      one.num_segments = 1;
      if (LibraryStatus failed = said(own(one), "our other product"); !failed.ok()) return failed;
      continue;
    }
    if (s.n <= 0) continue;
    if (LibraryStatus failed = said(run(s), "a product of warp groups"); !failed.ok()) return failed;
  }
  return {};
}

}  // namespace oar::cuda
