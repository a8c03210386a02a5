// Sums of depthwise convolution of 8-bit integers with AVX-512 VNNI: 64 channels of a pixel, four taps at a
// time. Four rows of 64 bytes are woven so that the four taps of a channel lie together, as filters are once
// per chunk; then an instruction multiplies and adds 64 of them. About 5 instructions for 16 channels and 4
// taps, where widening each value to 32 bits takes 30.
//
// Included by quantized_depthwise.h; local to the file.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/conv/quantized_finish.h"

namespace oar {
namespace {

class VnniDepthwise {
 public:
  static constexpr int64_t kChannels = 64, kGroups = 13;  // windows of up to 52 taps: 7 x 7

  static bool fits(const QuantizedConvArgs& a) { return a.window.KH * a.window.KW <= 4 * kGroups; }

  // Channels [first, first + channels) of `a`, which fits; channels <= 64.
  VnniDepthwise(const QuantizedConvArgs& a, const QuantizedRun& run, int64_t first, int64_t channels)
      : a_(a),
        first_(first),
        lanes_(channels == kChannels ? ~__mmask64{0} : (__mmask64{1} << channels) - 1),
        turn_(_mm512_set1_epi8(a.x_signed ? static_cast<char>(0x80) : 0)) {
    const WindowShape& w = a.window;
    const int64_t taps = w.KH * w.KW;
    groups_ = (taps + 3) / 4;
    // i8 with their sign bit turned are u8 that are 128 more.
    zero_ = run.x_zero + (a.x_signed ? 128 : 0);
    pad_ = _mm512_set1_epi8(static_cast<char>(run.x_zero));
    for (int64_t k = 0; k < 4 * groups_; ++k) {
      // Past the last tap: anything that can be read, times 0.
      const int64_t i = k < taps ? k / w.KW : 0, j = k < taps ? k % w.KW : 0;
      dy_[k] = i * w.dilation_h, dx_[k] = j * w.dilation_w;
      offset_[k] = (dy_[k] * w.W + dx_[k]) * a.C;
    }
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i w_sums[4] = {};
    for (int64_t g = 0; g < groups_; ++g) {
      __m512i row[4];
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t k = 4 * g + j;
        row[j] = k < taps ? _mm512_maskz_loadu_epi8(lanes_, a.w + k * a.C + first) : _mm512_setzero_si512();
      }
      weave(row, filters_[g]);
      for (int j = 0; j < 4; ++j) w_sums[j] = _mm512_dpbusd_epi32(w_sums[j], ones, filters_[g][j]);
    }
    for (int j = 0; j < 4; ++j) start_[j] = _mm512_mullo_epi32(w_sums[j], _mm512_set1_epi32(-zero_));
  }

  // sums[0, 64) = sum over the window of (x - zero) w of one pixel; y0, x0: where its window begins.
  void sums(int64_t image, int64_t y0, int64_t x0, int32_t* sums) const {
    const WindowShape& w = a_.window;
    const bool inside =
        y0 >= 0 && x0 >= 0 && y0 + (w.KH - 1) * w.dilation_h < w.H && x0 + (w.KW - 1) * w.dilation_w < w.W;
    if (inside) {
      const uint8_t* from = a_.x + ((image * w.H + y0) * w.W + x0) * a_.C + first_;
      add([&](int64_t k) { return _mm512_maskz_loadu_epi8(lanes_, from + offset_[k]); }, sums);
    } else {
      add(
          [&](int64_t k) {
            const int64_t y = y0 + dy_[k], x = x0 + dx_[k];
            const bool there = y >= 0 && y < w.H && x >= 0 && x < w.W;
            return there
                       ? _mm512_maskz_loadu_epi8(lanes_, a_.x + ((image * w.H + y) * w.W + x) * a_.C + first_)
                       : pad_;
          },
          sums);
    }
  }

  // out[j] holds of each quarter of 16 channels those from 4 j on, the four rows' bytes of each together.
  [[gnu::always_inline]] static void weave(const __m512i* row, __m512i* out) {
    const __m512i a = _mm512_unpacklo_epi8(row[0], row[1]), b = _mm512_unpackhi_epi8(row[0], row[1]);
    const __m512i c = _mm512_unpacklo_epi8(row[2], row[3]), d = _mm512_unpackhi_epi8(row[2], row[3]);
    out[0] = _mm512_unpacklo_epi16(a, c), out[1] = _mm512_unpackhi_epi16(a, c);
    out[2] = _mm512_unpacklo_epi16(b, d), out[3] = _mm512_unpackhi_epi16(b, d);
  }

 private:
  template <class Load>
  [[gnu::always_inline]] void add(Load load, int32_t* sums) const {
    __m512i s[4] = {start_[0], start_[1], start_[2], start_[3]};
    for (int64_t g = 0; g < groups_; ++g) {
      __m512i row[4], x[4];
      for (int j = 0; j < 4; ++j) row[j] = _mm512_xor_si512(load(4 * g + j), turn_);
      weave(row, x);
      for (int j = 0; j < 4; ++j) s[j] = _mm512_dpbusd_epi32(s[j], x[j], filters_[g][j]);
    }
    // Quarters of 16 bytes back into the order of channels.
    const __m512i p = _mm512_shuffle_i32x4(s[0], s[1], 0x44), q = _mm512_shuffle_i32x4(s[0], s[1], 0xee);
    const __m512i t = _mm512_shuffle_i32x4(s[2], s[3], 0x44), u = _mm512_shuffle_i32x4(s[2], s[3], 0xee);
    _mm512_store_si512(sums, _mm512_shuffle_i32x4(p, t, 0x88));
    _mm512_store_si512(sums + 16, _mm512_shuffle_i32x4(p, t, 0xdd));
    _mm512_store_si512(sums + 32, _mm512_shuffle_i32x4(q, u, 0x88));
    _mm512_store_si512(sums + 48, _mm512_shuffle_i32x4(q, u, 0xdd));
  }

  const QuantizedConvArgs& a_;
  int64_t first_, groups_;
  __mmask64 lanes_;
  int32_t zero_;
  __m512i turn_, pad_, start_[4], filters_[kGroups][4];
  int64_t dy_[4 * kGroups], dx_[4 * kGroups], offset_[4 * kGroups];
};

}  // namespace
}  // namespace oar
