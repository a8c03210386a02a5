// Attention over the quantized part of a context in integers: a "codes engine" of attention_quant_simd.h for
// int8 and int4 keys and values, in registers, for any instruction set.
//
// Nothing is decoded. With a query as s_q q (int8, one scale per query and head), a key as s k + m and a
// page's mean key as s_u u:
//   logit = s_q (s (k . q) + m sum(q) + s_u (u . q))        dot products in integers
//   p . V = (w / 32767) (integers w' . v) + sum(p m)        w' = round(32767 p s / w), w the span's largest p
//   s
// so that of a probability 15 bits are kept relative to what weighs most in its span, and a token's scales
// are touched once per query head. Integer sums do not depend on their order: whatever shares a tile, and
// whichever engine adds, a row gets the same bits.
#pragma once

#include "kernels/cpu/attention_float.h"
#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/int_dot.h"
#include "kernels/kv_quant.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Pages of one span of one head, panel by panel.
struct QuantPanels {
  int64_t lo = 0, hi = 0;         // panels [lo, hi) of the span are set
  const char* head[kSpanPanels];  // the head's bytes inside the page
  int64_t index[kSpanPanels];     // of the panel inside its page
};

// What a codes engine does but for the products, and what it keeps per tile besides what is in TileRows.
class CodesEngine {
 public:
  // Rows are padded for engines that read more of them than there are.
  static size_t scratch_bytes(int64_t rows, int64_t D) {
    rows += kRowPadding;
    const int64_t words = 4 * kSpan + D + rows * (3 + kSpanPanels + D + D / 4 * kFactorWords + kProbRow);
    return static_cast<size_t>((words + 15) / 16 * 16) * sizeof(float);
  }
  CodesEngine(const QuantKvShape& shape, int64_t rows, void* memory)
      : layout_(shape),
        D_(shape.head_dim),
        key_bytes_(layout_.key_nibbles ? 8 * D_ : 16 * D_),
        value_bytes_(layout_.value_nibbles ? 8 * D_ : 16 * D_),
        rows_(rows) {
    rows += kRowPadding;
    probs_ = static_cast<int32_t*>(memory);  // aligned to lines
    q_ = probs_ + rows * kProbRow;
    key_scale_ = reinterpret_cast<float*>(q_ + rows * (D_ / 4 * kFactorWords));
    key_minimum_ = key_scale_ + kSpan;
    value_scale_ = key_minimum_ + kSpan;
    value_minimum_ = value_scale_ + kSpan;
    mean_ = value_minimum_ + kSpan;
    q_scale_ = mean_ + D_;
    q_sum_ = q_scale_ + rows;
    row_scale_ = q_sum_ + rows;
    mean_logit_ = row_scale_ + rows;
    q_codes_ = mean_logit_ + rows * kSpanPanels;
  }

  const QuantKvLayout& layout() const { return layout_; }

  // Row r's query in int8. A NaN or infinity makes the scale NaN, which every logit then is.
  void prepare(int64_t r, const float* q, float scale) {
    Vf largest = zero(), sum = zero();
    for_lanes(D_, [&](int64_t i, int64_t n) {
      const Vf x = load_part(q + i, n);
      largest = max(abs(x), largest);
      sum = sum + (x - x);
    });
    const float most = reduce_max(largest), inverse = most > 0x1p-100f ? 127.f / most : 0.f;
    q_scale_[r] = most / 127.f * scale + reduce_add(sum);
    float* codes = q_codes_ + r * D_;
    alignas(64) int32_t integers[256 + kLanes];
    Vf total = zero();
    for_lanes(D_, [&](int64_t i, int64_t n) {
      const Vf x = load_part(q + i, n) * set1(inverse);
      const Vi code = to_int(select(is_nan(x), zero(), x));  // its scale says so
      memcpy(integers + i, &code, sizeof code);
      store_part(codes + i, to_float(code), n);
      total = total + to_float(code);  // exact
    });
    for (int64_t d = 0; d < D_; d += 4) {
      store_factors(integers + d, q_ + (r * (D_ / 4) + d / 4) * kFactorWords);
    }
    q_sum_[r] = reduce_add(total);
  }

