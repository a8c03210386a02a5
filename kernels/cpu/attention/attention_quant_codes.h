// Attention over the quantized part of a context in integers: what the "codes engines" of
// attention_quant_simd.h for int8 and int4 share, which is all but the two products.
//
// Nothing is decoded. With a query as s_q q (int8, one scale per query and head), a key as s k + m and a
// page's mean key as s_u u:
//   logit = s_q (s (k . q) + m sum(q) + s_u (u . q))        dot products in integers
//   p . V = (s' / 32767) (integers w' . v) + sum(p m)       w' = round(32767 p s / s'), s' the largest scale
//                                                           of a value that is seen in the span
// so that of a probability 15 bits are kept relative to the largest in its span, and a token's scales are
// touched once per query head. Integer sums do not depend on their order: whatever shares a tile, and
// whichever engine adds, a row gets the same bits.
//
// The softmax decides the speed (two vector operations of 16 tokens per cycle, and a product of a page needs
// less than 64 tokens x 4 rows do here), hence: an engine leaves its dot products as they are; scales and
// maximum take one pass, exponential and rounding another, with s_q inside the exponent's fused multiply-add
// and s / s' multiplied once per span for all rows.
#pragma once

#include "kernels/cpu/attention/attention_ahead.h"
#include "kernels/cpu/attention/attention_simd.h"
#include "kernels/cpu/attention/int_dot.h"
#include "kernels/kv_quant.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Pages of one span of one head, panel by panel.
struct QuantPanels {
  int64_t lo = 0, hi = 0;         // panels [lo, hi) of the span are set
  const char* head[kSpanPanels];  // the head's bytes inside the page
  int64_t index[kSpanPanels];     // of the panel inside its page
};

// What a codes engine does but for the products, and what it keeps per tile besides what is in TileData.
class CodesEngine {
 public:
  // Rows are padded for engines that read more of them than there are.
  static size_t scratch_bytes(int64_t rows, int64_t D) {
    rows += kRowPadding;
    const int64_t words = 6 * kSpan + D + rows * (3 + kSpanPanels + D + D / 4 * kFactorWords + kProbRow) +
                          kSpan * D / 8 + kLanes;
    return static_cast<size_t>((words + 15) / 16 * 16) * sizeof(float);
  }
  CodesEngine(const QuantKvShape& shape, int64_t rows, void* memory)
      : layout_(shape),
        D_(shape.head_dim),
        key_bytes_(layout_.key_nibbles ? 8 * D_ : 16 * D_),
        value_bytes_(layout_.value_panel_bytes()),
        rows_(rows) {
    rows += kRowPadding;
    probs_ = static_cast<int32_t*>(memory);  // aligned to lines
    q_ = probs_ + rows * kProbRow;
    key_scale_ = reinterpret_cast<float*>(q_ + rows * (D_ / 4 * kFactorWords));
    key_minimum_ = key_scale_ + kSpan;
    value_scale_ = key_minimum_ + kSpan;
    value_minimum_ = value_scale_ + kSpan;
    seen_factor_ = value_minimum_ + kSpan;
    seen_minimum_ = seen_factor_ + kSpan;
    mean_ = seen_minimum_ + kSpan;
    q_scale_ = mean_ + D_;
    q_sum_ = q_scale_ + rows;
    row_scale_ = q_sum_ + rows;
    mean_logit_ = row_scale_ + rows;
    q_codes_ = mean_logit_ + rows * kSpanPanels;
    lines_ = reinterpret_cast<char*>(q_codes_ + rows * D_);
  }

  const QuantKvLayout& layout() const { return layout_; }

