// The codes engine in registers, for any instruction set: small tiles of rows x panels (keys) and rows x
// columns (values), integer accumulators in vector registers, unpacked codes shared by the rows of a tile.
#pragma once

#include "kernels/cpu/attention/attention_quant_codes.h"

namespace oar::OAR_SIMD_NAMESPACE {

// In registers, for any instruction set.
class IntEngine : public CodesEngine {
 public:
  using CodesEngine::CodesEngine;

  void begin(int64_t) {}

  // Attends to one span: t.state and t.acc of the rows that see any of it, which are returned. `next` is
  // prefetched.
  Range attend(TileData& t, int64_t span, const QuantPanels& panels, const QuantPanels& next) {
    const Range rows = seeing(t, span);
    load_scales(panels);
    if (layout_.mean) mean_logits(panels, rows);
    const int64_t count = rows.hi - rows.lo, columns = ceil_div(D_, kColumns * kLanes);
    look_ahead(next, key_steps(count) + ceil_div(count, kRows) * kSpanPanels * columns +
                         count * (kSpan / kProbBlock));
    dots(t, rows, panels);
    softmax(t, rows, span, panels);
    widen_values(panels);
    layout_.value_nibbles ? values<true>(t, rows, panels) : values<false>(t, rows, panels);
    return rows;
  }

 protected:
  // Steps of ahead_ that dots() takes: with every 16 dims, so that what they fetch comes evenly.
  int64_t key_steps(int64_t rows) const {
    return ceil_div(rows, kRows) * (kSpanPanels / kKeyPanels) * ceil_div(D_, 16);
  }
  void dots(const TileData& t, Range rows, const QuantPanels& panels) {
    layout_.key_nibbles ? logits<true>(t, rows, panels) : logits<false>(t, rows, panels);
  }

 private:
  static constexpr int64_t kVectors = kKvPanelTokens / kLanes;  // of a panel
  // Register tiles: 16 accumulators of keys, 16 or 8 of values.
  static constexpr int kRows = kLanes >= 8 ? 4 : 2, kKeyPanels = kLanes == 16 ? 4 : 1;
  static constexpr int kColumns = kLanes == 16 ? 2 : 1;  // vectors of dims

  // ---- q . k

  template <bool kNibbles>
  void logits(const TileData& t, Range rows, const QuantPanels& panels) {
    for (int64_t g = panels.lo; g < panels.hi; g += kKeyPanels) {
      const int64_t n = panels.hi - g < kKeyPanels ? panels.hi - g : kKeyPanels;
      for (int64_t r = rows.lo; r < rows.hi; r += kRows) {
        dispatch(
            rows.hi - r, [&]<int R>() __attribute__((always_inline)) {
              float* out = t.logits + r * kLogitStride;
              if (n == kKeyPanels) {
                logits_tile<kNibbles, R, kKeyPanels>(panels, g, r, out);
              } else {
                for (int64_t i = 0; i < n; ++i) logits_tile<kNibbles, R, 1>(panels, g + i, r, out);
              }
            });
      }
    }
  }

  // Dot products, as integers.
  template <bool kNibbles, int R, int NP>
  OAR_INLINE void logits_tile(const QuantPanels& panels, int64_t g, int64_t r, float* out) {
    Vi acc[R][NP][kVectors];
    const char* k[NP];
    OAR_UNROLL
    for (int p = 0; p < NP; ++p) k[p] = key_panel(panels, g + p);
    OAR_UNROLL
    for (int i = 0; i < R; ++i) {
      OAR_UNROLL
      for (int p = 0; p < NP; ++p) {
        OAR_UNROLL
        for (int64_t v = 0; v < kVectors; ++v) acc[i][p][v] = set1_int(0);
      }
    }
    const int64_t fours = D_ / 4;
    const int32_t* q = q_ + r * fours * kFactorWords;
    constexpr int64_t kStep = kNibbles ? 2 : 1;  // groups of four dims per line
    for (int64_t four = 0, line = 0; four < fours; four += kStep, line += 64) {
      if (four % 4 == 0) ahead_.step();
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
        for (int i = 0; i < R; ++i) { memcpy(out + i * kLogitStride + at, &acc[i][p][v], sizeof(Vi)); }
      }
    }
  }

  // ---- p . V

  template <bool kNibbles>
  void values(TileData& t, Range rows, const QuantPanels& panels) {
    for (int64_t r = rows.lo; r < rows.hi; r += kRows) {
      dispatch(
          rows.hi - r, [&]<int R>() __attribute__((always_inline)) {
            float constant[R];
            OAR_UNROLL
            for (int i = 0; i < R; ++i) constant[i] = t.acc[(r + i) * D_];
            float* acc = t.acc + r * D_;
            int64_t d = 0;
            for (; d + kColumns * kLanes <= D_; d += kColumns * kLanes) {
              values_tile<kNibbles, R, kColumns>(panels, d, kLanes, r, constant, acc);
            }
            for (; d < D_; d += kLanes) {
              values_tile<kNibbles, R, 1>(panels, d, D_ - d < kLanes ? D_ - d : kLanes, r, constant, acc);
            }
          });
    }
  }

  // D is a multiple of 8 but may be none of 16. Vectors that reach past it read into what follows (a panel,
  // or the scales behind the last) and drop it.
  template <bool kNibbles, int R, int NC>
  OAR_INLINE void values_tile(const QuantPanels& panels, int64_t d, int64_t lanes, int64_t r,
                              const float* constant, float* acc) {
    ValueSum sum[R][NC];
    constexpr int64_t kStep = kNibbles ? 2 : 1, kLines = kKvPanelTokens / 4 / kStep;
    for (int64_t g = panels.lo; g < panels.hi; ++g) {
      const char* v = value_lines(panels, g) + d * 4;
      ahead_.step();
      const int32_t* p = probs(r, g / 4);
      for (int64_t line = 0; line < kLines; ++line) {
        Vi x[NC];
        OAR_UNROLL
        for (int c = 0; c < NC; ++c) {
          const int64_t at = line * D_ * 4 + c * kLanes * 4;
          x[c] = load_line(v + at);
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
        store_part(acc + i * D_ + d + c * kLanes, scaled(total(sum[i][c]), r + i, constant[i]), lanes);
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