 protected:
  static constexpr int64_t kRowPadding = 16;
  static constexpr int64_t kProbRow = kSpan / kProbBlock * kProbWords;

  // Rows that see any of the span: a window's begin ascends with the row.
  template <class Rows>
  static Range seeing(const Rows& t, int64_t span) {
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

  // A page's mean key against each query. Products and sums of such integers (at most 2^22) are exact in f32.
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

  template <bool kNibbles>
  OAR_INLINE Vf logit(Vi dot, int64_t r, int64_t at) const {
    const Vf x = to_float(dot) * load(key_scale_ + at), scale = set1(q_scale_[r]);
    if constexpr (!kNibbles) return x * scale;
    Vf rest = load(key_minimum_ + at) * set1(q_sum_[r]);
    if (layout_.mean) rest = rest + set1(mean_logit_[r * kSpanPanels + at / kKvPanelTokens]);
    return (x + rest) * scale;
  }

  // ---- softmax relative to the span's largest logit; leaves the integer probabilities, and in t.acc the
  // part of the result that is the same for all dims: of minima, or NaN when a scale that is seen is not
  // finite.

  template <class Rows>
  void softmax(Rows& t, int64_t r, int64_t span, const QuantPanels& panels) {
    Range range = t.in_span(r, span);
    if (range.lo > range.hi) range.lo = range.hi;  // a window that has passed all of it
    float* x = t.logits + r * kLogitStride;
    // Only a window's begin may cut a panel: pages are full.
    const int64_t begin = range.lo / kKvPanelTokens * kKvPanelTokens, end = range.hi;
    if (const float softcap = t.a.softcap; softcap > 0) {
      const Vf cap = set1(softcap * kLog2E);
      for (int64_t i = begin; i < end; i += kLanes) store(x + i, tanh(load(x + i)) * cap);
    }
    for (int64_t i = begin; i < range.lo; ++i) x[i] = -INFINITY;
    Vf largest = set1(-INFINITY);
    for (int64_t i = begin; i < end; i += kLanes) largest = max(load(x + i), largest);
    const float most = reduce_max(largest);
    const Vf reference = set1(most == -INFINITY ? 0.f : most);
    Weights sums;
    int64_t i = begin;
    if (begin < range.lo) {
      float scale[kKvPanelTokens], minimum[kKvPanelTokens];
      for (int64_t j = 0; j < kKvPanelTokens; ++j) {
        const bool seen = begin + j >= range.lo;
        scale[j] = seen ? value_scale_[begin + j] : 0.f;
        minimum[j] = seen && layout_.value_nibbles ? value_minimum_[begin + j] : 0.f;
      }
      weigh(x + begin, scale, layout_.value_nibbles ? minimum : nullptr, kKvPanelTokens, reference, &sums);
      i += kKvPanelTokens;
    }
    weigh(x + i, value_scale_ + i, layout_.value_nibbles ? value_minimum_ + i : nullptr, end - i, reference,
          &sums);
    // Whole blocks of probabilities, zero where the row does not see.
    const int64_t block_begin = panels.lo * kKvPanelTokens / kProbBlock;
    const int64_t block_end = ceil_div(panels.hi * kKvPanelTokens, kProbBlock);
    for (int64_t j = block_begin * kProbBlock; j < begin; ++j) x[j] = 0.f;
    for (int64_t j = end; j < block_end * kProbBlock; ++j) x[j] = 0.f;
    const float weight = reduce_max(sums.largest);
    const bool some = weight > 0x1p-100f;  // what is lost is less than 2^-80 of the largest probability
    const Vf inverse = set1(some ? 32767.f / weight : 0.f);
    for (int64_t b = block_begin; b < block_end; ++b) {
      pack_probs(x + b * kProbBlock, inverse, probs(r, b));
    }
    const float bad = reduce_add(sums.weight - sums.weight);
    row_scale_[r] = some ? weight / 32767.f : 0.f;
    t.acc[r * D_] = reduce_add(sums.minimum) + bad;
    t.state[r] = {most, reduce_add(sums.p)};
  }

  struct Weights {
    Vf p = zero(), weight = zero(), largest = zero(), minimum = zero();
  };
  // In place: exponentials, times the scales of their values.
  OAR_INLINE static void weigh(float* x, const float* scale, const float* minimum, int64_t n, Vf reference,
                               Weights* sums) {
    Weights s = *sums;
    for (int64_t i = 0; i < n; i += kLanes) {
      const Vf p = exp2_nonpositive<4>(load(x + i) - reference), w = p * load(scale + i);
      store(x + i, w);
      s.p = s.p + p;
      s.weight = s.weight + w;
      s.largest = max(w, s.largest);
      if (minimum != nullptr) s.minimum = fma(p, load(minimum + i), s.minimum);
    }
    *sums = s;
  }

  // ---- addresses

  const char* key_panel(const QuantPanels& panels, int64_t i) const {
    return panels.head[i] + panels.index[i] * key_bytes_;
  }
  const char* value_panel(const QuantPanels& panels, int64_t i) const {
    return panels.head[i] + layout_.value_codes + panels.index[i] * value_bytes_;
  }
  OAR_INLINE static int64_t clamp(const QuantPanels& panels, int64_t i) {
    return i < panels.lo ? panels.lo : i >= panels.hi ? panels.hi - 1 : i;
  }
  OAR_INLINE void prefetch_scales(const QuantPanels& panels, int64_t i) const {
    i = clamp(panels, i);
    if (panels.index[i] != 0) return;
    for (int64_t at = layout_.key_scales; at < layout_.head_bytes; at += 64) prefetch(panels.head[i] + at);
  }

  QuantKvLayout layout_;
  int64_t D_, key_bytes_, value_bytes_, rows_;
  // Of the span, one per token: scales and minima. Of the page: its mean key's codes.
  float *key_scale_, *key_minimum_, *value_scale_, *value_minimum_, *mean_;
  // Of a row: scale and sum of its query, scale of its probabilities, logits of the mean keys, its query's
  // codes.
  float *q_scale_, *q_sum_, *row_scale_, *mean_logit_, *q_codes_;
  int32_t *q_, *probs_;  // factors of queries and of probabilities
};

// In registers, for any instruction set.
class IntEngine : public CodesEngine {
 public:
  using CodesEngine::CodesEngine;

