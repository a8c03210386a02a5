// e4m3_g128, e5m2_g128: 8-bit floats (OCP) in groups of 128 of a row under one f32 scale, x = q * d; 8.25
// bits per weight. DeepSeek's tiles of 128 x 128 are held so, the tile's scale in each of its rows: decoding
// gives the same bits, rows stay independent of each other, at 1/32 more memory than one scale per tile.
#pragma once

#include "quant/format.h"
#include "quant/formats/f8.h"
#include "quant/formats/group.h"

namespace oar::formats {

template <class T>
struct F8Group {
  static constexpr int kElems = 128;
  float d;
  T q[kElems];

  static OAR_HD void decode(const F8Group& b, float* out) {
    for (int i = 0; i < kElems; ++i) out[i] = to_f32(b.q[i]) * b.d;
  }

  // d = absmax / largest finite value.
  static OAR_HD void encode(const float* in, F8Group& b) {
    b.d = absmax(in, kElems) / kF8Max<T>;
    for (int i = 0; i < kElems; ++i) cast_f8(b.d == 0.0f ? 0.0f : in[i] / b.d, b.q[i]);
  }

  static constexpr FormatInfo info(const char* name) {
    static_assert(sizeof(F8Group) == 132);
    return block_format<F8Group, kElems, &decode, &encode>(name);
  }
};

namespace e4m3_g128 {
inline constexpr FormatInfo kInfo = F8Group<oar::e4m3>::info("e4m3_g128");
}
namespace e5m2_g128 {
inline constexpr FormatInfo kInfo = F8Group<oar::e5m2>::info("e5m2_g128");
}

}  // namespace oar::formats
