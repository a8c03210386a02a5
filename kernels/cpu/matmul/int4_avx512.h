// The Arch of int4_core.h with AVX-512, over an Int8 Arch whose dot_signed() takes vectors of 64 signed
// bytes. Only for files compiled with it.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/matmul/int4_core.h"
#include "kernels/cpu/x86_reduce.h"

namespace oar {
namespace {

// Four lanes.
template <class Int8Arch>
struct Avx512Int4 {
  using Int8 = Int8Arch;
  using Bytes = __m512i;
  using X = __m512i;
  using Dot = __m512i;
  static constexpr int kParts = 1, kStreams = 1, kTokens = 4;

  struct Codebook {
    __m512i low, high;  // in each lane
    __m512i pick[4];    // what puts byte 4 i + j above a zero, in each word of lane i
    __m512i spread[4];  // and in each byte
  };
  static Codebook codebook(const int16_t* c) {
    const auto half = [](const int16_t* p) {
      return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    };
    Codebook out{half(c), half(c + 8), {}, {}};
    const __m512i lanes = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_set_m128i(_mm_set1_epi16(0x0480), _mm_set1_epi16(0x0080))),
        _mm256_set_m128i(_mm_set1_epi16(0x0c80), _mm_set1_epi16(0x0880)), 1);
    for (int j = 0; j < 4; ++j) {
      out.pick[j] = _mm512_add_epi16(lanes, _mm512_set1_epi16(static_cast<short>(j << 8)));
      out.spread[j] = _mm512_or_si512(_mm512_srli_epi16(out.pick[j], 8),
                                      _mm512_and_si512(out.pick[j], _mm512_set1_epi16(0x7f00)));
    }
    return out;
  }
  static __m512i of_group(const char* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // m as the high byte of a word: mulhrs gives (256 m * c + 2^14) >> 15.
  static Bytes table(const Codebook& c, const char* m, int /*part*/, int j) {
    const __m512i word = _mm512_shuffle_epi8(of_group(m), c.pick[j]);
    return _mm512_packs_epi16(_mm512_mulhrs_epi16(word, c.low), _mm512_mulhrs_epi16(word, c.high));
  }
  // mulhi gives (256 m * c) >> 16. Adding 128 to all bytes is what biased() does to them.
  template <bool kBiased>
  static Bytes table(const Codebook& c, const char* m, const char* o, int /*part*/, int j) {
    const __m512i word = _mm512_shuffle_epi8(of_group(m), c.pick[j]);
    const __m512i products =
        _mm512_packus_epi16(_mm512_mulhi_epu16(word, c.low), _mm512_mulhi_epu16(word, c.high));
    __m512i offsets = of_group(o);
    if constexpr (kBiased && Int8::kBiased) offsets = _mm512_xor_si512(offsets, _mm512_set1_epi8(-128));
    return _mm512_add_epi8(products, _mm512_shuffle_epi8(offsets, c.spread[j]));
  }
  static Bytes biased(Bytes table) { return table; }
  static Bytes load(const char* p) { return _mm512_loadu_si512(p); }
  static void store(char* p, Bytes v) { _mm512_storeu_si512(p, v); }
  static Bytes low(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static Bytes high(Bytes v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
  static Bytes lookup(Bytes table, Bytes levels) { return _mm512_shuffle_epi8(table, levels); }
  static X load_x(const int8_t* x) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
  static Dot zero() { return _mm512_setzero_si512(); }
  static Dot dot(Dot d, Bytes w, X x) { return Int8::dot_signed(d, w, x); }
  static void transpose(Bytes v[4]) { transpose4(v); }
  static typename Int8::Dot total(const Dot d[4], int32_t start) {
    return _mm512_add_epi32(add_four(d[0], d[1], d[2], d[3]), _mm512_set1_epi32(start));
  }
};

}  // namespace
}  // namespace oar
