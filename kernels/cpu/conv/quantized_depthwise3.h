// Depthwise convolution of 8-bit integers by windows of 3 x 3 to bytes, with AVX-512 VNNI: what mobile
// networks are made of. 64 channels of a row, pixel after pixel. The three rows of a column, and a row of
// zeros, are interleaved once, so that the taps of a channel lie together. They serve all windows that
// contain the column; what unpacking took apart, packing the results to bytes puts together again, so that
// nothing is turned in between. Some 60 instructions for 64 results where any window
// (quantized_depthwise_vnni.h) takes
// 130.
//
// Included by quantized_depthwise.h; local to the file. Same bits as there.
#pragma once

#include <algorithm>

#include "kernels/cpu/conv/quantized_depthwise_vnni.h"
#include "kernels/cpu/conv/quantized_finish.h"

namespace oar {
namespace {

class VnniDepthwise3 {
 public:
  static constexpr int64_t kChannels = 64;

  static bool fits(const QuantizedConvArgs& a) {
    const WindowShape& w = a.window;
    const bool bytes = a.out_type == QuantizedOut::kU8 || a.out_type == QuantizedOut::kI8;
    return w.KH == 3 && w.KW == 3 && w.dilation_h == 1 && w.dilation_w == 1 &&
           (w.stride_w == 1 || w.stride_w == 2) && bytes && !a.sum.other &&
           !OAR_SIMD_NAMESPACE::EpilogueArgs{a.epilogue, a.alpha, a.beta}.later();
  }

  // Channels [first, first + channels) of `a`, which fits; channels <= 64.
  VnniDepthwise3(const QuantizedConvArgs& a, int32_t x_zero, int64_t first, int64_t channels)
      : a_(a),
        first_(first),
        lanes_(channels == kChannels ? ~__mmask64{0} : (__mmask64{1} << channels) - 1),
        turn_(_mm512_set1_epi8(a.x_signed ? static_cast<char>(0x80) : 0)) {
    // i8 with their sign bit turned are u8 that are 128 more.
    const int32_t zero = x_zero + (a.x_signed ? 128 : 0);
    pad_ = _mm512_set1_epi8(static_cast<char>(zero));
    const __m512i ones = _mm512_set1_epi8(1), none = _mm512_setzero_si512();
    __m512i w_sums[4] = {};
    for (int64_t x = 0; x < 3; ++x) {
      __m512i row[4];
      for (int64_t y = 0; y < 3; ++y)
        row[y] = _mm512_maskz_loadu_epi8(lanes_, a.w + (y * 3 + x) * a.C + first);
      row[3] = none;
      VnniDepthwise::weave(row, filters_[x]);
      for (int j = 0; j < 4; ++j) w_sums[j] = _mm512_dpbusd_epi32(w_sums[j], ones, filters_[x][j]);
    }
    __m512i bias[4], scale[4], shift[4];
    of_channels(a.bias, none, bias);
    of_channels(a.scale, _mm512_castps_si512(_mm512_set1_ps(1.f)), scale);
    of_channels(a.shift, none, shift);
    for (int j = 0; j < 4; ++j) {
      start_[j] = _mm512_add_epi32(bias[j], _mm512_mullo_epi32(w_sums[j], _mm512_set1_epi32(-zero)));
      scale_[j] = _mm512_castsi512_ps(scale[j]), shift_[j] = _mm512_castsi512_ps(shift[j]);
    }
  }

  // Output rows [r0, r1), rows of all images counted on.
  void rows(int64_t r0, int64_t r1) const {
    for (int64_t r = r0; r < r1; ++r) a_.window.stride_w == 1 ? row<1>(r) : row<2>(r);
  }

 private:
  struct Column {
    __m512i x[4];
  };
  struct Rows {
    const uint8_t* from[3];  // null: outside of the image
  };

