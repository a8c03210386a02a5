// The Arch of int4_core.h with AVX2, over an Int8 Arch whose dot() takes vectors of 32 signed bytes. Only for
// files compiled with it.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/matmul/int4_core.h"

namespace oar {
namespace {

// Two lanes.
template <class Int8Arch>
struct Avx2Int4 {
  using Int8 = Int8Arch;
  using Bytes = __m256i;
  using X = __m256i;
  using Dot = __m256i;
  static constexpr int kParts = 2, kStreams = 1, kTokens = 2;

  struct Codebook {
    __m256i low, high;  // in each lane
  };
  static Codebook codebook(const int16_t* c) {
    const auto half = [](const int16_t* p) {
      return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    };
    return {half(c), half(c + 8)};
  }
  static __m256i of_group(const char* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // m as the high byte of a word.
  static __m256i words(const char* m, int part, int j) {
    const __m256i pick = _mm256_add_epi16(_mm256_set_m128i(_mm_set1_epi16(0x0480), _mm_set1_epi16(0x0080)),
                                          _mm256_set1_epi16(static_cast<short>((8 * part + j) << 8)));
    return _mm256_shuffle_epi8(of_group(m), pick);
  }
  // mulhrs gives (256 m * c + 2^14) >> 15.
  static Bytes table(const Codebook& c, const char* m, int part, int j) {
    const __m256i word = words(m, part, j);
    return _mm256_packs_epi16(_mm256_mulhrs_epi16(word, c.low), _mm256_mulhrs_epi16(word, c.high));
  }
  // mulhi gives (256 m * c) >> 16. Adding 128 to all bytes is what biased() does to them.
  template <bool kBiased>
  static Bytes table(const Codebook& c, const char* m, const char* o, int part, int j) {
    const __m256i word = words(m, part, j);
    const __m256i products =
        _mm256_packus_epi16(_mm256_mulhi_epu16(word, c.low), _mm256_mulhi_epu16(word, c.high));
    const __m256i spread = _mm256_add_epi8(_mm256_set_m128i(_mm_set1_epi8(4), _mm_setzero_si128()),
                                           _mm256_set1_epi8(static_cast<char>(8 * part + j)));
    __m256i offsets = of_group(o);
    if constexpr (kBiased && Int8::kBiased) offsets = _mm256_xor_si256(offsets, _mm256_set1_epi8(-128));
    return _mm256_add_epi8(products, _mm256_shuffle_epi8(offsets, spread));
  }
  static Bytes biased(Bytes table) { return table; }
  static Bytes load(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static void store(char* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static Bytes low(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static Bytes high(Bytes v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }
  static Bytes lookup(Bytes table, Bytes levels) { return _mm256_shuffle_epi8(table, levels); }
  static X load_x(const int8_t* x) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
  static Dot zero() { return _mm256_setzero_si256(); }
  static Dot dot(Dot d, Bytes w, X x) { return Int8::dot_signed(d, w, x); }
  static void transpose(Bytes v[4]) {
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi64(a, c);
    v[1] = _mm256_unpackhi_epi64(a, c);
    v[2] = _mm256_unpacklo_epi64(b, d);
    v[3] = _mm256_unpackhi_epi64(b, d);
  }
  static typename Int8::Dot total(const Dot d[4], int32_t /*start*/) {
    return _mm256_hadd_epi32(_mm256_hadd_epi32(d[0], d[1]), _mm256_hadd_epi32(d[2], d[3]));
  }
};

}  // namespace
}  // namespace oar
