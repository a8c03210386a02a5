// AVX-512 readers of super-blocks (kquant_format.h): the 256 levels of a row in natural order, and the heads
// of sixteen rows at once, a row in each 32-bit lane. Only for files compiled with AVX-512 (F, BW, VL, DQ).
#pragma once

#include <immintrin.h>

#include "kernels/cpu/matmul/kquant_format.h"
#include "kernels/cpu/x86_reduce.h"

namespace oar {
namespace {

inline constexpr int64_t kHeadRows = 16;

// Heads of sixteen rows. pairs[j] has, for each row, the two 16-bit numbers that the sums of groups 2j and
// 2j + 1 are multiplied with: minima, or scales where levels have an offset.
struct KHeads {
  __m512 d, dmin;
  __m512i pairs[8];
};

// Sixteen bytes of each row, at `at` from the row's block: v[e] holds rows e, e + 4, e + 8, e + 12.
inline void load_heads(const char* const rows[kHeadRows], int64_t at, __m512i v[4]) {
  const auto load = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + at)); };
#pragma GCC unroll 4
  for (int e = 0; e < 4; ++e) {
    __m512i x = _mm512_castsi128_si512(load(e));
    x = _mm512_inserti32x4(x, load(e + 4), 1);
    x = _mm512_inserti32x4(x, load(e + 8), 2);
    v[e] = _mm512_inserti32x4(x, load(e + 12), 3);
  }
}

// The f16 at `at` of each row.
inline __m512 load_f16(const char* const rows[kHeadRows], int64_t at) {
  alignas(32) uint16_t half[kHeadRows];
#pragma GCC unroll 16
  for (int r = 0; r < kHeadRows; ++r) std::memcpy(&half[r], rows[r] + at, 2);
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(half)));
}

// 16-byte patterns that vpshufb repeats in each lane. `z`: a byte that becomes zero.
inline constexpr char z = -128;
inline __m512i pattern(__m128i p) { return _mm512_broadcast_i32x4(p); }

// Bytes 2 i and 2 i + 1 of each dword as two 16-bit numbers, zero- or sign-extended.
template <bool kSigned>
inline __m512i byte_pairs(__m512i v, int i) {
  if constexpr (kSigned) {
    const __m512i at = i == 0 ? pattern(_mm_setr_epi8(z, 0, z, 1, z, 4, z, 5, z, 8, z, 9, z, 12, z, 13))
                              : pattern(_mm_setr_epi8(z, 2, z, 3, z, 6, z, 7, z, 10, z, 11, z, 14, z, 15));
    return _mm512_srai_epi16(_mm512_shuffle_epi8(v, at), 8);
  } else {
    const __m512i at = i == 0 ? pattern(_mm_setr_epi8(0, z, 1, z, 4, z, 5, z, 8, z, 9, z, 12, z, 13, z))
                              : pattern(_mm_setr_epi8(2, z, 3, z, 6, z, 7, z, 10, z, 11, z, 14, z, 15, z));
    return _mm512_shuffle_epi8(v, at);
  }
}

// Byte i of each dword as two equal 16-bit numbers.
inline __m512i byte_twice(__m512i v, int i) {
  const auto b = [i](int dword) { return static_cast<char>(4 * dword + i); };
  return _mm512_shuffle_epi8(
      v, pattern(_mm_setr_epi8(b(0), z, b(0), z, b(1), z, b(1), z, b(2), z, b(2), z, b(3), z, b(3), z)));
}

