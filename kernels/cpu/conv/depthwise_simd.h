// Depthwise convolution and pooling over (N, H, W, C) for one instruction set: vectors of channels, a few
// neighbouring output pixels at a time where their windows lie inside the operand. Memory bound.
#pragma once

#include <algorithm>

#include "kernels/cpu/conv/epilogue_simd.h"
#include "kernels/cpu/conv/global_pool_simd.h"
#include "kernels/cpu/conv/plane_pool_simd.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Columns [first, last) of outputs whose windows lie inside the operand horizontally.
struct Interior {
  int64_t first, last;
  explicit Interior(const WindowShape& w) {
    const int64_t room = w.W + w.pad_left - ((w.KW - 1) * w.dilation_w + 1);
    first = std::min(w.OW, ceil_div(std::max<int64_t>(w.pad_left, 0), w.stride_w));
    last = room < 0 ? first : std::max(first, std::min(w.OW, room / w.stride_w + 1));
  }
};

struct DepthwiseRow {
  const DepthwiseArgs& a;
  EpilogueArgs epilogue;
  const float* x;  // the image
  int64_t y0;      // row of the first tap
  TapRange taps_h;
  const float* residual;
  float* out;  // the output row
};

// Sums of V vectors of channels of one output pixel whose window may hang over the border; n: lanes of the
// last.
template <int V>
OAR_INLINE void depthwise_channels(const DepthwiseRow& r, int64_t ow, int64_t x0, const TapRange& taps_w,
                                   int64_t c, int64_t n) {
  const WindowShape& w = r.a.window;
  const int64_t C = r.a.C;
  const auto lanes = [&](int v) { return v + 1 < V ? kLanes : n; };
  Vf acc[V];
  OAR_UNROLL
  for (int v = 0; v < V; ++v) acc[v] = r.a.bias ? load_part(r.a.bias + c + v * kLanes, lanes(v)) : zero();
  for (int64_t i = r.taps_h.first; i < r.taps_h.last; ++i) {
    const float* row = r.x + ((r.y0 + i * w.dilation_h) * w.W + x0) * C + c;
    const float* filter = r.a.w + i * w.KW * C + c;
    for (int64_t j = taps_w.first; j < taps_w.last; ++j) {
      OAR_UNROLL
      for (int v = 0; v < V; ++v) {
        const int64_t at = v * kLanes;
        acc[v] = fma(load_part(row + j * w.dilation_w * C + at, lanes(v)),
                     load_part(filter + j * C + at, lanes(v)), acc[v]);
      }
    }
  }
  OAR_UNROLL
  for (int v = 0; v < V; ++v) {
    const int64_t at = ow * C + c + v * kLanes;
    if (r.residual) acc[v] = acc[v] + load_part(r.residual + at, lanes(v));
    store_part(r.out + at, hold(acc[v], r.epilogue.low(), r.epilogue.high()), lanes(v));
  }
}

// Of a small image, whose windows mostly hang over, these are most pixels: four sums at a time hide what one
// waits for.
inline void depthwise_pixel(const DepthwiseRow& r, int64_t ow) {
  const WindowShape& w = r.a.window;
  const int64_t C = r.a.C, x0 = ow * w.stride_w - w.pad_left;
  const TapRange taps_w(x0, w.KW, w.dilation_w, w.W);
  int64_t c = 0;
  for (; c + 4 * kLanes <= C; c += 4 * kLanes) depthwise_channels<4>(r, ow, x0, taps_w, c, kLanes);
  for (; c < C; c += kLanes) depthwise_channels<1>(r, ow, x0, taps_w, c, std::min<int64_t>(kLanes, C - c));
}

