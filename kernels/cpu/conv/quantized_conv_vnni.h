// The product of narrow convolution with AVX-512: four multiplications of u8 and i8 added to an i32 per lane
// (VNNI), or two of bf16 added to an f32 (BF16). Six rows by four panels hold 24 sums in registers.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/conv/quantized_conv_driver.h"

namespace oar {
namespace {

// W: bytes of a value.
template <int64_t W>
struct DotQuantizedCore {
  static constexpr int64_t kRows = 6, kPanels = 4, kWidth = W, kStep = 4;
  static constexpr bool kTaps = true, kStarts = W == 1, kSignedX = false;
  static void begin() {}
  static void end() {}

  [[gnu::always_inline]] static __m512i dot(__m512i sum, __m512i x, __m512i w) {
    if constexpr (W == 1) return _mm512_dpbusd_epi32(sum, x, w);
    else
      return _mm512_castps_si512(
          _mm512_dpbf16_ps(_mm512_castsi512_ps(sum), std::bit_cast<__m512bh>(x), std::bit_cast<__m512bh>(w)));
  }

  // kStep4: bytes from four of a row to the next four. kFlip: sign bits of x are turned, which one panel does
  // not hide: a sixth of its time.
  template <int R, int P, int64_t kStep4 = 4, bool kFlip = W == 1>
  static void part(const QuantizedTile& t) {
    if constexpr (W == 2 && kStep4 == 4)
      if (t.packed) return part<R, P, 4 * kQuantizedPanel>(t);
    if constexpr (kFlip && P == 1)
      if (!t.flip) return part<R, P, kStep4, false>(t);
    __m512i acc[R][P];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        acc[r][p] = kStarts ? _mm512_load_si512(t.start + p * kQuantizedPanel) : _mm512_setzero_si512();
      }
    }
    [[maybe_unused]] const __m512i flip = _mm512_set1_epi8(t.flip ? static_cast<char>(0x80) : 0);
    const int8_t* filters = t.w;
    const int64_t panel = t.panel, per_tap = t.per_tap;
    const int8_t* ahead = t.ahead;
    for (int64_t tap = 0; tap < t.taps; ++tap) {
      if (t.skip != 0 && (t.skip >> tap & 1) != 0) {
        filters += per_tap * kQuantizedPanel;
        continue;
      }
      const uint8_t* rows[R];
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) rows[r] = t.tap_rows ? t.tap_rows[tap * t.table + r] : t.x + r * t.ldx;
      for (int64_t k = 0; k < per_tap; k += 4, filters += 4 * kQuantizedPanel) {
        __m512i w[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) w[p] = _mm512_load_si512(filters + p * panel);
        __builtin_prefetch(ahead, 0, 2);
        ahead += t.ahead_step;
#pragma GCC unroll 6
        for (int r = 0; r < R; ++r) {
          int32_t four;
          std::memcpy(&four, rows[r] + k / 4 * kStep4, 4);
          __m512i x = _mm512_set1_epi32(four);
          if constexpr (kFlip) x = _mm512_xor_si512(x, flip);
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) acc[r][p] = dot(acc[r][p], x, w[p]);
        }
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) _mm512_store_si512(t.acc + r * t.ldacc + p * kQuantizedPanel, acc[r][p]);
    }
  }
  template <int P>
  static void parts(const QuantizedTile& t) {
    switch (t.rows) {
      case 6: return part<6, P>(t);
      case 5: return part<5, P>(t);
      case 4: return part<4, P>(t);
      case 3: return part<3, P>(t);
      case 2: return part<2, P>(t);
      default: return part<1, P>(t);
    }
  }
  static void tile(const QuantizedTile& t) {
    switch (t.panels) {
      case 4: return parts<4>(t);
      case 3: return parts<3>(t);
      case 2: return parts<2>(t);
      default: return parts<1>(t);
    }
  }
};

}  // namespace
}  // namespace oar