// Groups' scales as 16-bit numbers where the dots lie after vpackssdw of the vectors of 64 k `v` and `v` + 1:
// in each 128-bit lane four dots of the first, then four of the second.
//
// Eight unsigned bytes, one for every 32 k.
inline __m512i spread_scales(int64_t eight, int v) {
  const char a = static_cast<char>(2 * v), b = static_cast<char>(a + 1), c = static_cast<char>(a + 2),
             d = static_cast<char>(a + 3);
  const __m256i lo =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(a, z, a, z, a, z, a, z, c, z, c, z, c, z, c, z));
  const __m256i hi =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(b, z, b, z, b, z, b, z, d, z, d, z, d, z, d, z));
  return _mm512_shuffle_epi8(_mm512_set1_epi64(eight), _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1));
}
// Sixteen signed bytes, one for every 16 k.
inline __m512i spread_scales(__m128i sixteen, int v) {
  const auto lane = [v](int l) {
    const char a = static_cast<char>(4 * v + l), b = static_cast<char>(a + 4);
    return _mm_setr_epi8(z, a, z, a, z, a, z, a, z, b, z, b, z, b, z, b);
  };
  __m512i at = _mm512_castsi128_si512(lane(0));
  at = _mm512_inserti32x4(at, lane(1), 1);
  at = _mm512_inserti32x4(at, lane(2), 2);
  at = _mm512_inserti32x4(at, lane(3), 3);
  return _mm512_srai_epi16(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), at), 8);
}
// Sixteen signed bytes as 32-bit numbers beside the dots of vector v, for formats whose dots do not pack.
inline __m512i spread_wide(__m128i sixteen, int v) {
  const auto lane = [v](int l) { return _mm_set1_epi32((4 * v + l) << 24 | 0x808080); };
  __m512i at = _mm512_castsi128_si512(lane(0));
  at = _mm512_inserti32x4(at, lane(1), 1);
  at = _mm512_inserti32x4(at, lane(2), 2);
  at = _mm512_inserti32x4(at, lane(3), 3);
  return _mm512_srai_epi32(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(sixteen), at), 24);
}
inline __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

inline __m512i both_halves(const uint8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// 16-bit shift counts: lo in the lower half, hi in the upper.
inline __m512i counts(int lo, int hi) {
  return _mm512_inserti64x4(_mm512_set1_epi16(static_cast<int16_t>(lo)),
                            _mm256_set1_epi16(static_cast<int16_t>(hi)), 1);
}
inline __m512i low_bits(__m512i v, int mask) {
  return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask)));
}
// Adds `value` where bit lo (lower half) or hi (upper) of `bits` is set.
inline __m512i add_where(__m512i v, __m512i bits, int lo, int hi, int value) {
  const __m512i at = _mm512_inserti64x4(_mm512_set1_epi8(static_cast<char>(1 << lo)),
                                        _mm256_set1_epi8(static_cast<char>(1 << hi)), 1);
  return _mm512_mask_add_epi8(v, _mm512_test_epi8_mask(bits, at), v,
                              _mm512_set1_epi8(static_cast<char>(value)));
}

// Nibbles of q4_k and q5_k: u[v] = levels of k = 64 v .. 64 v + 63.
inline void nibbles_k4(const uint8_t* q, __m512i u[4]) {
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    u[v] = low_bits(_mm512_srlv_epi16(both_halves(q + 32 * v), counts(0, 4)), 15);
  }
}

// The same arithmetic as PackedK4, sixteen rows at once.
template <int64_t kAt>
inline void heads_k4(const char* const rows[kHeadRows], KHeads& h) {
  __m512i v[4];
  load_heads(rows, kAt, v);
  transpose4(v);  // (d, dmin), then the three dwords of scales
  h.d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v[0]));
  h.dmin = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v[0], 16)));
  const __m512i top = low_bits(_mm512_srli_epi32(v[2], 2), 0x30);
  const __m512i lo = low_bits(v[2], 63), hi = _mm512_or_si512(low_bits(_mm512_srli_epi32(v[3], 4), 15), top);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) h.pairs[j] = byte_twice(j < 4 ? lo : hi, j % 4);
}
inline __m128i mins_k4(const uint8_t* packed) {
  const PackedK4 p(packed);
  const __m128i eight = _mm_set_epi64x(0, static_cast<int64_t>(uint64_t{p.min_hi} << 32 | p.min_lo));
  return _mm_unpacklo_epi8(eight, eight);
}
inline int64_t scales_k4(const uint8_t* packed) {
  const PackedK4 p(packed);
  return static_cast<int64_t>(uint64_t{p.scale_hi} << 32 | p.scale_lo);
}

