// The AMX engine of attention_simd.h, for a bf16 cache whose pages are multiples of 32 tokens. Queries, keys,
// probabilities and values go through 16 x 16 tile products (TDPBF16PS) straight from the cache's panels: a
// key panel is 32 dims x 16 tokens per tile, a value panel pair 32 tokens x 16 dims.
//
// A tile product forms each of its 256 elements alone, in a fixed order, whatever the other rows hold. So
// decode, with the few rows of one query, and prefill agree to the bit if both see the same 32 values in the
// same step. Steps are of 32 tokens aligned to positions, with zero for what a row does not see.
//
// Zero times NaN is NaN, so bytes that no row of a tile sees are copied out and zeroed first; the rows of
// several queries may share a tile. Where a NaN or infinity comes out, the queries are multiplied again one
// by one, since it may belong to the later ones alone.
#pragma once

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention/attention_bf16.h"
#include "kernels/cpu/attention/attention_simd.h"

namespace oar::OAR_SIMD_NAMESPACE {

class AmxEngine {
 public:
  using Query = bf16;
  using Prob = bf16;
  using Rows = TileRows<AmxEngine>;
  static constexpr int64_t kTile = 16, kStep = 32;  // rows; dims or tokens of one product
  static constexpr int64_t kRowPadding = kTile - 1, kProbAlign = kStep;

  // Values with unseen tokens zeroed, and a result tile of which only some rows or columns are wanted.
  static size_t scratch_bytes(int64_t D) {
    return static_cast<size_t>(kStep * D) * sizeof(bf16) + 4 * kTile * kTile * sizeof(float);
  }
  AmxEngine(int64_t D, int64_t DV, void* scratch)
      : D_(D),
        DV_(DV),
        masked_values_(static_cast<char*>(scratch)),
        spill_(reinterpret_cast<float*>(masked_values_ + kStep * DV * static_cast<int64_t>(sizeof(bf16)))) {}
  ~AmxEngine() { _tile_release(); }
  AmxEngine(const AmxEngine&) = delete;
  AmxEngine& operator=(const AmxEngine&) = delete;

  static void prepare(const float* q, float scale, int64_t D, Query* out) {
    Bf16Codec::prepare(q, scale, D, out);
  }
  OAR_INLINE static Vf weigh(const float* x, Prob* p, int64_t panels, Vf reference) {
    return Bf16Codec::weigh(x, p, panels, reference);
  }

  void begin(const Rows& t) {
    const int64_t rows = t.rows < kTile ? t.rows : kTile;
    if (rows == tile_rows_) return;
    tile_rows_ = rows;
    loaded_ = nullptr;
    // Tiles 0..3 accumulate; 4 and 5 are the operands, 6 and 7 those of a last, shorter step: fewer dims in
    // logits(), fewer columns in values().
    logits_config_ = values_config_ = TileConfig();
    for (int i = 0; i < 4; ++i) {
      logits_config_.set(i, rows, 64);
      values_config_.set(i, rows, 64);
    }
    logits_config_.set(4, rows, 64);
    logits_config_.set(5, 16, 64);
    values_config_.set(4, rows, 64);
    values_config_.set(5, 16, 64);
    const int64_t dims = D_ % kStep, columns = DV_ % kTile;
    if (dims != 0) {
      logits_config_.set(6, rows, dims * 2);
      logits_config_.set(7, dims / 2, 64);
    }
    if (columns != 0) {
      values_config_.set(6, rows, columns * 4);
      values_config_.set(7, 16, columns * 4);
    }
  }

  // Somebody else has configured tiles since.
  void forget() { loaded_ = nullptr; }

  // What logits() and values() fetch meanwhile: a share with each product.
  void look_ahead(const Rows&, const SpanWork& w, const SpanPanels& next, int64_t panel_bytes) {
    ahead_.clear();
    ahead_.add(next, panel_bytes);
    const int64_t tiles = ceil_div(w.row_end - w.row_begin, tile_rows_);
    ahead_.begin(tiles * (D_ / kStep * kSpanPanels + DV_ / kTile * (kSpan / kStep)) + 1);
  }

  void logits(const Rows& t, const SpanWork& w) {
    load_config(&logits_config_);
    for (int64_t g = w.panels->lo; g < w.panels->hi; g += 4) {
      const int64_t n = w.panels->hi - g < 4 ? w.panels->hi - g : 4;
      for (int64_t r = w.row_begin; r < w.row_end; r += tile_rows_) {
        const int64_t r_last = (r + tile_rows_ < w.row_end ? r + tile_rows_ : w.row_end) - 1;
        if (t.in_span(r_last, w.span).hi <= g * kKvPanelTokens) continue;
        if (t.in_span(r, w.span).lo >= (g + n) * kKvPanelTokens) continue;
        float* out = t.logits + r * kLogitStride + g * kKvPanelTokens;
        if (n == 4) {
          logits_tile<4>(t.q + r * D_, w.panels->k + g, out);
        } else {
          for (int64_t i = 0; i < n; ++i) {
            logits_tile<1>(t.q + r * D_, w.panels->k + g + i, out + i * kKvPanelTokens);
          }
        }
      }
    }
  }

