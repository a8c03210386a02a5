// Attention over a bf16 cache with the pair dot product (vdpbf16ps): a codec of attention_simd.h
// (attention_float.h says what that is) for AVX512-BF16. Queries, with the scale folded in, and probabilities
// are rounded to bf16. The softmax sum is of the rounded probabilities. So 2^-9 per factor is lost, as much
// as keys and values lost when they were stored.
#pragma once

#include "kernels/cpu/attention/attention_float.h"

namespace oar::OAR_SIMD_NAMESPACE {

struct Bf16Codec {
  using Query = bf16;
  using Prob = bf16;
  static constexpr bool kPairs = true;
  static constexpr int kLogitRows = 4, kLogitPanels = 4, kValueRows = 4, kValueVectors = 4;

  OAR_INLINE static void prepare(const float* q, float scale, int64_t D, Query* out) {
    for_lanes(D, [&](int64_t i, int64_t n) { store_bf16(out + i, load_part(q + i, n) * set1(scale), n); });
  }

  OAR_INLINE static __m256i round_bf16(Vf x) { return (__m256i)_mm512_cvtneps_pbh(x.v); }
  OAR_INLINE static void store_bf16(bf16* out, Vf x, int64_t n) {
    _mm256_mask_storeu_epi16(out, static_cast<__mmask16>((1u << n) - 1u), round_bf16(x));
  }
  // The sum is of the rounded probabilities: a dot product with ones.
  OAR_INLINE static Vf weigh(const float* x, Prob* p, int64_t panels, Vf reference) {
    const auto ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
    __m512 sum = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 32 <= panels * kKvPanelTokens; i += 32) {
      const Vf lo = exp2_nonpositive<4>(load(x + i) - reference),
               hi = exp2_nonpositive<4>(load(x + i + 16) - reference);
      const __m512bh pair = _mm512_cvtne2ps_pbh(hi.v, lo.v);
      _mm512_storeu_si512(p + i, (__m512i)pair);
      sum = _mm512_dpbf16_ps(sum, pair, ones);
    }
    if (i < panels * kKvPanelTokens) {
      const __m256i last = round_bf16(exp2_nonpositive<4>(load(x + i) - reference));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + i), last);
      sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_zextsi256_si512(last), ones);
    }
    return {sum};
  }

  // Two neighbouring bf16 in every lane.
  OAR_INLINE static __m512bh broadcast_pair(const bf16* p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }

  template <int R, int NP>
  static void logits(const char* const* k, const char* const* ahead, const Query* q, int64_t D, float* out) {
    __m512 acc[R][NP];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < NP; ++p) acc[r][p] = _mm512_setzero_ps();
    }
    for (int64_t d = 0; d < D; d += 2) {
      __m512bh key[NP];
      for (int p = 0; p < NP; ++p) {
        key[p] = (__m512bh)_mm512_loadu_si512(k[p] + d * 32);
        if (ahead != nullptr) prefetch(ahead[p] + d * 32);
      }
      for (int r = 0; r < R; ++r) {
        const __m512bh pair = broadcast_pair(q + r * D + d);
        for (int p = 0; p < NP; ++p) acc[r][p] = _mm512_dpbf16_ps(acc[r][p], key[p], pair);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < NP; ++p) _mm512_storeu_ps(out + r * kLogitStride + p * kKvPanelTokens, acc[r][p]);
    }
  }

  template <int R>
  static void add_values(const char* const* v, const char* const* ahead, int64_t lo, int64_t hi,
                         const Prob* p, int64_t D, float* acc) {
    int64_t d = 0;
    for (; d + kValueVectors * 16 <= D; d += kValueVectors * 16) {
      add_columns<R, kValueVectors>(v, ahead, lo, hi, p, D, d, 16, acc);
    }
    for (; d < D; d += 16) add_columns<R, 1>(v, ahead, lo, hi, p, D, d, D - d < 16 ? D - d : 16, acc);
  }

 private:
  // Even runs of pairs, except at the ends of a row's range. There the token that is not visible is masked
  // out of the values: its probability is zero, but zero times what may lie there need not be.
  template <int R, int NV>
  OAR_INLINE static void add_columns(const char* const* v, const char* const* ahead, int64_t lo, int64_t hi,
                                     const Prob* p, int64_t D, int64_t d0, int64_t n, float* acc) {
    const auto lanes = static_cast<__mmask16>((1u << n) - 1u);
    __m512 c[R][NV];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < NV; ++j) c[r][j] = _mm512_maskz_loadu_ps(lanes, acc + r * D + d0 + j * 16);
    }
    auto pair = [&](int64_t t, bool masked, uint32_t mask) __attribute__((always_inline)) {
      const int64_t panel = t / kKvPanelTokens, offset = (t % kKvPanelTokens / 2 * D + d0) * 4;
      __m512bh value[NV];
      for (int j = 0; j < NV; ++j) {
        __m512i x = _mm512_maskz_loadu_epi32(lanes, v[panel] + offset + j * 64);
        if (ahead != nullptr) prefetch(ahead[panel] + offset + j * 64);
        if (masked) x = _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(mask)));
        value[j] = (__m512bh)x;
      }
      for (int r = 0; r < R; ++r) {
        const __m512bh prob = broadcast_pair(p + r * kProbStride + t);
        for (int j = 0; j < NV; ++j) c[r][j] = _mm512_dpbf16_ps(c[r][j], value[j], prob);
      }
    };
    int64_t t = lo;
    if (t % 2 != 0) {
      pair(t - 1, true, 0xffff0000u);
      ++t;
    }
    for (; t + 2 <= hi; t += 2) pair(t, false, 0);
    if (t < hi) pair(t, true, 0x0000ffffu);
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < NV; ++j) _mm512_mask_storeu_ps(acc + r * D + d0 + j * 16, lanes, c[r][j]);
    }
  }

  static constexpr int64_t kProbStride = kLogitStride * 2;
};

}  // namespace oar::OAR_SIMD_NAMESPACE