  void begin(int64_t) {}

  // Attends to one span: t.state and t.acc of the rows that see any of it, which are returned. `next` is
  // prefetched: its keys and scales while keys are read, its values while values are.
  template <class Rows>
  Range attend(Rows& t, int64_t span, const QuantPanels& panels, const QuantPanels& next) {
    const Range rows = seeing(t, span);
    load_scales(panels);
    if (layout_.mean) mean_logits(panels, rows);
    const QuantPanels& ahead = next.hi > next.lo ? next : panels;
    layout_.key_nibbles ? logits<true>(t, rows, panels, ahead) : logits<false>(t, rows, panels, ahead);
    for (int64_t r = rows.lo; r < rows.hi; ++r) softmax(t, r, span, panels);
    layout_.value_nibbles ? values<true>(t, rows, panels, ahead) : values<false>(t, rows, panels, ahead);
    return rows;
  }

 private:
  static constexpr int64_t kVectors = kKvPanelTokens / kLanes;  // of a panel
  // Register tiles: 16 accumulators of keys, 16 or 8 of values.
  static constexpr int kRows = kLanes >= 8 ? 4 : 2, kKeyPanels = kLanes == 16 ? 4 : 1;
  static constexpr int kColumns = kLanes == 16 ? 2 : 1;  // vectors of dims