  // Row r's query in int8. A NaN or infinity makes the scale NaN, which every logit then is. The scale is
  // positive, so that the largest dot product belongs to the largest logit; not zero, so that minus infinity
  // times it remains that.
  void prepare(int64_t r, const float* q, float scale) {
    Vf largest = zero(), sum = zero();
    for_lanes(D_, [&](int64_t i, int64_t n) {
      const Vf x = load_part(q + i, n);
      largest = max(abs(x), largest);
      sum = sum + (x - x);
    });
    const float most = reduce_max(largest), sign = scale < 0 ? -1.f : 1.f;
    const float inverse = most > 0x1p-100f ? sign * 127.f / most : 0.f, step = most / 127.f * (sign * scale);
    q_scale_[r] = (step < 0x1p-120f ? 0x1p-120f : step) + reduce_add(sum);
    float* codes = q_codes_ + r * D_;
    alignas(64) int32_t integers[kMaxHeadDim + kLanes];
    Vf total = zero();
    for_lanes(D_, [&](int64_t i, int64_t n) {
      const Vf x = load_part(q + i, n) * set1(inverse);
      const Vi code = to_int(select(is_nan(x), zero(), x));  // its scale says so
      memcpy(integers + i, &code, sizeof code);
      store_part(codes + i, to_float(code), n);
      total = total + to_float(code);  // exact
    });
    store_factors(integers, D_, q_ + r * (D_ / 4) * kFactorWords);
    q_sum_[r] = reduce_add(total);
  }

 protected:
  static constexpr int64_t kRowPadding = 16;
  static constexpr int64_t kProbRow = kSpan / kProbBlock * kProbWords;

  // Rows that see any of the span: a window's begin ascends with the row.
  static Range seeing(const TileData& t, int64_t span) {
    int64_t end = t.rows;
    while (t.in_span(end - 1, span).lo >= kSpan) end -= t.p.group;
    return {0, end};
  }
  // Probabilities of 64 tokens: [block][row].
  int32_t* probs(int64_t r, int64_t block) const { return probs_ + (block * rows_ + r) * kProbWords; }

  void load_scales(const QuantPanels& panels) {
    for (int64_t i = panels.lo; i < panels.hi; ++i) {
      const int64_t at = panels.index[i] * kKvPanelTokens;
      const auto widen = [&](int64_t offset, float* out) __attribute__((always_inline)) {
        const auto* x = reinterpret_cast<const f16*>(panels.head[i] + offset) + at;
        for (int64_t j = 0; j < kKvPanelTokens; j += kLanes) store(out + i * kKvPanelTokens + j, load(x + j));
      };
      widen(layout_.key_scales, key_scale_);
      widen(layout_.value_scales, value_scale_);
      if (layout_.has_key_minima) widen(layout_.key_minima, key_minimum_);
      for (int64_t j = 0; j < kKvPanelTokens && layout_.mean; j += kLanes) {
        const int64_t k = i * kKvPanelTokens + j;
        store(key_minimum_ + k, load(key_scale_ + k) * set1(kv_mean_minimum(1.f)));
      }
      if (layout_.value_nibbles) widen(layout_.value_minima, value_minimum_);
    }
  }

  // A page's mean key against each query. Products and sums of such integers (at most 2^23) are exact in f32.
  void mean_logits(const QuantPanels& panels, Range rows) {
    const char* head = nullptr;
    float scale = 0;
    for (int64_t i = panels.lo; i < panels.hi; ++i) {
      const bool same = head == panels.head[i];
      head = panels.head[i];
      if (!same) {
        memcpy(&scale, head + layout_.mu_scale, sizeof scale);
        const auto* codes = reinterpret_cast<const int8_t*>(head + layout_.mu);
        for (int64_t d = 0; d < D_; ++d) mean_[d] = codes[d];
      }
      for (int64_t r = rows.lo; r < rows.hi; ++r) {
        float* out = mean_logit_ + r * kSpanPanels + i;
        if (same) {
          *out = out[-1];
          continue;
        }
        Vf sum = zero();
        for_lanes(D_, [&](int64_t d, int64_t n) {
          sum = fma(load_part(mean_ + d, n), load_part(q_codes_ + r * D_ + d, n), sum);
        });
        *out = scale * reduce_add(sum);
      }
    }
  }

