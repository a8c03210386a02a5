// The AMX codes engine of attention_quant_simd.h: int8 and int4 keys and values through tile products of
// bytes (TDPBSUD, TDPBUSD). Tiles of int8 codes are read from the cache as it is; nibbles are parted into
// bytes in L1 once for all rows of a tile. Sums of integers are exact, so results are those of the register
// engine to the bit.
//
//   q . k  A: 16 rows x 64 dims of queries     B: a key panel, 16 lines of (16 tokens x 4 dims)
//   p . V  A: 8 rows x {upper, lower bytes} x 64 tokens of probabilities    B: 16 token quads x 16 dims
#pragma once

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_quant_int.h"

namespace oar::OAR_SIMD_NAMESPACE {

class AmxCodesEngine : public IntEngine {
 public:
  static size_t scratch_bytes(int64_t rows, int64_t D) {
    // Bytes of a group's keys, of a span's values (and what a tile reads past the last dim), result tiles.
    return CodesEngine::scratch_bytes(rows, D) +
           static_cast<size_t>(kGroup * D + kSpan * D + 64 + 4 * 16 * 16 * 4);
  }
  AmxCodesEngine(const QuantKvShape& shape, int64_t rows, void* memory)
      : IntEngine(shape, rows, memory),
        key_tiles_(static_cast<char*>(memory) + CodesEngine::scratch_bytes(rows, shape.head_dim)),
        value_tiles_(key_tiles_ + kGroup * D_),
        spill_(reinterpret_cast<int32_t*>(value_tiles_ + kSpan * D_ + 64)),
        values_in_place_(!layout_.value_nibbles && shape.page_tokens % kGroup == 0) {}
  ~AmxCodesEngine() {
    if (configured_) _tile_release();
  }
  AmxCodesEngine(const AmxCodesEngine&) = delete;
  AmxCodesEngine& operator=(const AmxCodesEngine&) = delete;

  // Tiles 0..3 accumulate, 4 and 5 are the operands, 6 and 7 those of a last, shorter step over dims.
  void begin(int64_t rows) {
    if (rows <= kFewRows) return;
    configured_ = true;
    TileConfig config;
    for (int i = 0; i < 5; ++i) config.set(i, 16, 64);
    config.set(5, 16, 64);
    if (const int64_t dims = D_ % 64; dims != 0) {
      config.set(6, 16, dims);
      config.set(7, dims / 4, 64);
    }
    load_config(config);
  }

  template <class Rows>
  Range attend(Rows& t, int64_t span, const QuantPanels& panels, const QuantPanels& next) {
    // Few rows: a decoding query's. Registers are faster than tiles, whose loads wait where a vector's do
    // not.
    if (t.rows <= kFewRows) return IntEngine::attend(t, span, panels, next);
    const Range rows = seeing(t, span);
    load_scales(panels);
    if (layout_.mean) mean_logits(panels, rows);
    const int64_t count = rows.hi - rows.lo;
    look_ahead(next, count * (kSpan / kProbBlock) +
                         ceil_div(count, kTileRows) * (kSpan / kGroup + 2 * ceil_div(D_, kGroup)));
    layout_.key_nibbles ? logits<true>(t, rows, panels) : logits<false>(t, rows, panels);
    softmax(t, rows, span, panels);
    widen_values(panels);
    values(t, rows, panels);
    return rows;
  }

 private:
  static constexpr int64_t kFewRows = 8, kTileRows = 16;
  static constexpr int64_t kGroup = 64, kGroupPanels = kGroup / kKvPanelTokens;

  // The intrinsics that read memory do not say so to the compiler (g++ 12): what they read is finished first.
  OAR_INLINE static void finish_stores() { __asm__ volatile("" ::: "memory"); }

  // ---- q . k, in groups of four panels

