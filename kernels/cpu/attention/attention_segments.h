// Attention within segments of packed rows for one instruction set (SegmentAttentionArgs).
//
// A chunk is some rows of one head. The keys of a segment it meets are packed into panels of as many keys as
// a vector has lanes, the values behind each other. Then come tiles of rows: all scores of a tile, its
// softmax, its weighted sum of values. Every row adds in the same order, whatever tile or chunk it is in.
//
// With a window a chunk meets the keys that any of its rows sees, from a whole lane of the segment on; what a
// row does not see has a weight of 0, which changes no sum.
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/attention/attention_tiles.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Of a chunk: many enough that packing a long segment is a small part of it.
inline constexpr int64_t kSegmentRows = 128;

class SegmentTiles {
 public:
  static size_t scratch_floats(const SegmentAttentionArgs& a) {
    const int64_t keys = whole_lanes(a.T);
    return static_cast<size_t>(keys * a.D + keys * whole_lanes(a.D) + kAttentionTile * keys);
  }
  SegmentTiles(const SegmentAttentionArgs& a, float* scratch)
      : a_(a),
        width_(whole_lanes(a.D)),
        keys_(scratch),
        values_(keys_ + whole_lanes(a.T) * a.D),
        scores_(values_ + whole_lanes(a.T) * width_) {}

  // Rows [from, to) of head h, all in the segment of rows [first, last).
  void run(int64_t h, int64_t first, int64_t last, int64_t from, int64_t to) {
    if (a_.window > 0) {
      int64_t seen = first;
      while (!sees(from, seen)) ++seen;
      first += (seen - first) / kLanes * kLanes;
      while (!sees(to - 1, last - 1)) --last;
    }
    n_ = last - first, ld_ = whole_lanes(n_), first_ = first;
    const int64_t kh = h / (a_.H / a_.K);
    pack_panels(a_.k + first * a_.ldk + kh * a_.D, a_.ldk, n_, a_.D, keys_);
    pack_rows(a_.v + first * a_.ldv + kh * a_.D, a_.ldv, n_, a_.D, values_);
    for (int64_t t = from; t < to; t += kAttentionTile) {
      const float* const q = a_.q + t * a_.ldq + h * a_.D;
      float* const out = a_.out + t * a_.ldo + h * a_.D;
      const int64_t rows = std::min(kAttentionTile, to - t);
      if (rows == kAttentionTile) tile<kAttentionTile>(t, q, out);
      else
        for (int64_t r = 0; r < rows; ++r) tile<1>(t + r, q + r * a_.ldq, out + r * a_.ldo);
    }
  }

 private:
  bool sees(int64_t t, int64_t s) const {
    const int64_t away = int64_t{a_.positions[t]} - a_.positions[s];
    return away < a_.window && -away < a_.window;
  }
  // Scores of row t whose keys the window hides.
  void hide(int64_t t, float* row) const {
    int64_t from = 0, to = n_;
    while (!sees(t, first_ + from)) row[from++] = -INFINITY;
    while (!sees(t, first_ + to - 1)) row[--to] = -INFINITY;
  }
  template <int R>
  void tile(int64_t t, const float* q, float* out) {
    products<R>(q, a_.ldq, a_.D, keys_, n_, scores_, ld_);
    float inverse[R];
    const Vf scale = set1(a_.scale);
    for (int r = 0; r < R; ++r) {
      float* const row = scores_ + r * ld_;
      for (int64_t s = 0; s < n_; s += kLanes) store(row + s, load(row + s) * scale);
      if (a_.window > 0) hide(t + r, row);
      inverse[r] = 1.f / exponentials(row, n_);
    }
    weighted_sums<R, false>(scores_, ld_, n_, values_, width_, a_.D, inverse, out, a_.ldo);
  }

  const SegmentAttentionArgs& a_;
  const int64_t width_;  // of a packed value
  float *const keys_, *const values_, *const scores_;
  int64_t n_ = 0, ld_ = 0;  // keys that are met; floats of a row of scores
  int64_t first_ = 0;       // of these keys
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
