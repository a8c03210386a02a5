// i4_g64, i4_g128: 4-bit codes in groups under one f16 scale, x = d * (q - 8); 4.25 and 4.125 bits per
// weight. The member for groups of 32 is q4_0. Symmetric GPTQ and compressed-tensors checkpoints are held so:
// same codes, same scales, other order of nibbles (group.h).
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"

namespace oar::formats {

template <int G>
struct I4Group {
  oar::f16 d;
  uint8_t q[G / 2];  // codes 0 .. 15, order of group.h

  static OAR_HD void decode(const I4Group& b, float* out) {
    const float d = to_f32(b.d);
    for (int i = 0; i < G; ++i) out[i] = d * static_cast<float>(nibble(b.q, i) - 8);
  }

  // The element of largest magnitude maps to -8, so d may be negative: 1 dB better than absmax / 7.
  static OAR_HD void encode(const float* in, I4Group& b) {
    b = {};
    b.d = f16_scale(signed_absmax(in, G) / -8.0f);
    const float d = to_f32(b.d);
    for (int i = 0; i < G; ++i) set_nibble(b.q, i, quotient(in[i], d, -8, 7) + 8);
  }

  static constexpr FormatInfo info(const char* name) {
    static_assert(sizeof(I4Group) == 2 + G / 2);
    return block_format<I4Group, G, &decode, &encode>(name);
  }
};

namespace i4_g64 {
inline constexpr FormatInfo kInfo = I4Group<64>::info("i4_g64");
}
namespace i4_g128 {
inline constexpr FormatInfo kInfo = I4Group<128>::info("i4_g128");
}

}  // namespace oar::formats
