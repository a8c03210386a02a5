// The register-tile engine of attention_simd.h: logits and values by a codec's small tiles of rows x panels,
// accumulators in vector registers (attention_float.h says what a codec is).
#pragma once

#include "kernels/cpu/attention/attention_simd.h"

namespace oar::OAR_SIMD_NAMESPACE {

template <class Codec>
class RegisterEngine {
 public:
  using Query = typename Codec::Query;
  using Prob = typename Codec::Prob;
  using Rows = TileRows<RegisterEngine>;
  static constexpr int64_t kRowPadding = 0, kProbAlign = kKvPanelTokens;

  static size_t scratch_bytes(int64_t) { return 0; }
  RegisterEngine(int64_t, int64_t, void*) {}
  void begin(const Rows&) {}

  OAR_INLINE static void prepare(const float* q, float scale, int64_t D, Query* out) {
    Codec::prepare(q, scale, D, out);
  }
  OAR_INLINE static Vf weigh(const float* x, Prob* p, int64_t panels, Vf reference) {
    return Codec::weigh(x, p, panels, reference);
  }

  // Panels in groups of a register tile, which stay in L1 for all rows.
  void logits(const Rows& t, const SpanWork& w) {
    for (int64_t g = w.panels->lo; g < w.panels->hi; g += Codec::kLogitPanels) {
      const int64_t rest = w.panels->hi - g, n = rest < Codec::kLogitPanels ? rest : Codec::kLogitPanels;
      const char* const* ahead = w.beside_k + g;
      for (int64_t r = w.row_begin; r < w.row_end;) {
        const int64_t rows = w.row_end - r < Codec::kLogitRows ? w.row_end - r : Codec::kLogitRows;
        const Range first = t.in_span(r, w.span), last = t.in_span(r + rows - 1, w.span);
        if (last.hi > g * kKvPanelTokens && first.lo < (g + n) * kKvPanelTokens) {
          logits_tile(t, rows, n, w.panels->k + g, ahead, r, g);
          ahead = nullptr;
        }
        r += rows;
      }
    }
  }

  // In blocks of 64 tokens, whose values stay in L1 for all rows. Rows of one register tile may see different
  // positions: what they share is done together, the rest row by row, each row in ascending order throughout.
  void values(const Rows& t, const SpanWork& w) {
    constexpr int64_t kBlock = 64;
    constexpr int64_t kStep = Codec::kPairs ? 2 : 1;
    memset(t.acc + w.row_begin * t.DV, 0,
           static_cast<size_t>((w.row_end - w.row_begin) * t.DV) * sizeof(float));
    for (int64_t b = w.panels->lo * kKvPanelTokens / kBlock * kBlock; b < w.panels->hi * kKvPanelTokens;
         b += kBlock) {
      const char* const* ahead = w.beside_v;
      for (int64_t r = w.row_begin; r < w.row_end;) {
        const int64_t rows = w.row_end - r < Codec::kValueRows ? w.row_end - r : Codec::kValueRows;
        auto in_block = [&](int64_t row) {
          const Range s = t.in_span(row, w.span);
          return Range{s.lo > b ? s.lo : b, s.hi < b + kBlock ? s.hi : b + kBlock};
        };
        const Range first = in_block(r), last = in_block(r + rows - 1);
        Range shared = {ceil_div(last.lo, kStep) * kStep, first.hi / kStep * kStep};
        if (shared.lo >= shared.hi) shared = {last.hi, last.hi};  // nothing in common
        for (int64_t i = 0; i < rows; ++i) {
          const Range own = in_block(r + i);
          add_values<1>(t, w, nullptr, own.lo, own.hi < shared.lo ? own.hi : shared.lo, r + i);
        }
        if (shared.lo < shared.hi) {
          dispatch_rows<Codec::kValueRows>(
              rows, [&]<int R>() { add_values<R>(t, w, ahead, shared.lo, shared.hi, r); });
          ahead = nullptr;
        }
        for (int64_t i = 0; i < rows; ++i) {
          const Range own = in_block(r + i);
          add_values<1>(t, w, nullptr, own.lo > shared.hi ? own.lo : shared.hi, own.hi, r + i);
        }
        r += rows;
      }
    }
  }

 private:
  OAR_INLINE static void logits_tile(const Rows& t, int64_t rows, int64_t n, const char* const* k,
                                     const char* const* ahead, int64_t r, int64_t g) {
    const Query* q = t.q + r * t.D;
    float* out = t.logits + r * kLogitStride + g * kKvPanelTokens;
    dispatch_rows<Codec::kLogitRows>(rows, [&]<int R>() {
      if (n == Codec::kLogitPanels) {
        Codec::template logits<R, Codec::kLogitPanels>(k, ahead, q, t.D, out);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          const char* const* one = ahead != nullptr ? ahead + i : nullptr;
          Codec::template logits<R, 1>(k + i, one, q, t.D, out + i * kKvPanelTokens);
        }
      }
    });
  }

  template <int R>
  OAR_INLINE static void add_values(const Rows& t, const SpanWork& w, const char* const* ahead, int64_t lo,
                                    int64_t hi, int64_t r) {
    if (lo >= hi) return;
    Codec::template add_values<R>(w.panels->v, ahead, lo, hi, t.probs(r), t.DV, t.acc + r * t.DV);
  }

  // Calls f.operator()<rows>(), 1 <= rows <= Max <= 4.
  template <int Max, class F>
  OAR_INLINE static void dispatch_rows(int64_t rows, F&& f) {
    if constexpr (Max >= 4) {
      if (rows == 4) return f.template operator()<4>();
    }
    if constexpr (Max >= 3) {
      if (rows == 3) return f.template operator()<3>();
    }
    if constexpr (Max >= 2) {
      if (rows == 2) return f.template operator()<2>();
    }
    f.template operator()<1>();
  }
};

}  // namespace oar::OAR_SIMD_NAMESPACE
