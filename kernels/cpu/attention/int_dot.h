// Sums of products of small integers in 32-bit lanes, exact: the arithmetic of attention over a quantized
// cache. A line is a vector whose lanes hold four bytes each; it is widened once and multiplied with the four
// factors of several rows.
//
//   keys    unsigned bytes x int8 factors (a query)
//   values  signed bytes x 15-bit unsigned factors (probabilities)
//
// Being integers, the sums are the same whatever the order and the instruction set. Three bodies: VNNI, which
// multiplies bytes (a probability is then two of them); AVX2 and AVX-512, which multiply pairs of 16 bits;
// and 32-bit lanes of compiler vectors.
#pragma once

#include "kernels/cpu/simd.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Tokens packed by one call of pack_probs(), and words of 32 bits that these take for one row.
inline constexpr int64_t kProbBlock = 64;

OAR_INLINE Vi load_line(const char* p) { return load_int(reinterpret_cast<const int32_t*>(p)); }

#if defined(__AVX512VNNI__)

inline constexpr int64_t kFactorWords = 1;  // 32-bit words per four key factors
inline constexpr int64_t kProbWords = 32;   // per block: 16 words of the upper bytes, 16 of the lower

struct Line {
  Vi bytes;
};
OAR_INLINE Line unsigned_line(Vi bytes) { return {bytes}; }
OAR_INLINE Line signed_line(Vi bytes) { return {bytes}; }

// Four factors in every lane.
struct KeyFactor {
  Vi q;
};
// Of D dims, a multiple of 8; `q` is readable to whole vectors.
OAR_INLINE void store_factors(const int32_t* q, int64_t D, int32_t* out) {
  for_lanes(D, [&](int64_t d, int64_t n) {
    const auto lanes = static_cast<__mmask16>((1u << n) - 1u);
    _mm512_mask_cvtepi32_storeu_epi8(out + d / 4, lanes, load_int(q + d).v);
  });
}
OAR_INLINE KeyFactor key_factor(const int32_t* p) { return {set1_int(*p)}; }
OAR_INLINE Vi key_dot(Vi acc, Line k, KeyFactor f) { return {_mm512_dpbusd_epi32(acc.v, k.bytes.v, f.q.v)}; }

struct ProbFactor {
  Vi high, low;
};
struct ValueSum {
  Vi high{_mm512_setzero_si512()}, low{_mm512_setzero_si512()};
};
OAR_INLINE ProbFactor prob_factor(const int32_t* block, int64_t four) {
  return {set1_int(block[four]), set1_int(block[16 + four])};
}
OAR_INLINE void value_dot(ValueSum& sum, Line v, ProbFactor f) {
  sum.high = {_mm512_dpbusd_epi32(sum.high.v, f.high.v, v.bytes.v)};
  sum.low = {_mm512_dpbusd_epi32(sum.low.v, f.low.v, v.bytes.v)};
}
OAR_INLINE Vi total(const ValueSum& sum) { return shift_left<8>(sum.high) + sum.low; }

// round(w), in [0, 32767], of 64 tokens.
OAR_INLINE void pack_probs(const Vf* w, int32_t* block) {
  __m512i v[4];
  OAR_UNROLL
  for (int i = 0; i < 4; ++i) v[i] = to_int(w[i]).v;
  // Packing works within quarters of the vectors: four tokens of v[0], of v[1], v[2], v[3] side by side.
  const __m512i a = _mm512_packus_epi32(v[0], v[1]), b = _mm512_packus_epi32(v[2], v[3]);
  const __m512i low_byte = _mm512_set1_epi16(0xff);
  const __m512i high = _mm512_packus_epi16(_mm512_srli_epi16(a, 8), _mm512_srli_epi16(b, 8));
  const __m512i low = _mm512_packus_epi16(_mm512_and_si512(a, low_byte), _mm512_and_si512(b, low_byte));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(block, _mm512_permutexvar_epi32(order, high));
  _mm512_storeu_si512(block + 16, _mm512_permutexvar_epi32(order, low));
}

#elif defined(__AVX2__)

inline constexpr int64_t kFactorWords = 2;  // pairs of 16 bits: factors 0 and 2, 1 and 3
inline constexpr int64_t kProbWords = 32;   // the same for probabilities

#if defined(__AVX512F__)
OAR_INLINE Vi madd(Vi a, Vi b) { return {_mm512_madd_epi16(a.v, b.v)}; }
OAR_INLINE Vi even_unsigned(Vi x) { return {_mm512_and_si512(x.v, _mm512_set1_epi16(0xff))}; }
OAR_INLINE Vi odd_unsigned(Vi x) { return {_mm512_srli_epi16(x.v, 8)}; }
OAR_INLINE Vi even_signed(Vi x) { return {_mm512_srai_epi16(_mm512_slli_epi16(x.v, 8), 8)}; }
OAR_INLINE Vi odd_signed(Vi x) { return {_mm512_srai_epi16(x.v, 8)}; }
#else
OAR_INLINE Vi madd(Vi a, Vi b) { return {_mm256_madd_epi16(a.v, b.v)}; }
OAR_INLINE Vi even_unsigned(Vi x) { return {_mm256_and_si256(x.v, _mm256_set1_epi16(0xff))}; }
OAR_INLINE Vi odd_unsigned(Vi x) { return {_mm256_srli_epi16(x.v, 8)}; }
OAR_INLINE Vi even_signed(Vi x) { return {_mm256_srai_epi16(_mm256_slli_epi16(x.v, 8), 8)}; }
OAR_INLINE Vi odd_signed(Vi x) { return {_mm256_srai_epi16(x.v, 8)}; }
#endif

