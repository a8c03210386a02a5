// Attention within segments of packed rows for one instruction set (SegmentAttentionArgs).
//
// A chunk is some rows of one head. The keys of a segment it meets are packed into panels of as many keys as
// a vector has lanes, the values behind each other. Then come tiles of rows: all scores of a tile, its
// softmax, its weighted sum of values. Every row adds in the same order, whatever tile or chunk it is in.
#pragma once

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/cpu/unrolled.h"
#include "kernels/cpu/vmath.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Of a chunk: many enough that packing a long segment is a small part of it.
inline constexpr int64_t kSegmentRows = 128;
// Rows of a tile: with two vectors each, as many sums as registers allow.
inline constexpr int64_t kSegmentTile = kLanes == 16 ? 8 : 4;

OAR_INLINE int64_t whole_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

class SegmentTiles {
 public:
  static size_t scratch_floats(const SegmentAttentionArgs& a) {
    const int64_t keys = whole_lanes(a.T);
    return static_cast<size_t>(keys * a.D + keys * whole_lanes(a.D) + kSegmentTile * keys);
  }
  SegmentTiles(const SegmentAttentionArgs& a, float* scratch)
      : a_(a),
        width_(whole_lanes(a.D)),
        keys_(scratch),
        values_(keys_ + whole_lanes(a.T) * a.D),
        scores_(values_ + whole_lanes(a.T) * width_) {}

  // Rows [from, to) of head h, all in the segment of rows [first, last).
  void run(int64_t h, int64_t first, int64_t last, int64_t from, int64_t to) {
    n_ = last - first, ld_ = whole_lanes(n_);
    const int64_t kh = h / (a_.H / a_.K);
    pack(a_.k + first * a_.ldk + kh * a_.D, a_.v + first * a_.ldv + kh * a_.D);
    for (int64_t t = from; t < to; t += kSegmentTile) {
      const float* const q = a_.q + t * a_.ldq + h * a_.D;
      float* const out = a_.out + t * a_.ldo + h * a_.D;
      const int64_t rows = std::min(kSegmentTile, to - t);
      if (rows == kSegmentTile) tile<kSegmentTile>(q, out);
      else
        for (int64_t r = 0; r < rows; ++r) tile<1>(q + r * a_.ldq, out + r * a_.ldo);
    }
  }

 private:
  void pack(const float* k, const float* v) {
    for (int64_t s = 0; s < n_; s += kLanes, k += kLanes * a_.ldk) {
      float* const to = keys_ + s * a_.D;
      const int64_t keys = std::min<int64_t>(kLanes, n_ - s);
      for (int64_t d = 0; d < a_.D; ++d) {
        for (int64_t lane = 0; lane < keys; ++lane) to[d * kLanes + lane] = k[lane * a_.ldk + d];
        for (int64_t lane = keys; lane < kLanes; ++lane) to[d * kLanes + lane] = 0;
      }
    }
    for (int64_t s = 0; s < n_; ++s)
      for_lanes(a_.D, [&](int64_t d, int64_t lanes) {
        store(values_ + s * width_ + d, load_part(v + s * a_.ldv + d, lanes));
      });
  }

  template <int R>
  void tile(const float* q, float* out) {
    int64_t s = 0;
    for (; s + kLanes < n_; s += 2 * kLanes) products<R, 2>(q, s);
    if (s < n_) products<R, 1>(q, s);
    float inverse[R];
    for (int r = 0; r < R; ++r) inverse[r] = soften(scores_ + r * ld_);
    int64_t d = 0;
    for (; d + kLanes < a_.D; d += 2 * kLanes) sums<R, 2>(inverse, d, out);
    if (d < a_.D) sums<R, 1>(inverse, d, out);
  }

