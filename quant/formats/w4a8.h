// w4a8_g32, w4a8_g64, w4a8_g128: progressive 4-bit weights, x = scale * w8 with the integer w8 = (q - z) * s;
// 4.5, 4.25 and 4.125 bits per weight and 4 bytes per row. A row is first int8 under one f32 scale, then each
// group of w8 is 4-bit codes under an integer scale and an integer zero: a matmul with int8 activations
// expands the codes to exactly those int8 values and never meets a float in its inner loop. QServe,
// https://arxiv.org/abs/2405.04532, section 4.1.
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"

namespace oar::formats {

template <int G>
struct W4A8Group {
  uint8_t s;         // 1 .. 16 when encoded here
  uint8_t z;         // 0 .. 15 when encoded here
  uint8_t q[G / 2];  // codes 0 .. 15, order of group.h

  struct Head {
    float scale;
  };

  static OAR_HD void decode(const Head& row, const W4A8Group& b, float* out) {
    for (int i = 0; i < G; ++i) {
      out[i] =
          row.scale * static_cast<float>((nibble(b.q, i) - static_cast<int>(b.z)) * static_cast<int>(b.s));
    }
  }

  // Level one uses -119 .. 119 of int8: rounding in level two moves a value by up to s / 2 <= 8, and 119 + 8
  // still fits.
  static OAR_HD void encode(const float* in, int64_t nblocks, Head& row, W4A8Group* blocks) {
    row.scale = absmax(in, nblocks * G) / 119.0f;
    for (int64_t g = 0; g < nblocks; ++g) {
      float w8[G];
      for (int i = 0; i < G; ++i) {
        w8[i] = static_cast<float>(quotient(in[g * G + i], row.scale, -119, 119));
      }
      const Range r = range_with_zero(w8, G);
      W4A8Group& b = blocks[g];
      b = {};
      b.s = static_cast<uint8_t>(round_level((r.max - r.min) / 15.0f, 1, 16));
      b.z = static_cast<uint8_t>(round_level(-r.min / static_cast<float>(b.s), 0, 15));
      for (int i = 0; i < G; ++i) {
        const int level = quotient(w8[i], static_cast<float>(b.s), -15, 15) + b.z;
        set_nibble(b.q, i, level < 0 ? 0 : level > 15 ? 15 : level);
      }
    }
  }

  static constexpr FormatInfo info(const char* name) {
    static_assert(sizeof(W4A8Group) == 2 + G / 2);
    return row_format<Head, W4A8Group, G, &decode, &encode>(name);
  }
};

namespace w4a8_g32 {
inline constexpr FormatInfo kInfo = W4A8Group<32>::info("w4a8_g32");
}
namespace w4a8_g64 {
inline constexpr FormatInfo kInfo = W4A8Group<64>::info("w4a8_g64");
}
namespace w4a8_g128 {
inline constexpr FormatInfo kInfo = W4A8Group<128>::info("w4a8_g128");
}

}  // namespace oar::formats