struct Line {
  Vi even, odd;
};
OAR_INLINE Line unsigned_line(Vi bytes) { return {even_unsigned(bytes), odd_unsigned(bytes)}; }
OAR_INLINE Line signed_line(Vi bytes) { return {even_signed(bytes), odd_signed(bytes)}; }

struct KeyFactor {
  Vi even, odd;
};
OAR_INLINE int32_t pair16(int32_t low, int32_t high) {
  return static_cast<int32_t>((static_cast<uint32_t>(low) & 0xffffu) | static_cast<uint32_t>(high) << 16);
}
OAR_INLINE void store_factors(const int32_t* q, int64_t D, int32_t* out) {
  for (int64_t d = 0; d < D; d += 4, q += 4, out += kFactorWords) {
    out[0] = pair16(q[0], q[2]);
    out[1] = pair16(q[1], q[3]);
  }
}
OAR_INLINE KeyFactor key_factor(const int32_t* p) { return {set1_int(p[0]), set1_int(p[1])}; }
OAR_INLINE Vi key_dot(Vi acc, Line k, KeyFactor f) { return acc + madd(k.even, f.even) + madd(k.odd, f.odd); }

using ProbFactor = KeyFactor;
struct ValueSum {
  Vi sum = set1_int(0);
};
OAR_INLINE ProbFactor prob_factor(const int32_t* block, int64_t four) { return key_factor(block + 2 * four); }
OAR_INLINE void value_dot(ValueSum& sum, Line v, ProbFactor f) { sum.sum = key_dot(sum.sum, v, f); }
OAR_INLINE Vi total(const ValueSum& sum) { return sum.sum; }

// Words (0, 1, 2, 3) of a quarter to (0, 2, 1, 3).
OAR_INLINE void pack_probs(const Vf* w, int32_t* block) {
  const __m128i words = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
  OAR_UNROLL
  for (int64_t i = 0; i < kProbBlock; i += 2 * kLanes) {
    const Vi a = to_int(w[i / kLanes]), b = to_int(w[i / kLanes + 1]);
#if defined(__AVX512F__)
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i packed = _mm512_permutexvar_epi64(order, _mm512_packus_epi32(a.v, b.v));
    _mm512_storeu_si512(block + i / 2, _mm512_shuffle_epi8(packed, _mm512_broadcast_i32x4(words)));
#else
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.v, b.v), _MM_SHUFFLE(3, 1, 2, 0));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block + i / 2),
                        _mm256_shuffle_epi8(packed, _mm256_broadcastsi128_si256(words)));
#endif
  }
}

#else

inline constexpr int64_t kFactorWords = 4, kProbWords = kProbBlock;

struct Line {
  Vi byte[4];
};
OAR_INLINE Line unsigned_line(Vi x) {
  const Vi mask = set1_int(0xff);
  return {{x & mask, shift_right<8>(x) & mask, shift_right<16>(x) & mask, shift_right<24>(x) & mask}};
}
OAR_INLINE Line signed_line(Vi x) {
  return {{shift_right<24>(shift_left<24>(x)), shift_right<24>(shift_left<16>(x)),
           shift_right<24>(shift_left<8>(x)), shift_right<24>(x)}};
}

struct KeyFactor {
  Vi q[4];
};
OAR_INLINE void store_factors(const int32_t* q, int64_t D, int32_t* out) {
  memcpy(out, q, static_cast<size_t>(D) * sizeof *q);
}
OAR_INLINE KeyFactor key_factor(const int32_t* p) {
  return {{set1_int(p[0]), set1_int(p[1]), set1_int(p[2]), set1_int(p[3])}};
}
OAR_INLINE Vi key_dot(Vi acc, const Line& k, const KeyFactor& f) {
  for (int i = 0; i < 4; ++i) acc = acc + k.byte[i] * f.q[i];
  return acc;
}

using ProbFactor = KeyFactor;
struct ValueSum {
  Vi sum = set1_int(0);
};
OAR_INLINE ProbFactor prob_factor(const int32_t* block, int64_t four) { return key_factor(block + 4 * four); }
OAR_INLINE void value_dot(ValueSum& sum, const Line& v, const ProbFactor& f) {
  sum.sum = key_dot(sum.sum, v, f);
}
OAR_INLINE Vi total(const ValueSum& sum) { return sum.sum; }

OAR_INLINE void pack_probs(const Vf* w, int32_t* block) {
  for (int64_t i = 0; i < kProbBlock; i += kLanes) {
    const Vi p = to_int(w[i / kLanes]);
    memcpy(block + i, &p, sizeof p);
  }
}

#endif

// The nibbles of a line: elements 0..3 of each lane, and 4..7.
OAR_INLINE Vi low_nibbles(Vi x) { return x & set1_int(0x0f0f0f0f); }
OAR_INLINE Vi high_nibbles(Vi x) { return shift_right<4>(x) & set1_int(0x0f0f0f0f); }

}  // namespace oar::OAR_SIMD_NAMESPACE
