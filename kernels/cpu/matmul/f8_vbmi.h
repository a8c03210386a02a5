// Widen of matmul_f8.h to bf16, with the byte permutations of AVX-512 VBMI. Only for files compiled with it.
#pragma once

#include <immintrin.h>

#include <array>
#include <bit>
#include <cstdint>

#include "quant/dtype.h"

namespace oar {
namespace {

// The bf16 bits of the 128 magnitudes of a float with Exp exponent and Man mantissa bits, low and high byte
// apart. All of them are exact, NaN and infinity included; e4m3 has one NaN and no infinity. Made by the
// compiler, not by to_f32(): what a file with these flags ran at start-up would stop other processors.
struct F8Table {
  alignas(64) std::array<uint8_t, 128> low, high;
};
template <int Exp, int Man>
constexpr F8Table f8_table() {
  F8Table out{};
  for (uint32_t m = 0; m < 128; ++m) {
    constexpr uint32_t kBias = (1 << (Exp - 1)) - 1, kRebias = 127 - kBias;
    const uint32_t e = m >> Man, f = m & ((1u << Man) - 1);
    uint32_t bits = ((e + kRebias) << 7) | (f << (7 - Man));
    if (e == 0 && f == 0) {
      bits = 0;
    } else if (e == 0) {  // f 2^(1 - bias - Man), its highest bit becomes the hidden one
      const auto top = static_cast<uint32_t>(std::bit_width(f)) - 1;
      bits = ((128 - kBias - Man + top) << 7) | ((f << (7 - top)) & 0x7f);
    } else if (Exp == 4 ? m == 127 : e == 31) {
      bits = f == 0 ? 0x7f80 : 0x7fc0;
    }
    out.low[m] = static_cast<uint8_t>(bits);
    out.high[m] = static_cast<uint8_t>(bits >> 8);
  }
  return out;
}
template <class T>
inline constexpr F8Table kF8Table = f8_table<4, 3>();
template <>
inline constexpr F8Table kF8Table<e5m2> = f8_table<5, 2>();

// Which of 32 bytes go to both halves of each word: 0, 1, 2 .. or 0, 16, 1, 17 ..
struct F8Order {
  alignas(64) std::array<uint8_t, 64> at;
};
constexpr F8Order f8_order(bool in_pairs) {
  F8Order out{};
  for (size_t i = 0; i < 64; ++i) {
    const size_t word = i / 2;
    out.at[i] = static_cast<uint8_t>(in_pairs ? word / 2 + word % 2 * 16 : word);
  }
  return out;
}
inline constexpr F8Order kInOrder = f8_order(false), kInPairs = f8_order(true);

template <class T>
struct VbmiWiden {
  using Number = bf16;
  using Reg = __m512bh;
  static constexpr float kUnit = 1;
  static constexpr int kSweeps = 4;

  static Reg plain(const uint8_t* p) { return (Reg)words(p, kInOrder); }
  // Words k and 16 + k side by side, so that the conversion below puts them where they belong.
  static Reg scaled(const uint8_t* p, float d) {
    const __m512i w = words(p, kInPairs);
    const __m512 first = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
    const __m512 second =
        _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
    const __m512 scale = _mm512_set1_ps(d);
    return _mm512_cvtne2ps_pbh(_mm512_mul_ps(second, scale), _mm512_mul_ps(first, scale));
  }
  static void store(bf16* p, Reg v) { _mm512_storeu_si512(p, (__m512i)v); }

 private:
  static __m512i words(const uint8_t* p, const F8Order& order) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m512i x = _mm512_permutexvar_epi8(_mm512_load_si512(&order.at), _mm512_castsi256_si512(bytes));
    const auto& t = kF8Table<T>;
    const __m512i low =
        _mm512_permutex2var_epi8(_mm512_load_si512(&t.low[0]), x, _mm512_load_si512(&t.low[64]));
    const __m512i high =
        _mm512_permutex2var_epi8(_mm512_load_si512(&t.high[0]), x, _mm512_load_si512(&t.high[64]));
    const __m512i both = _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, low, high);
    // both | (x & sign)
    return _mm512_ternarylogic_epi32(both, x, _mm512_set1_epi16(static_cast<short>(0x8000)), 0xf8);
  }
};

}  // namespace
}  // namespace oar
