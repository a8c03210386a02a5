// Attention arithmetic in f32 over a cache of any 16- or 32-bit float: a "codec" of attention_register.h.
// Keys and values are widened as they are loaded, exactly; queries and probabilities stay f32.
//
// What a codec is (the next cache formats add theirs beside this one):
//   Query, Prob                what a prepared query and a probability are stored as
//   kLogitRows, kLogitPanels   largest register tile of logits()
//   kValueRows                 largest of add_values()
//   kPairs                     values are taken two tokens at a time
//   prepare()                  scales a query and converts it
//   logits<R, NP>()            R queries against NP key panels
//   weigh()                    exponentials of the logits, and their sum
//   add_values<R>()            acc += p . V for R rows over a run of tokens
#pragma once

#include "kernels/cpu/attention/attention_ahead.h"
#include "kernels/cpu/vmath.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kPanelVectors = kKvPanelTokens / kLanes;

// Loaders: kDims dims of a key panel as vectors of tokens (lines kKeyStride apart); kTokens tokens of a value
// panel as vectors of dims (kDimBytes apart).
struct LoadF32 {
  static constexpr int kDims = 1, kTokens = 1, kKeyStride = 64, kDimBytes = 4;
  OAR_INLINE static void key(const char* line, int64_t vec, Vf* out) {
    out[0] = load(reinterpret_cast<const float*>(line) + vec * kLanes);
  }
  OAR_INLINE static int64_t value_offset(int64_t D, int64_t t, int64_t d) { return (t * D + d) * 4; }
  OAR_INLINE static void value(const char* p, int64_t n, Vf* out) {
    out[0] = load_part(reinterpret_cast<const float*>(p), n);
  }
};

struct LoadF16 {
  static constexpr int kDims = 1, kTokens = 1, kKeyStride = 32, kDimBytes = 2;
  OAR_INLINE static void key(const char* line, int64_t vec, Vf* out) {
    out[0] = load(reinterpret_cast<const f16*>(line) + vec * kLanes);
  }
  OAR_INLINE static int64_t value_offset(int64_t D, int64_t t, int64_t d) { return (t * D + d) * 2; }
  OAR_INLINE static void value(const char* p, int64_t n, Vf* out) {
    out[0] = load_part(reinterpret_cast<const f16*>(p), n);
  }
};

// Pairs: the low half of each 32-bit lane is the even dim (token), the high half the odd one.
struct LoadBf16 {
  static constexpr int kDims = 2, kTokens = 2, kKeyStride = 64, kDimBytes = 4;
  OAR_INLINE static void split(Vf pairs, Vf* out) {
    out[0] = from_bits(shift_left<16>(bits(pairs)));
    out[1] = from_bits(bits(pairs) & set1_int(static_cast<int32_t>(0xffff0000u)));
  }
  OAR_INLINE static void key(const char* line, int64_t vec, Vf* out) {
    split(load(reinterpret_cast<const float*>(line) + vec * kLanes), out);
  }
  OAR_INLINE static int64_t value_offset(int64_t D, int64_t t, int64_t d) { return (t / 2 * D + d) * 4; }
  OAR_INLINE static void value(const char* p, int64_t n, Vf* out) {
    split(load_part(reinterpret_cast<const float*>(p), n), out);
  }
};

template <class Loader>
struct FloatCodec {
  using Query = float;
  using Prob = float;
  static constexpr bool kPairs = false;  // single tokens: a pair's halves are separate additions here
  // Accumulators: 4 x 4 panels of one register in 32 registers of 16 lanes; 4 x 1 panel of two in 16
  // registers of 8; of four in the 32 of NEON; 2 x 1 of four otherwise.
#if defined(__aarch64__)
  static constexpr int kLogitRows = 4, kLogitPanels = 1;
#else
  static constexpr int kLogitRows = kLanes >= 8 ? 4 : 2, kLogitPanels = kLanes == 16 ? 4 : 1;
#endif
  static constexpr int kValueRows = 4, kValueVectors = kLanes == 16 ? 4 : 2;

  OAR_INLINE static void prepare(const float* q, float scale, int64_t D, Query* out) {
    for_lanes(D, [&](int64_t i, int64_t n) { store_part(out + i, load_part(q + i, n) * set1(scale), n); });
  }