  template <bool kNibbles, class Rows>
  void logits(const Rows& t, Range rows, const QuantPanels& panels) {
    for (int64_t g = panels.lo; g < panels.hi; g += kGroupPanels) {
      const int64_t n = panels.hi - g < kGroupPanels ? panels.hi - g : kGroupPanels;
      const char* tiles[kGroupPanels];
      for (int64_t i = 0; i < n; ++i) {
        const char* k = key_panel(panels, g + i);
        tiles[i] = k;
        if constexpr (kNibbles) {
          char* out = key_tiles_ + i * kKvPanelTokens * D_;
          for (int64_t at = 0; at < key_bytes_; at += 64) {
            const Vi x = load_line(k + at);
            _mm512_storeu_si512(out + 2 * at, low_nibbles(x).v);
            _mm512_storeu_si512(out + 2 * at + 64, high_nibbles(x).v);
          }
          tiles[i] = out;
        }
      }
      finish_stores();
      for (int64_t r = rows.lo; r < rows.hi; r += kTileRows) {
        ahead_.step();
        float* out = t.logits + r * kLogitStride + g * kKvPanelTokens;
        const int64_t left = t.rows - r;  // behind them memory may end
        if (n == kGroupPanels) {
          products<kGroupPanels>(r, tiles);
          store_dots<kGroupPanels>(out, left);
        } else {
          for (int64_t i = 0; i < n; ++i) {
            products<1>(r, tiles + i);
            store_dots<1>(out + i * kKvPanelTokens, left);
          }
        }
      }
    }
  }

