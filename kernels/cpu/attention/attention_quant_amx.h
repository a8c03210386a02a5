// The AMX codes engine of attention_quant_simd.h: int8 and int4 keys and values through tile products of
// bytes (TDPBSUD, TDPBUSD). Tiles of int8 codes are read from the cache as it is; nibbles are parted into
// bytes in L1 once for all rows of a tile. Sums of integers are exact, so results are those of the register
// engine to the bit. Which of the two multiplies is a matter of speed alone. For a decoding query's few rows
// registers are faster at the keys (a tile's results come out through memory), tiles at the values (a span's
// results stay in tiles).
//
//   q . k  A: 16 rows x 64 dims of queries     B: a key panel, 16 lines of (16 tokens x 4 dims)
//   p . V  A: 8 rows x {upper, lower bytes} x 64 tokens of probabilities    B: 16 token quads x 16 dims
#pragma once

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention/attention_quant_int.h"

namespace oar::OAR_SIMD_NAMESPACE {

class AmxCodesEngine : public IntEngine {
 public:
  static size_t scratch_bytes(int64_t rows, int64_t D) {
    // Bytes of a group's keys, of a span's values, result tiles.
    return CodesEngine::scratch_bytes(rows, D) +
           static_cast<size_t>(kGroup * D + kSpan * 16 * column_tiles(D) + 4 * 16 * 16 * 4);
  }
  AmxCodesEngine(const QuantKvShape& shape, int64_t rows, void* memory)
      : IntEngine(shape, rows, memory),
        key_tiles_(static_cast<char*>(memory) + CodesEngine::scratch_bytes(rows, shape.head_dim)),
        value_tiles_(key_tiles_ + kGroup * D_),
        spill_(reinterpret_cast<int32_t*>(value_tiles_ + kSpan * 16 * column_tiles(D_))),
        values_in_place_(!layout_.value_nibbles && shape.page_tokens % kGroup == 0) {}
  ~AmxCodesEngine() {
    if (configured_) _tile_release();
  }
  AmxCodesEngine(const AmxCodesEngine&) = delete;
  AmxCodesEngine& operator=(const AmxCodesEngine&) = delete;

  // Tiles 0..3 accumulate, 4 and 5 are the operands, 6 and 7 those of a last, shorter step over dims. A
  // product takes time by its rows.
  void begin(int64_t rows) {
    configured_ = true;
    TileConfig config;
    for (int i = 0; i < 5; ++i) config.set(i, rows <= kFewRows ? 2 * rows : 16, 64);
    config.set(5, 16, 64);
    if (const int64_t dims = D_ % 64; dims != 0 && rows > kFewRows) {
      config.set(6, 16, dims);
      config.set(7, dims / 4, 64);
    }
    load_config(config);
  }

  Range attend(TileData& t, int64_t span, const QuantPanels& panels, const QuantPanels& next) {
    const Range rows = seeing(t, span);
    load_scales(panels);
    if (layout_.mean) mean_logits(panels, rows);
    const int64_t count = rows.hi - rows.lo;
    if (t.rows <= kFewRows) {
      look_ahead(next, key_steps(count) + count * (kSpan / kProbBlock) + column_tiles(D_) * kSpan / kGroup);
      dots(t, rows, panels);
      softmax(t, rows, span, panels);
      widen_values(panels);
      few_values(t, rows, panels);
      return rows;
    }
    look_ahead(next,
               count * (kSpan / kProbBlock) +
                   ceil_div(count, kTileRows) * (kSpan / kGroup + 2 * column_tiles(D_) * (kSpan / kGroup)));
    layout_.key_nibbles ? logits<true>(t, rows, panels) : logits<false>(t, rows, panels);
    softmax(t, rows, span, panels);
    widen_values(panels);
    values(t, rows, panels);
    return rows;
  }

 private:
  static constexpr int64_t kFewRows = 8, kTileRows = 16;
  static constexpr int64_t kGroup = 64, kGroupPanels = kGroup / kKvPanelTokens, kTileBytes = 16 * 64;
  static int64_t column_tiles(int64_t dims) { return ceil_div(dims, 16); }

  // The intrinsics that read memory do not say so to the compiler (g++ 12): what they read is finished first.
  OAR_INLINE static void finish_stores() { __asm__ volatile("" ::: "memory"); }

  // ---- q . k, in groups of four panels

