// Pooling over whole images for one instruction set: the case of PoolArgs (kernels/conv.h) where one window
// covers an image. Bands of pixels are reduced beside each other, so that several workers share an image and
// chains of additions stay short; then the bands are. How many bands there are follows from the sizes alone.
// Memory bound.
#pragma once

#include <algorithm>

#include "kernels/conv.h"
#include "kernels/cpu/simd.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline bool is_global_pool(const PoolArgs& a) {
  const WindowShape& w = a.window;
  return w.OH == 1 && w.OW == 1 && w.KH == w.H && w.KW == w.W && w.dilation_h == 1 && w.dilation_w == 1 &&
         w.pad_top == 0 && w.pad_left == 0 && w.H > 0 && w.W > 0 &&
         !(a.count_pads && (w.pad_bottom | w.pad_right) != 0);
}

// Bands of one image: each worth a chunk, at most 64.
inline int64_t global_pool_bands(const PoolArgs& a) {
  const int64_t pixels = a.window.H * a.window.W;
  const int64_t bytes = pixels * a.C * static_cast<int64_t>(sizeof(float));
  return std::clamp<int64_t>(bytes / (2 * kMinChunkBytes), 1, std::min<int64_t>(64, pixels));
}

inline void global_pool_plan(const PoolArgs& a, KernelPlan* out) {
  const int64_t bands = global_pool_bands(a);
  *out = {1, {a.window.N * bands}};
  if (bands == 1) return;
  out->phases = 2;
  out->chunks[1] = a.window.N;
  out->shared_scratch = static_cast<size_t>(a.window.N * bands * a.C) * sizeof(float);
}

// Reduces rows [0, n) of C channels, `row` apart, to one; four neighbours at a time.
template <bool kMax>
void reduce_pixels(const float* x, int64_t n, int64_t row, int64_t C, float scale, float* out) {
  const auto join = [](Vf best, Vf v) {
    if constexpr (kMax) return select(is_nan(v), v, max(v, best));  // max() gives its second operand on NaN
    else return best + v;
  };
  const Vf start = kMax ? set1(-INFINITY) : zero();
  const auto body = [&](int64_t c, auto lanes) {
    Vf acc[4] = {start, start, start, start};
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) acc[k] = join(acc[k], load_part(x + (i + k) * row + c, lanes));
    }
    for (; i < n; ++i) acc[0] = join(acc[0], load_part(x + i * row + c, lanes));
    const Vf all = join(join(acc[0], acc[1]), join(acc[2], acc[3]));
    store_part(out + c, kMax ? all : all * set1(scale), lanes);
  };
  int64_t c = 0;
  for (; c + kLanes <= C; c += kLanes) body(c, std::integral_constant<int64_t, kLanes>{});
  if (c < C) body(c, C - c);
}

inline void global_pool_run(const PoolArgs& a, int phase, int64_t begin, int64_t end, float* partial) {
  const int64_t bands = global_pool_bands(a), pixels = a.window.H * a.window.W;
  const auto reduce = [&](const float* x, int64_t n, float scale, float* out) {
    if (a.op == PoolOp::kMax) reduce_pixels<true>(x, n, a.C, a.C, scale, out);
    else reduce_pixels<false>(x, n, a.C, a.C, scale, out);
  };
  const float mean = 1.f / static_cast<float>(pixels);
  for (int64_t u = begin; u < end; ++u) {
    if (phase == 1) {
      reduce(partial + u * bands * a.C, bands, mean, a.out + u * a.C);
      continue;
    }
    const int64_t band = u % bands, from = pixels * band / bands, to = pixels * (band + 1) / bands;
    const float* x = a.x + (u / bands * pixels + from) * a.C;
    if (bands == 1) reduce(x, to - from, mean, a.out + u * a.C);
    else reduce(x, to - from, 1.f, partial + u * a.C);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