template <bool kSigned>
inline void store_pairs(const __m512i transposed[4], KHeads& h) {
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) h.pairs[j] = byte_pairs<kSigned>(transposed[j / 2], j % 2);
}

struct Q4K512 : Q4K {
  static void heads(const char* const rows[kHeadRows], KHeads& h) { heads_k4<offsetof(Block, d)>(rows, h); }
  static int64_t scales(const Block& b) { return scales_k4(b.scales); }
  static __m128i mins(const Block& b) { return mins_k4(b.scales); }
  static void levels(const Block& b, __m512i u[4]) { nibbles_k4(b.q, u); }
};

struct Q5K512 : Q5K {
  static void heads(const char* const rows[kHeadRows], KHeads& h) { heads_k4<offsetof(Block, d)>(rows, h); }
  static int64_t scales(const Block& b) { return scales_k4(b.scales); }
  static __m128i mins(const Block& b) { return mins_k4(b.scales); }
  static void levels(const Block& b, __m512i u[4]) {
    nibbles_k4(b.q, u);
    const __m512i high = both_halves(b.high);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) u[v] = add_where(u[v], high, 2 * v, 2 * v + 1, 16);
  }
};

struct Q6K512 : Q6K {
  static void heads(const char* const rows[kHeadRows], KHeads& h) {
    __m512i v[4];
    load_heads(rows, offsetof(Block, scales), v);
    transpose4(v);
    store_pairs<true>(v, h);
    h.d = load_f16(rows, offsetof(Block, d));
  }
  static __m128i scales(const Block& b) { return load16(reinterpret_cast<const uint8_t*>(b.scales)); }
  static void levels(const Block& b, __m512i u[4]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i low = _mm512_loadu_si512(b.low + 64 * half), high = both_halves(b.high + 32 * half);
      u[2 * half] = _mm512_or_si512(low_bits(low, 15), low_bits(_mm512_sllv_epi16(high, counts(4, 2)), 0x30));
      u[2 * half + 1] = _mm512_or_si512(low_bits(_mm512_srli_epi16(low, 4), 15),
                                        low_bits(_mm512_srlv_epi16(high, counts(0, 2)), 0x30));
    }
  }
};

// Two-bit levels of q2_k and q3_k.
inline void pairs_k2(const uint8_t* q, __m512i u[4]) {
#pragma GCC unroll 4
  for (int v = 0; v < 4; ++v) {
    u[v] = low_bits(_mm512_srlv_epi16(both_halves(q + v / 2 * 32), counts(v % 2 * 4, v % 2 * 4 + 2)), 3);
  }
}

struct Q3K512 : Q3K {
  static void heads(const char* const rows[kHeadRows], KHeads& h) {
    __m512i v[4];
    load_heads(rows, offsetof(Block, scales) - 4, v);  // twelve bytes, behind the last four of `low`
    transpose4(v);
    const auto top = [&](int shift) {
      return low_bits(shift < 4 ? _mm512_slli_epi32(v[3], 4 - shift) : _mm512_srli_epi32(v[3], shift - 4),
                      0x30);
    };
    const __m512i low[4] = {low_bits(v[1], 15), low_bits(v[2], 15), low_bits(_mm512_srli_epi32(v[1], 4), 15),
                            low_bits(_mm512_srli_epi32(v[2], 4), 15)};
    __m512i t[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm512_sub_epi8(_mm512_or_si512(low[i], top(2 * i)), _mm512_set1_epi8(32));
    }
    store_pairs<true>(t, h);
    h.d = load_f16(rows, offsetof(Block, d));
  }
  static __m128i scales(const Block& b) {
    const __m128i packed = load16(b.low + sizeof b.low - 4);  // the dwords a, b, c behind another
    const __m128i ab = _mm_shuffle_epi32(packed, _MM_SHUFFLE(2, 1, 2, 1)),
                  c = _mm_shuffle_epi32(packed, 0xff);
    const __m128i low = _mm_and_si128(_mm_srlv_epi32(ab, _mm_setr_epi32(0, 0, 4, 4)), _mm_set1_epi8(15));
    const __m128i top = _mm_and_si128(_mm_srlv_epi32(c, _mm_setr_epi32(0, 2, 4, 6)), _mm_set1_epi8(3));
    return _mm_sub_epi8(_mm_or_si128(low, _mm_slli_epi32(top, 4)), _mm_set1_epi8(32));
  }
  static void levels(const Block& b, __m512i u[4]) {
    pairs_k2(b.low, u);
    const __m512i high = both_halves(b.high);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) u[v] = add_where(u[v], high, 2 * v, 2 * v + 1, 4);
  }
};