  // What the softmax multiplies a row's probabilities with: zero for tokens it does not see, to whole blocks.
  // Rows that see the same share it.
  OAR_INLINE void see(const TileData& t, int64_t r, int64_t span, const QuantPanels& panels) {
    Range range = t.in_span(r, span);
    if (range.lo > range.hi) range.lo = range.hi;  // a window that has passed all of it
    if (range.lo != seen_.lo || range.hi != seen_.hi) see(range, panels);
  }
  void see(Range range, const QuantPanels& panels) {
    seen_ = range;
    block_begin_ = panels.lo * kKvPanelTokens / kProbBlock;
    block_end_ = ceil_div(panels.hi * kKvPanelTokens, kProbBlock);
    const int64_t begin = block_begin_ * kProbBlock, end = block_end_ * kProbBlock;
    const bool all = range.lo <= begin && range.hi >= end;
    const auto only_seen = [&](const float* from, float* to) {
      if (all) return from;
      for (int64_t i = begin; i < range.lo; ++i) to[i] = 0.f;
      if (range.hi > range.lo) {
        memcpy(to + range.lo, from + range.lo, static_cast<size_t>(range.hi - range.lo) * sizeof(float));
      }
      for (int64_t i = range.hi > range.lo ? range.hi : range.lo; i < end; ++i) to[i] = 0.f;
      return static_cast<const float*>(to);
    };
    const float* scale = only_seen(value_scale_, seen_factor_);
    if (layout_.value_nibbles) seen_minima_ = only_seen(value_minimum_, seen_minimum_);
    Vf largest = zero(), bad = zero();
    for (int64_t i = begin; i < end; i += kLanes) {
      const Vf s = load(scale + i);
      largest = max(s, largest);
      bad = bad + (s - s);
    }
    const float most = reduce_max(largest);
    seen_scale_ = most / 32767.f;
    seen_bad_ = reduce_add(bad);  // NaN where a scale that is seen is not finite, else 0
    const Vf inverse = set1(most > 0 ? 32767.f / most : 0.f);
    for (int64_t i = begin; i < end; i += kLanes) store(seen_factor_ + i, load(scale + i) * inverse);
  }

  // ---- softmax relative to the span's largest logit. Takes the dot products in t.logits (integers); leaves
  // the integer probabilities, and in t.acc the part of the result that is the same for all dims: of minima,
  // or NaN when a scale that is seen is not finite.

  void softmax(TileData& t, Range rows, int64_t span, const QuantPanels& panels) {
    seen_ = {-1, -1};
    const float softcap = t.a.softcap;
    for (int64_t first = rows.lo; first < rows.hi; first += kRowsAtOnce) {
      const int64_t end = first + kRowsAtOnce < rows.hi ? first + kRowsAtOnce : rows.hi;
      // One pass over several rows, then the other: a row's maximum takes longer to come out of its last
      // vectors than the next row's first pass takes.
      for (int64_t r = first; r < end; ++r) {
        see(t, r, span, panels);
        float* x = t.logits + r * kLogitStride;
        float most = !layout_.key_nibbles ? scale_logits<false, false>(r, x)
                     : layout_.mean       ? scale_logits<true, true>(r, x)
                                          : scale_logits<true, false>(r, x);
        if (softcap > 0) most = cap_logits(x, set1(q_scale_[r]), set1(softcap * kLog2E));
        t.state[r].max = most;
      }
      for (int64_t r = first; r < end; ++r) {
        see(t, r, span, panels);
        const float factor = softcap > 0 ? 1.f : q_scale_[r];
        float most = t.state[r].max * factor;
        // No exponent may come out above zero, whatever the rounding of the product: a probability of more
        // than one would not fit its 15 bits.
        if (most != -INFINITY) most += std::fabs(most) * 0x1p-22f;
        const Vf negative = set1(most == -INFINITY ? 0.f : -most);
        layout_.value_nibbles ? weigh<true>(t, r, set1(factor), negative)
                              : weigh<false>(t, r, set1(factor), negative);
        t.state[r].max = most;
      }
    }
  }
  // From the sums of p' v, as they come from the values, to acc.
  OAR_INLINE Vf scaled(Vi sum, int64_t r, float constant) const {
    return fma(to_float(sum), set1(row_scale_[r]), set1(constant));
  }