  void values(const Rows& t, const SpanWork& w) {
    // The same shapes then.
    load_config(D_ % kStep == 0 && DV_ % kStep == 0 ? &logits_config_ : &values_config_);
    // Columns outside, rows inside: the values of 64 columns (32 KB) stay in L1 for all rows.
    int64_t d = 0;
    for (; d + 4 * kTile <= DV_; d += 4 * kTile) all_rows<4>(t, w, d);
    for (; d + kTile <= DV_; d += kTile) all_rows<1>(t, w, d);
    if (d < DV_) all_rows<0>(t, w, d);
    for (int64_t r = w.row_begin; r < w.row_end; r += tile_rows_) {
      const int64_t n = rows_from(w, r);
      const Range first = t.in_span(r, w.span), last = t.in_span(r + n - 1, w.span);
      if (first.lo == last.lo && first.hi == last.hi) continue;  // one query, or several that see the same
      if (!all_finite(t.acc + r * DV_, n * DV_)) one_by_one(t, w, r, n);
    }
  }

 private:
  // The intrinsics that read memory do not say so to the compiler (g++ 12): what they read is finished first.
  OAR_INLINE static void finish_stores() { __asm__ volatile("" ::: "memory"); }

  void load_config(const TileConfig* config) {
    finish_stores();
    if (loaded_ == config) return;
    _tile_loadconfig(config);
    loaded_ = config;
  }