  // ---- q . k

  template <bool kNibbles, class Rows>
  void logits(const Rows& t, Range rows, const QuantPanels& panels, const QuantPanels& ahead) {
    for (int64_t g = panels.lo; g < panels.hi; g += kKeyPanels) {
      const int64_t n = panels.hi - g < kKeyPanels ? panels.hi - g : kKeyPanels;
      for (int64_t i = 0; i < n; ++i) prefetch_scales(ahead, g + i);
      for (int64_t r = rows.lo; r < rows.hi; r += kRows) {
        const bool first = r == rows.lo;
        dispatch(
            rows.hi - r, [&]<int R>() __attribute__((always_inline)) {
              float* out = t.logits + r * kLogitStride;
              if (n == kKeyPanels) {
                logits_tile<kNibbles, R, kKeyPanels>(panels, first ? &ahead : nullptr, g, r, out);
              } else {
                for (int64_t i = 0; i < n; ++i) {
                  logits_tile<kNibbles, R, 1>(panels, first ? &ahead : nullptr, g + i, r, out);
                }
              }
            });
      }
    }
  }

  template <bool kNibbles, int R, int NP>
  OAR_INLINE void logits_tile(const QuantPanels& panels, const QuantPanels* ahead, int64_t g, int64_t r,
                              float* out) const {
    Vi acc[R][NP][kVectors];
    const char* k[NP];
    const char* next[NP];
    OAR_UNROLL
    for (int p = 0; p < NP; ++p) {
      k[p] = key_panel(panels, g + p);
      next[p] = ahead != nullptr ? key_panel(*ahead, clamp(*ahead, g + p)) : k[p];
    }
    OAR_UNROLL
    for (int i = 0; i < R; ++i) {
      // Bytes are stored with an offset of 128.
      const Vi start = kNibbles ? set1_int(0) : set1_int(-128 * static_cast<int32_t>(q_sum_[r + i]));
      OAR_UNROLL
      for (int p = 0; p < NP; ++p) {
        OAR_UNROLL
        for (int64_t v = 0; v < kVectors; ++v) acc[i][p][v] = start;
      }
    }
    const int64_t fours = D_ / 4;
    const int32_t* q = q_ + r * fours * kFactorWords;
    constexpr int64_t kStep = kNibbles ? 2 : 1;  // groups of four dims per line
    for (int64_t four = 0, line = 0; four < fours; four += kStep, line += 64) {
      if (ahead != nullptr) {
        OAR_UNROLL
        for (int p = 0; p < NP; ++p) prefetch(next[p] + line);
      }
      OAR_UNROLL
      for (int64_t v = 0; v < kVectors; ++v) {
        Vi x[NP];
        OAR_UNROLL
        for (int p = 0; p < NP; ++p) x[p] = load_line(k[p] + line + v * kLanes * 4);
        // Nibbles one half after the other: 16 accumulators, 8 operands and a factor fit 32 registers.
        OAR_UNROLL
        for (int64_t s = 0; s < kStep; ++s) {
          Line key[NP];
          OAR_UNROLL
          for (int p = 0; p < NP; ++p) {
            key[p] = unsigned_line(!kNibbles ? x[p] : s == 0 ? low_nibbles(x[p]) : high_nibbles(x[p]));
          }
          OAR_UNROLL
          for (int i = 0; i < R; ++i) {
            const KeyFactor f = key_factor(q + (i * fours + four + s) * kFactorWords);
            OAR_UNROLL
            for (int p = 0; p < NP; ++p) acc[i][p][v] = key_dot(acc[i][p][v], key[p], f);
          }
        }
      }
    }
    OAR_UNROLL
    for (int p = 0; p < NP; ++p) {
      OAR_UNROLL
      for (int64_t v = 0; v < kVectors; ++v) {
        const int64_t at = (g + p) * kKvPanelTokens + v * kLanes;
        OAR_UNROLL
        for (int i = 0; i < R; ++i) {
          store(out + i * kLogitStride + at, logit<kNibbles>(acc[i][p][v], r + i, at));
        }
      }
    }
  }