// T neighbouring pixels, KW and S known: each loaded column serves all the windows it lies in.
template <int T, int KW, int S>
void depthwise_tile(const DepthwiseRow& r, int64_t ow) {
  constexpr int kColumns = (T - 1) * S + KW;
  const WindowShape& w = r.a.window;
  const int64_t C = r.a.C, x0 = ow * S - w.pad_left;
  const Vf low = r.epilogue.low(), high = r.epilogue.high();
  const auto body = [&](int64_t c, auto lanes) {
    const int64_t n = lanes;
    const Vf bias = r.a.bias ? load_part(r.a.bias + c, n) : zero();
    Vf acc[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) acc[t] = bias;
    for (int64_t i = r.taps_h.first; i < r.taps_h.last; ++i) {
      const float* row = r.x + ((r.y0 + i * w.dilation_h) * w.W + x0) * C + c;
      const float* f = r.a.w + i * KW * C + c;
      Vf filter[KW];
#pragma GCC unroll 8
      for (int j = 0; j < KW; ++j) filter[j] = load_part(f + j * C, n);
#pragma GCC unroll 16
      for (int k = 0; k < kColumns; ++k) {
        const Vf column = load_part(row + k * C, n);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const int j = k - t * S;
          if (j >= 0 && j < KW) acc[t] = fma(column, filter[j], acc[t]);
        }
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      if (r.residual) acc[t] = acc[t] + load_part(r.residual + (ow + t) * C + c, n);
      store_part(r.out + (ow + t) * C + c, hold(acc[t], low, high), n);
    }
  };
  int64_t c = 0;
  for (; c + kLanes <= C; c += kLanes) body(c, std::integral_constant<int64_t, kLanes>{});
  if (c < C) body(c, C - c);
}

// Which tile serves this window; null: pixel by pixel.
using DepthwiseTileFn = void (*)(const DepthwiseRow&, int64_t);
inline constexpr int64_t kDepthwiseTile = 4;
inline DepthwiseTileFn depthwise_tile_for(const WindowShape& w) {
  if (w.dilation_w != 1) return nullptr;
  if (w.KW == 3 && w.stride_w == 1) return depthwise_tile<kDepthwiseTile, 3, 1>;
  if (w.KW == 3 && w.stride_w == 2) return depthwise_tile<kDepthwiseTile, 3, 2>;
  if (w.KW == 5 && w.stride_w == 1) return depthwise_tile<kDepthwiseTile, 5, 1>;
  if (w.KW == 5 && w.stride_w == 2) return depthwise_tile<kDepthwiseTile, 5, 2>;
  if (w.KW == 7 && w.stride_w == 1) return depthwise_tile<kDepthwiseTile, 7, 1>;
  return nullptr;
}

// Chunks are ranges of output rows.
inline int64_t depthwise_rows(const DepthwiseArgs& a) {
  const WindowShape& w = a.window;
  return rows_per_chunk(w.N * w.OH, w.OW * a.C * 4 * (w.KH + 1));
}
inline void depthwise_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const DepthwiseArgs*>(args);
  *out = {1, {row_chunks(a.window.N * a.window.OH, depthwise_rows(a))}};
}
inline void depthwise_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const DepthwiseArgs*>(args);
  const WindowShape& w = a.window;
  const int64_t per = depthwise_rows(a), last = std::min(end * per, w.N * w.OH);
  const Interior inside(w);
  const DepthwiseTileFn tile = depthwise_tile_for(w);
  for (int64_t row = begin * per; row < last; ++row) {
    const int64_t n = row / w.OH, oh = row % w.OH, y0 = oh * w.stride_h - w.pad_top;
    const int64_t line = w.OW * a.C;
    const DepthwiseRow r{a,
                         {a.epilogue, a.alpha, a.beta},
                         a.x + n * w.H * w.W * a.C,
                         y0,
                         TapRange(y0, w.KH, w.dilation_h, w.H),
                         a.residual ? a.residual + row * line : nullptr,
                         a.out + row * line};
    for (int64_t ow = 0; ow < w.OW;) {
      if (tile && ow >= inside.first && ow + kDepthwiseTile <= inside.last) {
        tile(r, ow);
        ow += kDepthwiseTile;
      } else {
        depthwise_pixel(r, ow++);
      }
    }
    if (r.epilogue.later()) apply_epilogue(r.epilogue, r.out, line);
  }
}

// --- pooling: chunks are output rows, or channel blocks of them where there are few ---

inline constexpr int64_t kPoolChannels = 256;