  // Four bytes of each channel, from `values` or all `absent`, where weaving puts the channels: quarter q of
  // vector j has those from 16 q + 4 j on.
  void of_channels(const void* values, __m512i absent, __m512i* out) const {
    if (!values) return std::fill_n(out, 4, absent), void();
    __m512i v[4];
    for (int q = 0; q < 4; ++q)
      v[q] = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(lanes_ >> 16 * q),
                                      static_cast<const int32_t*>(values) + first_ + 16 * q);
    const __m512i a = _mm512_shuffle_i32x4(v[0], v[1], 0x44), b = _mm512_shuffle_i32x4(v[0], v[1], 0xee);
    const __m512i c = _mm512_shuffle_i32x4(v[2], v[3], 0x44), d = _mm512_shuffle_i32x4(v[2], v[3], 0xee);
    out[0] = _mm512_shuffle_i32x4(a, c, 0x88), out[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
    out[2] = _mm512_shuffle_i32x4(b, d, 0x88), out[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }

  template <int kStride>
  void row(int64_t r) const {
    const WindowShape& w = a_.window;
    const int64_t image = r / w.OH, y0 = r % w.OH * w.stride_h - w.pad_top;
    Rows rows;
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t y = y0 + i;
      rows.from[i] = y >= 0 && y < w.H ? a_.x + (image * w.H + y) * w.W * a_.C + first_ : nullptr;
    }
    uint8_t* out = static_cast<uint8_t*>(a_.out) + r * w.OW * a_.M + first_;
    // The columns of a window take turns in three places.
    int64_t next = -w.pad_left;
    Column c0, c1, c2;
    load(rows, next++, c0);
    if constexpr (kStride == 1) {
      load(rows, next++, c1);
      for (int64_t ow = 0; ow < w.OW; ow += 3) {
        load(rows, next++, c2);
        store(c0, c1, c2, out), out += a_.M;
        if (ow + 1 == w.OW) break;
        load(rows, next++, c0);
        store(c1, c2, c0, out), out += a_.M;
        if (ow + 2 == w.OW) break;
        load(rows, next++, c1);
        store(c2, c0, c1, out), out += a_.M;
      }
    } else {
      for (int64_t ow = 0; ow < w.OW; ow += 2) {
        load(rows, next++, c1);
        load(rows, next++, c2);
        store(c0, c1, c2, out), out += a_.M;
        if (ow + 1 == w.OW) break;
        load(rows, next++, c1);
        load(rows, next++, c0);
        store(c2, c1, c0, out), out += a_.M;
      }
    }
  }

  [[gnu::always_inline]] void load(const Rows& rows, int64_t x, Column& c) const {
    __m512i row[4];
    const bool inside = x >= 0 && x < a_.window.W;
    for (int i = 0; i < 3; ++i) {
      const uint8_t* from = rows.from[i];
      row[i] =
          inside && from ? _mm512_xor_si512(_mm512_maskz_loadu_epi8(lanes_, from + x * a_.C), turn_) : pad_;
    }
    row[3] = row[2];  // times 0
    VnniDepthwise::weave(row, c.x);
  }

  [[gnu::always_inline]] void store(const Column& a, const Column& b, const Column& c, uint8_t* out) const {
    const __m512 low = _mm512_set1_ps(a_.low), high = _mm512_set1_ps(a_.high);
    const __m512i zero = _mm512_set1_epi16(static_cast<int16_t>(a_.y_zero));
    __m512 t[4];
    for (int j = 0; j < 4; ++j) {
      __m512i s = _mm512_dpbusd_epi32(start_[j], a.x[j], filters_[0][j]);
      s = _mm512_dpbusd_epi32(s, b.x[j], filters_[1][j]);
      s = _mm512_dpbusd_epi32(s, c.x[j], filters_[2][j]);
      t[j] = quantized_bounded(s, scale_[j], shift_[j], low, high);
    }
    _mm512_mask_storeu_epi8(out, lanes_,
                            a_.out_type == QuantizedOut::kU8 ? quantized_packed<false>(t, zero)
                                                             : quantized_packed<true>(t, zero));
  }

  const QuantizedConvArgs a_;  // a copy: stores of bytes could change what a reference names
  int64_t first_;
  __mmask64 lanes_;
  __m512i turn_, pad_, start_[4], filters_[3][4];
  __m512 scale_[4], shift_[4];
};

}  // namespace
}  // namespace oar
