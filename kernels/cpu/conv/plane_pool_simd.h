// Pooling over planes (N, C, H, W) for one instruction set: PoolArgs (kernels/conv.h) where `planar` is set.
// A window's rows are joined element by element into one row, with pads on either side. With a stride s that
// row is dealt out into s of every s-th element, so that each column of the window is a load. Memory bound.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/conv.h"
#include "kernels/cpu/simd.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

// First and one past the last tap of a window beginning at `start` that lie in [0, extent).
struct TapRange {
  int64_t first, last;
  OAR_INLINE TapRange(int64_t start, int64_t taps, int64_t dilation, int64_t extent) {
    first = start < 0 ? ceil_div(-start, dilation) : 0;
    last = start >= extent ? 0 : std::min(taps, ceil_div(extent - start, dilation));
    first = std::min(first, last);
  }
  int64_t count() const { return last - first; }
};

// Elements of a window from `start` that lie in the padded operand.
OAR_INLINE int64_t padded_taps(int64_t start, int64_t taps, int64_t dilation, int64_t extent,
                               int64_t end_pad) {
  return std::max<int64_t>(0, std::min(taps, ceil_div(extent + end_pad - start, dilation)));
}

// Elements of a joined row with its pads, a multiple of the stride.
inline int64_t joined_row(const WindowShape& w) {
  const int64_t reach = (w.OW - 1) * w.stride_w + (w.KW - 1) * w.dilation_w + 1;
  return ceil_div(std::max(w.pad_left + w.W, reach), w.stride_w) * w.stride_w;
}

// Chunks are ranges of output rows.
inline int64_t plane_pool_rows(const PoolArgs& a) {
  const WindowShape& w = a.window;
  const auto bytes = static_cast<int64_t>(sizeof(float)) * (std::min(w.KH, w.H) * w.W + w.OW);
  return rows_per_chunk(w.N * a.C * w.OH, bytes);
}
inline void plane_pool_plan(const PoolArgs& a, KernelPlan* out) {
  const WindowShape& w = a.window;
  *out = {1, {row_chunks(w.N * a.C * w.OH, plane_pool_rows(a))}};
  out->worker_scratch = static_cast<size_t>(2 * joined_row(w) + w.OW) * sizeof(float);
}

// The output rows of one chunk.
template <bool kMax>
class PlanePool {
 public:
  // `scratch`: as the plan says.
  PlanePool(const PoolArgs& a, float* scratch)
      : a_(a), row_(scratch), dealt_(row_ + joined_row(a.window)), columns_(dealt_ + joined_row(a.window)) {
    const WindowShape& w = a.window;
    std::fill_n(row_, joined_row(w), kNeutral);
    for (int64_t o = 0; !kMax && o < w.OW; ++o)
      columns_[o] = counted(o * w.stride_w - w.pad_left, w.KW, w.dilation_w, w.W, w.pad_right);
  }

  void run(int64_t row) {
    const WindowShape& w = a_.window;
    const int64_t y0 = row % w.OH * w.stride_h - w.pad_top;
    join_rows(a_.x + row / w.OH * w.H * w.W, y0);
    const float* const from = deal();
    const int64_t stride = w.stride_w, each = joined_row(w) / stride;
    const Vf rows = set1(kMax ? 0 : counted(y0, w.KH, w.dilation_h, w.H, w.pad_bottom));
    float* const out = a_.out + row * w.OW;
    // Tap j begins in part j dilation % stride: the next one so many parts on, and back by all where they
    // end.
    const int64_t parts = w.dilation_w % stride, on = parts * each + w.dilation_w / stride;
    const int64_t back = stride * each - 1;
    for_lanes(w.OW, [&](int64_t o, int64_t lanes) {
      Vf all = set1(kNeutral);
      const float* tap = from + o;
      for (int64_t j = 0, part = 0; j < w.KW; ++j) {
        all = join(all, load_part(tap, lanes));
        part += parts, tap += on;
        if (part >= stride) part -= stride, tap -= back;
      }
      if constexpr (!kMax) {
        const Vf count = rows * load_part(columns_ + o, lanes);
        all = select(zero() < count, all / count, zero());
      }
      store_part(out + o, all, lanes);
    });
  }

 private:
  static constexpr float kNeutral = kMax ? -INFINITY : 0.f;

  OAR_INLINE static Vf join(Vf all, Vf v) {
    if constexpr (kMax) return select(is_nan(v), v, max(v, all));  // max() gives its second operand on NaN
    else return all + v;
  }
  // Elements of a window along one axis that a mean counts.
  float counted(int64_t start, int64_t taps, int64_t dilation, int64_t extent, int64_t end_pad) const {
    return static_cast<float>(a_.count_pads != 0 ? padded_taps(start, taps, dilation, extent, end_pad)
                                                 : TapRange(start, taps, dilation, extent).count());
  }

  void join_rows(const float* plane, int64_t y0) {
    const WindowShape& w = a_.window;
    const TapRange taps(y0, w.KH, w.dilation_h, w.H);
    float* const own = row_ + w.pad_left;  // pads stay as they are
    for_lanes(w.W, [&](int64_t k, int64_t lanes) {
      Vf all = set1(kNeutral);
      for (int64_t i = taps.first; i < taps.last; ++i)
        all = join(all, load_part(plane + (y0 + i * w.dilation_h) * w.W + k, lanes));
      store_part(own + k, all, lanes);
    });
  }
  // dealt[p][k] = row[k stride + p]
  const float* deal() {
    const WindowShape& w = a_.window;
    const int64_t stride = w.stride_w, each = joined_row(w) / stride;
    if (stride == 1) return row_;
    const float* __restrict const row = row_;
    float* __restrict const dealt = dealt_;
    if (stride == 2) {
      for (int64_t k = 0; k < each; ++k) dealt[k] = row[2 * k], dealt[each + k] = row[2 * k + 1];
    } else {
      for (int64_t p = 0; p < stride; ++p)
        for (int64_t k = 0; k < each; ++k) dealt[p * each + k] = row[k * stride + p];
    }
    return dealt;
  }

  const PoolArgs& a_;
  float *row_, *dealt_, *columns_;
};

inline void plane_pool_run(const PoolArgs& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t per = plane_pool_rows(a), last = std::min(end * per, a.window.N * a.C * a.window.OH);
  const auto run = [&](auto pool) {
    for (int64_t r = begin * per; r < last; ++r) pool.run(r);
  };
  if (a.op == PoolOp::kMax) run(PlanePool<true>(a, scratch));
  else run(PlanePool<false>(a, scratch));
}

}  // namespace oar::OAR_SIMD_NAMESPACE