  // Scores of R rows with V panels of keys from s on.
  template <int R, int V>
  OAR_INLINE void products(const float* q, int64_t s) {
    const float* const k = keys_ + s * a_.D;
    Vf sum[R][V];
    unrolled<R>([&](auto r)
                    OAR_INLINE_BODY { unrolled<V>([&](auto v) OAR_INLINE_BODY { sum[r][v] = zero(); }); });
    for (int64_t d = 0; d < a_.D; ++d) {
      Vf key[V];
      unrolled<V>([&](auto v) OAR_INLINE_BODY { key[v] = load(k + (v * a_.D + d) * kLanes); });
      unrolled<R>([&](auto r) OAR_INLINE_BODY {
        const Vf x = set1(q[r * a_.ldq + d]);
        unrolled<V>([&](auto v) OAR_INLINE_BODY { sum[r][v] = fma(x, key[v], sum[r][v]); });
      });
    }
    unrolled<R>([&](auto r) OAR_INLINE_BODY {
      unrolled<V>([&](auto v) OAR_INLINE_BODY { store(scores_ + r * ld_ + s + v * kLanes, sum[r][v]); });
    });
  }

  // Exponentials of one row's scores, in place; returns 1 / their sum.
  OAR_INLINE float soften(float* row) const {
    const Vf scale = set1(a_.scale);
    Vf top = set1(-INFINITY);
    for_lanes(n_, [&](int64_t s, int64_t lanes) {
      const Vf x = load(row + s) * scale;
      store(row + s, x);
      if (lanes == kLanes) top = max(x, top);
    });
    float most = reduce_max(top);
    for (int64_t s = n_ / kLanes * kLanes; s < n_; ++s) most = row[s] > most ? row[s] : most;
    const Vf shift = set1(most);
    Vf sum = zero();
    for_lanes(n_, [&](int64_t s, int64_t lanes) {
      store(row + s, exp(load(row + s) - shift));
      sum = sum + load_part(row + s, lanes);
    });
    return 1.f / reduce_add(sum);
  }

  // V vectors of R rows of the result, from element d on.
  template <int R, int V>
  OAR_INLINE void sums(const float* inverse, int64_t d, float* out) {
    Vf sum[R][V];
    unrolled<R>([&](auto r)
                    OAR_INLINE_BODY { unrolled<V>([&](auto v) OAR_INLINE_BODY { sum[r][v] = zero(); }); });
    for (int64_t s = 0; s < n_; ++s) {
      Vf value[V];
      unrolled<V>([&](auto v) OAR_INLINE_BODY { value[v] = load(values_ + s * width_ + d + v * kLanes); });
      unrolled<R>([&](auto r) OAR_INLINE_BODY {
        const Vf p = set1(scores_[r * ld_ + s]);
        unrolled<V>([&](auto v) OAR_INLINE_BODY { sum[r][v] = fma(p, value[v], sum[r][v]); });
      });
    }
    unrolled<R>([&](auto r) OAR_INLINE_BODY {
      unrolled<V>([&](auto v) OAR_INLINE_BODY {
        const int64_t at = d + v * kLanes;
        store_part(out + r * a_.ldo + at, sum[r][v] * set1(inverse[r]), std::min<int64_t>(kLanes, a_.D - at));
      });
    });
  }

  const SegmentAttentionArgs& a_;
  const int64_t width_;  // of a packed value
  float *const keys_, *const values_, *const scores_;
  int64_t n_ = 0, ld_ = 0;  // rows of the segment; floats of a row of scores
};

OAR_INLINE int64_t segment_blocks(const SegmentAttentionArgs& a) {
  return (a.T + kSegmentRows - 1) / kSegmentRows;
}
inline void segment_attention_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const SegmentAttentionArgs*>(args);
  *out = {1, {segment_blocks(a) * a.H}};
  out->worker_scratch = SegmentTiles::scratch_floats(a) * sizeof(float);
}
inline void segment_attention_run(const void* args, int, int64_t begin, int64_t end,
                                  const KernelScratch& scratch) {
  const auto& a = *static_cast<const SegmentAttentionArgs*>(args);
  SegmentTiles tiles(a, static_cast<float*>(scratch.worker));
  for (int64_t c = begin; c < end; ++c) {
    const int64_t h = c % a.H, stop = std::min(a.T, (c / a.H + 1) * kSegmentRows);
    for (int64_t t = c / a.H * kSegmentRows; t < stop;) {
      int64_t first = t, last = t + 1;
      while (first > 0 && a.segments[first - 1] == a.segments[t]) --first;
      while (last < a.T && a.segments[last] == a.segments[t]) ++last;
      tiles.run(h, first, last, t, std::min(last, stop));
      t = last;
    }
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
