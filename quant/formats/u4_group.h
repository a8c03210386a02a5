// u4_g32, u4_g64, u4_g128: 4-bit codes in groups under an f16 scale and an f16 zero, x = d * (q - z); 5, 4.5
// and 4.25 bits per weight. The zero is a code, not a value, and need not be whole: AWQ's and GPTQ's integer
// zeros (0 .. 16) are exact in it, and HQQ's real ones fit as well. q - z is exact in f32 for integer zeros,
// so that decoding rounds once.
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"

namespace oar::formats {

template <int G>
struct U4Group {
  oar::f16 d;
  oar::f16 z;
  uint8_t q[G / 2];  // codes 0 .. 15, order of group.h

  static OAR_HD void decode(const U4Group& b, float* out) {
    const float d = to_f32(b.d), z = to_f32(b.z);
    for (int i = 0; i < G; ++i) out[i] = d * (static_cast<float>(nibble(b.q, i)) - z);
  }

  // d = (max - min) / 15, z = -min / d. An f16 zero is whole up to 2048: d is at least absmax / 2048, which
  // also gives a constant group its value.
  static OAR_HD void encode(const float* in, U4Group& b) {
    float min = in[0], max = in[0];
    for (int i = 1; i < G; ++i) {
      if (in[i] < min || detail::is_nan(min)) min = in[i];
      if (in[i] > max || detail::is_nan(max)) max = in[i];
    }
    const float by_range = (max - min) / 15.0f, by_zero = absmax(in, G) / 2048.0f;
    b = {};
    b.d = f16_scale(by_range > by_zero ? by_range : by_zero);
    const float d = to_f32(b.d);
    if (d == 0.0f) return;
    b.z = f16_scale(-min / d);
    const float z = to_f32(b.z);
    for (int i = 0; i < G; ++i) set_nibble(b.q, i, round_level(in[i] / d + z, 0, 15));
  }

  static constexpr FormatInfo info(const char* name) {
    static_assert(sizeof(U4Group) == 4 + G / 2);
    return block_format<U4Group, G, &decode, &encode>(name);
  }
};

namespace u4_g32 {
inline constexpr FormatInfo kInfo = U4Group<32>::info("u4_g32");
}
namespace u4_g64 {
inline constexpr FormatInfo kInfo = U4Group<64>::info("u4_g64");
}
namespace u4_g128 {
inline constexpr FormatInfo kInfo = U4Group<128>::info("u4_g128");
}

}  // namespace oar::formats