  // ---- p . V

  template <bool kNibbles, class Rows>
  void values(Rows& t, Range rows, const QuantPanels& panels, const QuantPanels& ahead) {
    for (int64_t r = rows.lo; r < rows.hi; r += kRows) {
      const QuantPanels* next = r == rows.lo ? &ahead : nullptr;
      dispatch(
          rows.hi - r, [&]<int R>() __attribute__((always_inline)) {
            float constant[R];
            OAR_UNROLL
            for (int i = 0; i < R; ++i) constant[i] = t.acc[(r + i) * D_];
            float* acc = t.acc + r * D_;
            int64_t d = 0;
            for (; d + kColumns * kLanes <= D_; d += kColumns * kLanes) {
              values_tile<kNibbles, R, kColumns>(panels, next, d, kLanes, r, constant, acc);
            }
            for (; d < D_; d += kLanes) {
              values_tile<kNibbles, R, 1>(panels, next, d, D_ - d < kLanes ? D_ - d : kLanes, r, constant,
                                          acc);
            }
          });
    }
  }

  // Vectors that reach past D, D being a multiple of 8 but not of 16, read into what follows (a panel, or the
  // scales behind the last), and drop it.
  template <bool kNibbles, int R, int NC>
  OAR_INLINE void values_tile(const QuantPanels& panels, const QuantPanels* ahead, int64_t d, int64_t lanes,
                              int64_t r, const float* constant, float* acc) const {
    ValueSum sum[R][NC];
    constexpr int64_t kStep = kNibbles ? 2 : 1, kLines = kKvPanelTokens / 4 / kStep;
    for (int64_t g = panels.lo; g < panels.hi; ++g) {
      const char* v = value_panel(panels, g) + d * 4;
      const char* next = ahead != nullptr ? value_panel(*ahead, clamp(*ahead, g)) + d * 4 : v;
      const int32_t* p = probs(r, g / 4);
      for (int64_t line = 0; line < kLines; ++line) {
        Vi x[NC];
        OAR_UNROLL
        for (int c = 0; c < NC; ++c) {
          const int64_t at = line * D_ * 4 + c * kLanes * 4;
          x[c] = load_line(v + at);
          if (ahead != nullptr) prefetch(next + at);
        }
        OAR_UNROLL
        for (int64_t s = 0; s < kStep; ++s) {
          Line value[NC];
          OAR_UNROLL
          for (int c = 0; c < NC; ++c) {
            value[c] = signed_line(!kNibbles ? x[c] : s == 0 ? low_nibbles(x[c]) : high_nibbles(x[c]));
          }
          OAR_UNROLL
          for (int i = 0; i < R; ++i) {
            const ProbFactor f = prob_factor(p + i * kProbWords, g % 4 * 4 + line * kStep + s);
            OAR_UNROLL
            for (int c = 0; c < NC; ++c) value_dot(sum[i][c], value[c], f);
          }
        }
      }
    }
    OAR_UNROLL
    for (int i = 0; i < R; ++i) {
      OAR_UNROLL
      for (int c = 0; c < NC; ++c) {
        const Vf x = fma(to_float(total(sum[i][c])), set1(row_scale_[r + i]), set1(constant[i]));
        store_part(acc + i * D_ + d + c * kLanes, x, lanes);
      }
    }
  }

  // f.operator()<rows>() with 1 <= rows <= kRows.
  template <class F>
  OAR_INLINE static void dispatch(int64_t rows, F&& f) {
    if constexpr (kRows >= 4) {
      if (rows >= 4) return f.template operator()<4>();
      if (rows == 3) return f.template operator()<3>();
    }
    if (rows >= 2) return f.template operator()<2>();
    f.template operator()<1>();
  }
};

}  // namespace oar::OAR_SIMD_NAMESPACE