struct Q2K512 : Q2K {
  static void heads(const char* const rows[kHeadRows], KHeads& h) {
    __m512i v[4];
    load_heads(rows, offsetof(Block, scales), v);
    transpose4(v);
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) v[e] = low_bits(_mm512_srli_epi16(v[e], 4), 15);
    store_pairs<false>(v, h);
    h.d = load_f16(rows, offsetof(Block, d));
    h.dmin = load_f16(rows, offsetof(Block, dmin));
  }
  static __m128i scales(const Block& b) { return _mm_and_si128(load16(b.scales), _mm_set1_epi8(15)); }
  static __m128i mins(const Block& b) {
    return _mm_and_si128(_mm_srli_epi16(load16(b.scales), 4), _mm_set1_epi8(15));
  }
  static void levels(const Block& b, __m512i u[4]) { pairs_k2(b.q, u); }
};

struct IQ4XS512 : IQ4XS {
  static __m128i scales(const Block& b) {
    const __m128i low = _mm_loadu_si32(b.scales_low);
    const __m128i nibbles = _mm_unpacklo_epi8(_mm_and_si128(low, _mm_set1_epi8(15)),
                                              _mm_and_si128(_mm_srli_epi16(low, 4), _mm_set1_epi8(15)));
    const __m128i shifted = _mm_srlv_epi16(_mm_set1_epi16(static_cast<int16_t>(b.scales_high)),
                                           _mm_setr_epi16(0, 2, 4, 6, 8, 10, 12, 14));
    const __m128i top = _mm_packus_epi16(_mm_and_si128(shifted, _mm_set1_epi16(3)), _mm_setzero_si128());
    const __m128i eight = _mm_sub_epi8(_mm_or_si128(nibbles, _mm_slli_epi16(top, 4)), _mm_set1_epi8(32));
    return _mm_unpacklo_epi8(eight, eight);
  }
  static void heads(const char* const rows[kHeadRows], KHeads& h) {
    const auto of = [&](int r) { return scales(*reinterpret_cast<const Block*>(rows[r])); };
    __m512i v[4];
#pragma GCC unroll 4
    for (int e = 0; e < 4; ++e) {
      __m512i x = _mm512_castsi128_si512(of(e));
      x = _mm512_inserti32x4(x, of(e + 4), 1);
      x = _mm512_inserti32x4(x, of(e + 8), 2);
      v[e] = _mm512_inserti32x4(x, of(e + 12), 3);
    }
    transpose4(v);
    store_pairs<true>(v, h);
    h.d = load_f16(rows, offsetof(Block, d));
  }
  static void levels(const Block& b, __m512i u[4]) {
    const __m512i table =
        pattern(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, static_cast<char>(129), static_cast<char>(141),
                              static_cast<char>(153), static_cast<char>(166), static_cast<char>(181),
                              static_cast<char>(197), static_cast<char>(217),
                              static_cast<char>(241)));  // iq4_level(q) + 128
    const __m512i twice = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3);
    const __m512i by = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m256i q = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b.q + 32 * v));
      const __m512i nibbles = _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(q));
      u[v] = _mm512_shuffle_epi8(table, low_bits(_mm512_srlv_epi64(nibbles, by), 15));
    }
  }
};

}  // namespace
}  // namespace oar