  template <bool kNibbles>
  void logits(const TileData& t, Range rows, const QuantPanels& panels) {
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

  // Where the tiles of a group of tokens lie: the first, bytes between its rows, bytes to that of the next 16
  // dims.
  struct ValueTiles {
    const char* at;
    int64_t stride, next;
  };
  static Range groups_of(const QuantPanels& panels) {
    return {panels.lo / kGroupPanels, ceil_div(panels.hi, kGroupPanels)};
  }
  ValueTiles tiles_in_place(const QuantPanels& panels, int64_t g, int64_t d) const {
    const int64_t i = g * kGroupPanels < panels.lo ? panels.lo : g * kGroupPanels;
    const char* panel =
        value_panel(panels, i) - i % kGroupPanels * value_bytes_;  // the group lies in one page
    return {panel + d * 4, D_ * 4, 64};
  }
  // Writes the tiles of a group's dims from `d` on, at most 64, to `out`, one after the other. Rows of tokens
  // that are nobody's keep what they had: their probabilities are zero. Lines are read whole, past the last
  // dim into what follows (a panel, or the scales behind the last), and the results of these dropped.
  ValueTiles make_tiles(const QuantPanels& panels, int64_t g, int64_t d, char* out) const {
    const int64_t n = column_tiles(D_ - d < kGroup ? D_ - d : kGroup), line = D_ * 4;
    for (int64_t j = 0; j < kGroupPanels; ++j) {
      const int64_t i = g * kGroupPanels + j;
      if (i < panels.lo || i >= panels.hi) continue;
      const char* v = value_lines(panels, i) + d * 4;
      char* to = out + j * 4 * 64;
      for (int64_t c = 0; c < n; ++c, v += 64, to += kTileBytes) {
        if (layout_.value_nibbles) {
          const Vi a = load_line(v), b = load_line(v + line);
          _mm512_storeu_si512(to, low_nibbles(a).v);
          _mm512_storeu_si512(to + 64, high_nibbles(a).v);
          _mm512_storeu_si512(to + 128, low_nibbles(b).v);
          _mm512_storeu_si512(to + 192, high_nibbles(b).v);
        } else {
          for (int64_t q = 0; q < 4; ++q) _mm512_storeu_si512(to + q * 64, load_line(v + q * line).v);
        }
      }
    }
    return {out, 64, kTileBytes};
  }

  // Of few rows: tiles are made one group ahead of the products, as a load waits until what it reads has
  // reached L1.
  void few_values(TileData& t, Range rows, const QuantPanels& panels) {
    const Range groups = groups_of(panels);
    float constant[kFewRows];
    take_constants(t, rows.lo, rows.hi - rows.lo, constant);
    for (int64_t d = 0; d < D_; d += kGroup) {
      const auto make = [&](int64_t g) {
        return values_in_place_
                   ? tiles_in_place(panels, g, d)
                   : make_tiles(panels, g, d, value_tiles_ + g % 2 * column_tiles(D_) * kTileBytes);
      };
      ValueTiles next = make(groups.lo);
      columns(t, groups, rows.lo, rows.hi - rows.lo, d, constant, [&](int64_t g) {
        const ValueTiles now = next;
        if (g + 1 < groups.hi) next = make(g + 1);
        return now;
      });
    }
  }

  void values(TileData& t, Range rows, const QuantPanels& panels) {
    const Range groups = groups_of(panels);
    const auto made = [&](int64_t g, int64_t d) {  // a group's dims, 64 by 64
      return value_tiles_ + (g * column_tiles(D_) + d / 16) * kTileBytes;
    };
    for (int64_t g = groups.lo; g < groups.hi && !values_in_place_; ++g) {
      for (int64_t d = 0; d < D_; d += kGroup) make_tiles(panels, g, d, made(g, d));
    }
    for (int64_t r = rows.lo; r < rows.hi; r += kTileRows / 2) {
      const int64_t n = rows.hi - r < kTileRows / 2 ? rows.hi - r : kTileRows / 2;
      float constant[kTileRows / 2];
      take_constants(t, r, n, constant);
      for (int64_t d = 0; d < D_; d += kGroup) {
        columns(t, groups, r, n, d, constant, [&](int64_t g) {
          return values_in_place_ ? tiles_in_place(panels, g, d) : ValueTiles{made(g, d), 64, kTileBytes};
        });
      }
    }
  }
  // What is the same for all dims of a row, kept where the dims will come.
  void take_constants(const TileData& t, int64_t r, int64_t n, float* constant) const {
    for (int64_t i = 0; i < n; ++i) constant[i] = t.acc[(r + i) * D_];
  }

  // acc of n rows from r on, at most 64 dims from d on.
  template <class Source>
  void columns(TileData& t, Range groups, int64_t r, int64_t n, int64_t d, const float* constant,
               Source&& tiles) {
    switch (column_tiles(D_ - d < kGroup ? D_ - d : kGroup)) {
      case 1: return columns<1>(t, groups, r, n, d, constant, tiles);
      case 2: return columns<2>(t, groups, r, n, d, constant, tiles);
      case 3: return columns<3>(t, groups, r, n, d, constant, tiles);
      default: return columns<4>(t, groups, r, n, d, constant, tiles);
    }
  }
  template <int NC, class Source>
  void columns(TileData& t, Range groups, int64_t r, int64_t n, int64_t d, const float* constant,
               Source&& tiles) {
    _tile_zero(0);
    if constexpr (NC > 1) _tile_zero(1);
    if constexpr (NC > 2) _tile_zero(2);
    if constexpr (NC > 3) _tile_zero(3);
    for (int64_t g = groups.lo; g < groups.hi; ++g) {
      const ValueTiles v = tiles(g);
      const auto stride = static_cast<size_t>(v.stride);
      finish_stores();
      _tile_loadd(4, probs(r, g), 64);
      _tile_loadd(5, v.at, stride);
      _tile_dpbusd(0, 4, 5);
      ahead_.step();
      if constexpr (NC > 1) {
        _tile_loadd(5, v.at + v.next, stride);
        _tile_dpbusd(1, 4, 5);
        ahead_.step();
      }
      if constexpr (NC > 2) {
        _tile_loadd(5, v.at + 2 * v.next, stride);
        _tile_dpbusd(2, 4, 5);
        ahead_.step();
      }
      if constexpr (NC > 3) {
        _tile_loadd(5, v.at + 3 * v.next, stride);
        _tile_dpbusd(3, 4, 5);
        ahead_.step();
      }
    }
    store_results<NC>();
    finish_stores();
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