  // ---- addresses

  const char* key_panel(const QuantPanels& panels, int64_t i) const {
    return panels.head[i] + panels.index[i] * key_bytes_;
  }
  const char* value_panel(const QuantPanels& panels, int64_t i) const {
    return panels.head[i] + layout_.value_codes + panels.index[i] * value_bytes_;
  }
  // A panel of values as its products read it: of 3-bit codes the lines of nibbles that widen_values() made.
  const char* value_lines(const QuantPanels& panels, int64_t i) const {
    return layout_.value_threes ? lines_ + i * 8 * D_ : value_panel(panels, i);
  }
  // Once per span for all rows of a tile.
  void widen_values(const QuantPanels& panels) {
    if (!layout_.value_threes) return;
    const Vi two = set1_int(0x33333333), upper = set1_int(0x44444444);
    for (int64_t i = panels.lo; i < panels.hi; ++i) {
      const char* from = value_panel(panels, i);
      char* to = lines_ + i * 8 * D_;
      for_lanes(
          D_ / 2, [&](int64_t d, int64_t n) __attribute__((always_inline)) {
            const auto load = [&](int64_t at) __attribute__((always_inline)) {
              return bits(load_part(reinterpret_cast<const float*>(from + at * 4), n));
            };
            const auto put = [&](Vi x, int64_t at) __attribute__((always_inline)) {
              store_part(reinterpret_cast<float*>(to + at * 4), from_bits(x), n);
            };
            const int64_t e = D_ / 2 + d;
            const Vi u = load(D_ + d), a = load(d), b = load(e);
            put((a & two) | (shift_left<2>(u) & upper), d);
            put((shift_right<2>(a) & two) | (shift_left<1>(u) & upper), D_ + d);
            put((b & two) | (u & upper), e);
            put((shift_right<2>(b) & two) | (shift_right<1>(u) & upper), D_ + e);
          });
    }
  }
  // Page after page in the order of memory.
  void look_ahead(const QuantPanels& next, int64_t steps) {
    ahead_.clear();
    for (int64_t i = next.lo; i < next.hi;) {
      int64_t end = i + 1;
      while (end < next.hi && next.head[end] == next.head[i]) ++end;
      if ((end - i) * kKvPanelTokens == layout_.page_tokens) {
        ahead_.add(next.head[i], layout_.head_bytes);
      } else {
        ahead_.add(key_panel(next, i), (end - i) * key_bytes_);
        ahead_.add(value_panel(next, i), (end - i) * value_bytes_);
        ahead_.add(next.head[i] + layout_.key_scales, layout_.head_bytes - layout_.key_scales);
      }
      i = end;
    }
    ahead_.begin(steps);
  }

  QuantKvLayout layout_;
  int64_t D_, key_bytes_, value_bytes_, rows_;
  SpanAhead ahead_;
  // Of the span, one per token: scales and minima. Of the page: its mean key's codes.
  float *key_scale_, *key_minimum_, *value_scale_, *value_minimum_, *mean_;
  // Of the tokens of the span that a row sees: scales relative to the largest, times 32767, and minima.
  float *seen_factor_, *seen_minimum_;
  const float* seen_minima_ = nullptr;  // seen_minimum_, or value_minimum_ where all is seen
  float seen_scale_ = 0, seen_bad_ = 0;
  Range seen_{-1, -1};
  int64_t block_begin_ = 0, block_end_ = 0;
  // Of a row: scale and sum of its query, scale of its probabilities, logits of the mean keys, its query's
  // codes.
  float *q_scale_, *q_sum_, *row_scale_, *mean_logit_, *q_codes_;
  int32_t *q_, *probs_;  // factors of queries and of probabilities
  char* lines_;  // [panel of the span][2 lines][D] of 3-bit values as nibbles, and a vector to read past

 private:
  static constexpr int64_t kRowsAtOnce = 4;