  // out[r][16 * p + token] = q[r] . key, dims in ascending order. `ahead`: panels to prefetch meanwhile, or
  // null.
  template <int R, int NP>
  static void logits(const char* const* k, const char* const* ahead, const Query* q, int64_t D, float* out) {
    Vf acc[R][NP][kPanelVectors];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < NP; ++p) {
        for (int64_t v = 0; v < kPanelVectors; ++v) acc[r][p][v] = zero();
      }
    }
    for (int64_t d = 0; d < D; d += Loader::kDims) {
      const int64_t offset = d / Loader::kDims * Loader::kKeyStride;
      for (int p = 0; p < NP; ++p) {
        if (ahead != nullptr) prefetch(ahead[p] + offset);
        for (int64_t v = 0; v < kPanelVectors; ++v) {
          Vf key[Loader::kDims];
          Loader::key(k[p] + offset, v, key);
          for (int r = 0; r < R; ++r) {
            for (int i = 0; i < Loader::kDims; ++i) {
              acc[r][p][v] = fma(set1(q[r * D + d + i]), key[i], acc[r][p][v]);
            }
          }
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < NP; ++p) {
        for (int64_t v = 0; v < kPanelVectors; ++v) {
          store(out + r * kLogitStride + p * kKvPanelTokens + v * kLanes, acc[r][p][v]);
        }
      }
    }
  }

  // In place over the logits.
  OAR_INLINE static Vf weigh(const float* x, Prob* p, int64_t panels, Vf reference) {
    Vf sum[kPanelVectors];
    for (Vf& s : sum) s = zero();
    for (int64_t i = 0; i < panels * kKvPanelTokens; i += kKvPanelTokens) {
      for (int64_t j = 0; j < kPanelVectors; ++j) {
        const Vf e = exp2_nonpositive<6>(load(x + i + j * kLanes) - reference);
        store(p + i + j * kLanes, e);
        sum[j] = sum[j] + e;
      }
    }
    for (int64_t j = 1; j < kPanelVectors; ++j) sum[0] = sum[0] + sum[j];
    return sum[0];
  }

  // acc[r][:] += sum over tokens [lo, hi) of the span of p[r][token] * value, tokens in ascending order.
  template <int R>
  static void add_values(const char* const* v, const char* const* ahead, int64_t lo, int64_t hi,
                         const Prob* p, int64_t D, float* acc) {
    int64_t d = 0;
    for (; d + kValueVectors * kLanes <= D; d += kValueVectors * kLanes) {
      add_columns<R, kValueVectors>(v, ahead, lo, hi, p, D, d, kLanes, acc);
    }
    for (; d < D; d += kLanes) {
      add_columns<R, 1>(v, ahead, lo, hi, p, D, d, D - d < kLanes ? D - d : kLanes, acc);
    }
  }

 private:
  template <int R, int NV>
  OAR_INLINE static void add_columns(const char* const* v, const char* const* ahead, int64_t lo, int64_t hi,
                                     const Prob* p, int64_t D, int64_t d0, int64_t n, float* acc) {
    Vf c[R][NV];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < NV; ++j) c[r][j] = load_part(acc + r * D + d0 + j * kLanes, n);
    }
    for (int64_t t = lo; t < hi;) {
      // One load brings kTokens tokens; at the ends of the run some of them are not wanted, and not touched.
      const int64_t panel = t / kKvPanelTokens, first = t % Loader::kTokens;
      const int64_t base = t - first, wanted = hi - base < Loader::kTokens ? hi - base : Loader::kTokens;
      const int64_t offset = Loader::value_offset(D, base % kKvPanelTokens, d0);
      const char* row = v[panel] + offset;
      Vf value[NV][Loader::kTokens];
      for (int j = 0; j < NV; ++j) {
        Loader::value(row + j * kLanes * Loader::kDimBytes, n, value[j]);
        if (ahead != nullptr) prefetch(ahead[panel] + offset + j * kLanes * Loader::kDimBytes);
      }
      for (int i = 0; i < Loader::kTokens; ++i) {
        if (i < first || i >= wanted) continue;
        for (int r = 0; r < R; ++r) {
          const Vf prob = set1(p[r * kProbStride + base + i]);
          for (int j = 0; j < NV; ++j) c[r][j] = fma(prob, value[j][i], c[r][j]);
        }
      }
      t = base + Loader::kTokens;
    }
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < NV; ++j) store_part(acc + r * D + d0 + j * kLanes, c[r][j], n);
    }
  }

  static constexpr int64_t kProbStride = kLogitStride;
};

}  // namespace oar::OAR_SIMD_NAMESPACE