  template <int NP>
  void products(int64_t r, const char* const* k) {
    const char* q = reinterpret_cast<const char*>(q_) + r * D_;
    _tile_zero(0);
    if constexpr (NP > 1) {
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    int64_t d = 0;
    for (; d + 64 <= D_; d += 64) {
      _tile_loadd(4, q + d, static_cast<size_t>(D_));
      _tile_loadd(5, k[0] + d * 16, 64);
      _tile_dpbsud(0, 4, 5);
      if constexpr (NP > 1) {
        _tile_loadd(5, k[1] + d * 16, 64);
        _tile_dpbsud(1, 4, 5);
        _tile_loadd(5, k[2] + d * 16, 64);
        _tile_dpbsud(2, 4, 5);
        _tile_loadd(5, k[3] + d * 16, 64);
        _tile_dpbsud(3, 4, 5);
      }
    }
    if (d < D_) {
      _tile_loadd(6, q + d, static_cast<size_t>(D_));
      _tile_loadd(7, k[0] + d * 16, 64);
      _tile_dpbsud(0, 6, 7);
      if constexpr (NP > 1) {
        _tile_loadd(7, k[1] + d * 16, 64);
        _tile_dpbsud(1, 6, 7);
        _tile_loadd(7, k[2] + d * 16, 64);
        _tile_dpbsud(2, 6, 7);
        _tile_loadd(7, k[3] + d * 16, 64);
        _tile_dpbsud(3, 6, 7);
      }
    }
  }

  template <int N>
  void store_results() {
    _tile_stored(0, spill_, 64);
    if constexpr (N > 1) _tile_stored(1, spill_ + 256, 64);
    if constexpr (N > 2) _tile_stored(2, spill_ + 512, 64);
    if constexpr (N > 3) _tile_stored(3, spill_ + 768, 64);
  }

  template <int N>
  void store_dots(float* out, int64_t rows) {
    constexpr size_t kStride = kLogitStride * sizeof(float);
    if (rows >= kTileRows) {
      _tile_stored(0, out, kStride);
      if constexpr (N > 1) _tile_stored(1, out + kKvPanelTokens, kStride);
      if constexpr (N > 2) _tile_stored(2, out + 2 * kKvPanelTokens, kStride);
      if constexpr (N > 3) _tile_stored(3, out + 3 * kKvPanelTokens, kStride);
      finish_stores();
      return;
    }
    store_results<N>();
    finish_stores();
    for (int p = 0; p < N; ++p) {
      for (int64_t i = 0; i < rows; ++i) {
        memcpy(out + i * kLogitStride + p * kKvPanelTokens, spill_ + p * 256 + i * 16, 64);
      }
    }
  }

  // ---- p . V, in groups of 64 tokens: positions in the span are multiples of 64

  template <class Rows>
  void values(Rows& t, Range rows, const QuantPanels& panels) {
    const int64_t first = panels.lo / kGroupPanels, last = ceil_div(panels.hi, kGroupPanels);
    const char* tiles[kSpan / kGroup];
    for (int64_t g = first; g < last; ++g) {
      if (values_in_place_) {
        const int64_t i = g * kGroupPanels < panels.lo ? panels.lo : g * kGroupPanels;
        tiles[g] = value_panel(panels, i) - i % kGroupPanels * value_bytes_;  // the group lies in one page
      } else {
        tiles[g] = value_tiles_ + g * kGroup * D_;
      }
    }
    for (int64_t i = panels.lo; i < panels.hi; ++i) {
      if (values_in_place_) continue;
      const char* v = value_lines(panels, i);
      char* out = value_tiles_ + i * kKvPanelTokens * D_;
      if (layout_.value_nibbles) {
        part_values(v, out);
      } else {
        memcpy(out, v, static_cast<size_t>(value_bytes_));
      }
    }
    finish_stores();
    for (int64_t r = rows.lo; r < rows.hi; r += kTileRows / 2) {
      float constant[8];
      const int64_t n = rows.hi - r < kTileRows / 2 ? rows.hi - r : kTileRows / 2;
      for (int64_t i = 0; i < n; ++i) constant[i] = t.acc[(r + i) * D_];
      for (int64_t d = 0; d < D_; d += 64) {
        ahead_.step();
        switch ((D_ - d + 15) / 16) {
          case 1: columns<1>(t, {first, last}, tiles, r, n, d, constant); break;
          case 2: columns<2>(t, {first, last}, tiles, r, n, d, constant); break;
          case 3: columns<3>(t, {first, last}, tiles, r, n, d, constant); break;
          default: columns<4>(t, {first, last}, tiles, r, n, d, constant); break;
        }
      }
    }
  }

  // Two lines of eight tokens to four of four.
  void part_values(const char* v, char* out) const {
    const int64_t line = D_ * 4;
    for (int64_t i = 0; i < 2; ++i, v += line, out += 2 * line) {
      for_lanes(
          D_, [&](int64_t d, int64_t n) __attribute__((always_inline)) {
            const __mmask16 lanes = n == kLanes ? static_cast<__mmask16>(0xffff) : first_lanes(n);
            const Vi x = load_line(v + d * 4);
            _mm512_mask_storeu_epi32(out + d * 4, lanes, low_nibbles(x).v);
            _mm512_mask_storeu_epi32(out + line + d * 4, lanes, high_nibbles(x).v);
          });
    }
  }

  // acc of n rows from r on, NC tiles of columns from d on.
  template <int NC, class Rows>
  void columns(Rows& t, Range groups, const char* const* tiles, int64_t r, int64_t n, int64_t d,
               const float* constant) {
    _tile_zero(0);
    if constexpr (NC > 1) _tile_zero(1);
    if constexpr (NC > 2) _tile_zero(2);
    if constexpr (NC > 3) _tile_zero(3);
    const auto stride = static_cast<size_t>(D_ * 4);
    for (int64_t g = groups.lo; g < groups.hi; ++g) {
      const char* v = tiles[g] + d * 4;
      _tile_loadd(4, probs(r, g), 64);
      _tile_loadd(5, v, stride);
      _tile_dpbusd(0, 4, 5);
      if constexpr (NC > 1) {
        _tile_loadd(5, v + 64, stride);
        _tile_dpbusd(1, 4, 5);
      }
      if constexpr (NC > 2) {
        _tile_loadd(5, v + 128, stride);
        _tile_dpbusd(2, 4, 5);
      }
      if constexpr (NC > 3) {
        _tile_loadd(5, v + 192, stride);
        _tile_dpbusd(3, 4, 5);
      }
    }
    store_results<NC>();
    for (int64_t i = 0; i < n; ++i) {
      for (int c = 0; c < NC; ++c) {
        const int32_t* sum = spill_ + c * 256 + i * 32;
        const Vf x = scaled(shift_left<8>(load_int(sum)) + load_int(sum + 16), r + i, constant[i]);
        const int64_t at = d + c * 16, lanes = D_ - at < 16 ? D_ - at : 16;
        store_part(t.acc + (r + i) * D_ + at, x, lanes);
      }
    }
  }

  char *key_tiles_, *value_tiles_;
  int32_t* spill_;
  bool values_in_place_;
  bool configured_ = false;
};

}  // namespace oar::OAR_SIMD_NAMESPACE