struct PoolWork {
  const PoolArgs& a;
  int64_t rows, parts, per;
  explicit PoolWork(const PoolArgs& args) : a(args) {
    const WindowShape& w = a.window;
    rows = w.N * w.OH;
    parts = rows < 64 ? std::max<int64_t>(1, ceil_div(a.C, kPoolChannels)) : 1;
    per = rows_per_chunk(rows * parts,
                         w.OW * (a.C / parts + 1) * 4 * std::min<int64_t>(w.KH * w.KW, w.H * w.W));
  }
};
inline void pool_plan(const void* args, int, KernelPlan* out) {
  const PoolWork w(*static_cast<const PoolArgs*>(args));
  if (w.a.planar != 0) return plane_pool_plan(w.a, out);
  if (is_global_pool(w.a)) return global_pool_plan(w.a, out);
  *out = {1, {row_chunks(w.rows * w.parts, w.per)}};
}

inline void pool_row(const PoolArgs& a, int64_t row, int64_t c0, int64_t c1) {
  const WindowShape& w = a.window;
  const int64_t C = a.C, n = row / w.OH, y0 = row % w.OH * w.stride_h - w.pad_top;
  const float* image = a.x + n * w.H * w.W * C;
  const TapRange taps_h(y0, w.KH, w.dilation_h, w.H);
  for (int64_t ow = 0; ow < w.OW; ++ow) {
    const int64_t x0 = ow * w.stride_w - w.pad_left;
    const TapRange taps_w(x0, w.KW, w.dilation_w, w.W);
    const int64_t inside = taps_h.count() * taps_w.count();
    const int64_t count = a.count_pads ? padded_taps(y0, w.KH, w.dilation_h, w.H, w.pad_bottom) *
                                             padded_taps(x0, w.KW, w.dilation_w, w.W, w.pad_right)
                                       : inside;
    float* out = a.out + (row * w.OW + ow) * C;
    const auto at = [&](int64_t i, int64_t j) {
      return image + ((y0 + i * w.dilation_h) * w.W + x0 + j * w.dilation_w) * C;
    };
    if (a.op == PoolOp::kMax) {
      for_lanes(c1 - c0, [&](int64_t k, int64_t lanes) {
        Vf best = set1(-INFINITY);
        for (int64_t i = taps_h.first; i < taps_h.last; ++i) {
          for (int64_t j = taps_w.first; j < taps_w.last; ++j) {
            const Vf v = load_part(at(i, j) + c0 + k, lanes);
            best = select(is_nan(v), v, max(v, best));  // max() gives its second operand on NaN
          }
        }
        store_part(out + c0 + k, best, lanes);
      });
      continue;
    }
    // A row's sum first, then the sum of rows: short chains for windows as large as the image.
    const Vf scale = set1(count > 0 ? 1.f / static_cast<float>(count) : 0.f);
    for_lanes(c1 - c0, [&](int64_t k, int64_t lanes) {
      Vf sum = zero();
      for (int64_t i = taps_h.first; i < taps_h.last; ++i) {
        Vf line = zero();
        for (int64_t j = taps_w.first; j < taps_w.last; ++j)
          line = line + load_part(at(i, j) + c0 + k, lanes);
        sum = sum + line;
      }
      store_part(out + c0 + k, sum * scale, lanes);
    });
  }
}

inline void pool_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const PoolWork w(*static_cast<const PoolArgs*>(args));
  if (w.a.planar != 0) return plane_pool_run(w.a, begin, end, static_cast<float*>(scratch.worker));
  if (is_global_pool(w.a))
    return global_pool_run(w.a, phase, begin, end, static_cast<float*>(scratch.shared));
  const int64_t last = std::min(end * w.per, w.rows * w.parts);
  for (int64_t u = begin * w.per; u < last; ++u) {
    const int64_t part = u % w.parts;
    // Parts begin at whole vectors.
    const int64_t vectors = ceil_div(w.a.C, kLanes);
    pool_row(w.a, u / w.parts, vectors * part / w.parts * kLanes,
             std::min(w.a.C, vectors * (part + 1) / w.parts * kLanes));
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