  // Logits of a tile of rows for NP panels.
  template <int NP>
  void logits_tile(const Query* q, const char* const* k, float* out) {
    _tile_zero(0);
    if constexpr (NP > 1) {
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    const auto q_stride = static_cast<size_t>(D_) * sizeof(Query);
    int64_t d = 0;
    for (; d + kStep <= D_; d += kStep) {
      _tile_loadd(4, q + d, q_stride);
      const int64_t offset = d * 32;  // 16 tokens x 2 bytes per dim
      _tile_loadd(5, k[0] + offset, 64);
      _tile_dpbf16ps(0, 4, 5);
      ahead_.step();
      if constexpr (NP > 1) {
        _tile_loadd(5, k[1] + offset, 64);
        _tile_dpbf16ps(1, 4, 5);
        ahead_.step();
        _tile_loadd(5, k[2] + offset, 64);
        _tile_dpbf16ps(2, 4, 5);
        ahead_.step();
        _tile_loadd(5, k[3] + offset, 64);
        _tile_dpbf16ps(3, 4, 5);
        ahead_.step();
      }
    }
    if (d < D_) {
      _tile_loadd(6, q + d, q_stride);
      _tile_loadd(7, k[0] + d * 32, 64);
      _tile_dpbf16ps(0, 6, 7);
      if constexpr (NP > 1) {
        _tile_loadd(7, k[1] + d * 32, 64);
        _tile_dpbf16ps(1, 6, 7);
        _tile_loadd(7, k[2] + d * 32, 64);
        _tile_dpbf16ps(2, 6, 7);
        _tile_loadd(7, k[3] + d * 32, 64);
        _tile_dpbf16ps(3, 6, 7);
      }
    }
    constexpr size_t kOutStride = kLogitStride * sizeof(float);
    _tile_stored(0, out, kOutStride);
    if constexpr (NP > 1) {
      _tile_stored(1, out + kKvPanelTokens, kOutStride);
      _tile_stored(2, out + 2 * kKvPanelTokens, kOutStride);
      _tile_stored(3, out + 3 * kKvPanelTokens, kOutStride);
    }
  }

  int64_t rows_from(const SpanWork& w, int64_t r) const {
    return w.row_end - r < tile_rows_ ? w.row_end - r : tile_rows_;
  }

  template <int NC>
  void all_rows(const Rows& t, const SpanWork& w, int64_t d) {
    for (int64_t r = w.row_begin; r < w.row_end; r += tile_rows_) {
      columns_values<NC>(t, w, r, rows_from(w, r), d);
    }
  }

  // The same for each query of rows [r, r + n) alone.
  void one_by_one(const Rows& t, const SpanWork& w, int64_t r, int64_t n) {
    for (int64_t i = r; i < r + n;) {
      const int64_t next = (i / t.p.group + 1) * t.p.group, end = next < r + n ? next : r + n;
      int64_t d = 0;
      for (; d + 4 * kTile <= DV_; d += 4 * kTile) columns_values<4>(t, w, i, end - i, d);
      for (; d + kTile <= DV_; d += kTile) columns_values<1>(t, w, i, end - i, d);
      if (d < DV_) columns_values<0>(t, w, i, end - i, d);
      i = end;
    }
  }

  // acc of rows [r, r + n) = p . V over what any of them sees, NC tiles of columns from d on; 0: the narrow
  // one.
  template <int NC>
  void columns_values(const Rows& t, const SpanWork& w, int64_t r, int64_t n, int64_t d) {
    const Range seen = {t.in_span(r, w.span).lo, t.in_span(r + n - 1, w.span).hi};
    constexpr int64_t kProbStride = kLogitStride * static_cast<int64_t>(sizeof(float));
    const int64_t stride = DV_ * 4;  // a pair of tokens
    _tile_zero(0);
    if constexpr (NC == 4) {
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    if constexpr (NC == 0) _tile_zero(6);
    for (int64_t s = seen.lo / kStep * kStep; s < seen.hi; s += kStep) {
      const bool whole = s >= seen.lo && s + kStep <= seen.hi;
      const char* v = (whole ? w.panels->v[s / kKvPanelTokens] : masked_values(w, s, seen, d, NC)) + d * 4;
      if (!whole) finish_stores();
      _tile_loadd(4, t.probs(r) + s, kProbStride);
      if constexpr (NC == 0) {
        _tile_loadd(7, v, stride);
        _tile_dpbf16ps(6, 4, 7);
      } else {
        _tile_loadd(5, v, stride);
        _tile_dpbf16ps(0, 4, 5);
        ahead_.step();
      }
      if constexpr (NC == 4) {
        _tile_loadd(5, v + 64, stride);
        _tile_dpbf16ps(1, 4, 5);
        ahead_.step();
        _tile_loadd(5, v + 128, stride);
        _tile_dpbf16ps(2, 4, 5);
        ahead_.step();
        _tile_loadd(5, v + 192, stride);
        _tile_dpbf16ps(3, 4, 5);
        ahead_.step();
      }
    }
    const bool all_rows = n == tile_rows_;
    constexpr int64_t kColumns = NC == 0 ? 8 : NC * kTile;
    float* out = all_rows ? t.acc + r * DV_ + d : spill_;
    const size_t out_stride = static_cast<size_t>(all_rows ? DV_ : kColumns) * sizeof(float);
    if constexpr (NC == 0) {
      _tile_stored(6, out, out_stride);
    } else {
      _tile_stored(0, out, out_stride);
    }
    if constexpr (NC == 4) {
      _tile_stored(1, out + kTile, out_stride);
      _tile_stored(2, out + 2 * kTile, out_stride);
      _tile_stored(3, out + 3 * kTile, out_stride);
    }
    if (all_rows) return;
    for (int64_t i = 0; i < n; ++i) {
      memcpy(t.acc + (r + i) * DV_ + d, spill_ + i * kColumns, kColumns * sizeof(float));
    }
  }

  // The values of tokens [s, s + 32) with those outside `seen` zero, laid out as a panel pair; only the
  // columns that NC tiles from d on read.
  const char* masked_values(const SpanWork& w, int64_t s, Range seen, int64_t d, int nc) {
    const int64_t columns = nc == 0 ? 8 : nc * kTile;
    for (int64_t i = 0; i < kStep / 2; ++i) {
      const int64_t t = s + 2 * i;
      char* out = masked_values_ + (i * DV_ + d) * 4;
      if (t + 1 < seen.lo || t >= seen.hi) {
        memset(out, 0, static_cast<size_t>(columns) * 4);
        continue;
      }
      const char* pair = w.panels->v[t / kKvPanelTokens] + (t % kKvPanelTokens / 2 * DV_ + d) * 4;
      const uint32_t mask = (t >= seen.lo ? 0x0000ffffu : 0u) | (t + 1 < seen.hi ? 0xffff0000u : 0u);
      const __m256i keep = _mm256_set1_epi32(static_cast<int>(mask));
      for (int64_t c = 0; c < columns; c += 8) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair + c * 4));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + c * 4), _mm256_and_si256(x, keep));
      }
    }
    return masked_values_;
  }

  static bool all_finite(const float* x, int64_t n) {
    Mask bad{0};
    for_lanes(n, [&](int64_t i, int64_t lanes) {
      const Vf v = load_part(x + i, lanes);
      bad.m |= is_nan(v - v).m;  // inf - inf
    });
    return !any(bad);
  }

  int64_t D_, DV_;  // widths of keys and of values
  SpanAhead ahead_;
  char* masked_values_;
  float* spill_;
  TileConfig logits_config_, values_config_;
  const TileConfig* loaded_ = nullptr;
  int64_t tile_rows_ = 0;
};

}  // namespace oar::OAR_SIMD_NAMESPACE
