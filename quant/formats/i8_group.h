// i8_g64, i8_g128: signed bytes in groups under one f16 scale, x = d * q; 8.25 and 8.125 bits per weight. The
// member for groups of 32 is q8_0.
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"

namespace oar::formats {

template <int G>
struct I8Group {
  oar::f16 d;
  int8_t q[G];

  static OAR_HD void decode(const I8Group& b, float* out) {
    const float d = to_f32(b.d);
    for (int i = 0; i < G; ++i) out[i] = d * static_cast<float>(b.q[i]);
  }

  // d = absmax / 127; -128 is never used.
  static OAR_HD void encode(const float* in, I8Group& b) {
    b.d = f16_scale(absmax(in, G) / 127.0f);
    const float d = to_f32(b.d);
    for (int i = 0; i < G; ++i) b.q[i] = static_cast<int8_t>(quotient(in[i], d, -127, 127));
  }

  static constexpr FormatInfo info(const char* name) {
    static_assert(sizeof(I8Group) == 2 + G);
    return block_format<I8Group, G, &decode, &encode>(name);
  }
};

namespace i8_g64 {
inline constexpr FormatInfo kInfo = I8Group<64>::info("i8_g64");
}
namespace i8_g128 {
inline constexpr FormatInfo kInfo = I8Group<128>::info("i8_g128");
}

}  // namespace oar::formats