  // From dot products to logits over the query's scale, minus infinity for what is not seen, to whole blocks.
  // Returns the largest.
  template <bool kNibbles, bool kMean>
  OAR_INLINE float scale_logits(int64_t r, float* x) const {
    const float *scale = key_scale_, *minimum = key_minimum_, *mean = mean_logit_ + r * kSpanPanels;
    const int64_t begin = seen_.lo / kKvPanelTokens * kKvPanelTokens, end = seen_.hi;  // pages are full
    const Vf q_sum = set1(q_sum_[r]);
    const Vi start = set1_int(-128 * static_cast<int32_t>(q_sum_[r]));  // bytes are stored with an offset
    Vf largest = set1(-INFINITY);
    for (int64_t i = begin; i < end; i += kLanes) {
      const Vi dot = load_int(reinterpret_cast<const int32_t*>(x + i));
      Vf y;
      if constexpr (kMean) {
        y = fma(to_float(dot), load(scale + i),
                fma(load(minimum + i), q_sum, set1(mean[i / kKvPanelTokens])));
      } else if constexpr (kNibbles) {
        y = fma(to_float(dot), load(scale + i), load(minimum + i) * q_sum);
      } else {
        y = to_float(dot + start) * load(scale + i);
      }
      store(x + i, y);
      largest = max(y, largest);
    }
    for (int64_t i = block_begin_ * kProbBlock; i < seen_.lo; ++i) x[i] = -INFINITY;
    for (int64_t i = end; i < block_end_ * kProbBlock; ++i) x[i] = -INFINITY;
    if (begin != seen_.lo) {  // a window's begin cut a panel
      largest = set1(-INFINITY);
      for (int64_t i = begin; i < end; i += kLanes) largest = max(load(x + i), largest);
    }
    return reduce_max(largest);
  }
  // The same, softly capped: exponents of 2.
  float cap_logits(float* x, Vf factor, Vf cap) const {
    Vf largest = set1(-INFINITY);
    for (int64_t i = block_begin_ * kProbBlock; i < block_end_ * kProbBlock; i += kLanes) {
      const Vf y = load(x + i), capped = tanh(y * factor) * cap;
      const Vf kept = select(y < set1(-3e38f), y, capped);
      store(x + i, kept);
      largest = max(kept, largest);
    }
    return reduce_max(largest);
  }
  // Probabilities of the blocks, their sum, and that of their products with minima.
  template <bool kMinima>
  OAR_INLINE void weigh(TileData& t, int64_t r, Vf factor, Vf negative) {
    constexpr int64_t kVectors = kProbBlock / kLanes;
    const float *x = t.logits + r * kLogitStride, *scale = seen_factor_, *minimum = seen_minima_;
    Vf sum = zero(), constant = zero();
    for (int64_t b = block_begin_; b < block_end_; ++b) {
      ahead_.step();
      const int64_t at = b * kProbBlock;
      Vf p[kVectors], w[kVectors];
      OAR_UNROLL
      for (int64_t j = 0; j < kVectors; ++j) { p[j] = fma(load(x + at + j * kLanes), factor, negative); }
      exp2_nonpositive_all<kVectors>(p);
      OAR_UNROLL
      for (int64_t j = 0; j < kVectors; ++j) w[j] = p[j] * load(scale + at + j * kLanes);
      // Pairs first: a chain of all additions would take longer than all else.
      OAR_UNROLL
      for (int64_t j = 0; j < kVectors; j += 2) {
        sum = sum + (p[j] + p[j + 1]);
        if constexpr (kMinima) {
          const float* m = minimum + at + j * kLanes;
          constant = constant + fma(p[j], load(m), p[j + 1] * load(m + kLanes));
        }
      }
      pack_probs(w, probs(r, b));
    }
    t.acc[r * D_] = reduce_add(constant) + seen_bad_;
    t.state[r].sum = reduce_add(sum);
    row_scale_[r] = seen_scale_;
  }
};

}  // namespace oar::OAR_SIMD_NAMESPACE
