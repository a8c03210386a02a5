// e4m3_channel, e5m2_channel: 8-bit floats (OCP) under one f32 scale per row, x = q * scale; 8 bits per
// weight and 4 bytes per row. A tensor with one scale for all is stored so too, with the scale in each row.
#pragma once

#include "quant/format.h"
#include "quant/formats/f8.h"
#include "quant/formats/group.h"

namespace oar::formats {

template <class T>
struct F8Channel {
  float scale;

  static OAR_HD void decode(const F8Channel& row, const T& q, float* out) { *out = to_f32(q) * row.scale; }

  // scale = absmax / largest finite value.
  static OAR_HD void encode(const float* in, int64_t n, F8Channel& row, T* q) {
    row.scale = absmax(in, n) / kF8Max<T>;
    for (int64_t i = 0; i < n; ++i) cast_f8(row.scale == 0.0f ? 0.0f : in[i] / row.scale, q[i]);
  }

  static constexpr FormatInfo info(const char* name) {
    return row_format<F8Channel, T, 1, &decode, &encode>(name);
  }
};

namespace e4m3_channel {
inline constexpr FormatInfo kInfo = F8Channel<oar::e4m3>::info("e4m3_channel");
}
namespace e5m2_channel {
inline constexpr FormatInfo kInfo = F8Channel<oar::e5m2>::info("e5m2_channel");
}

}  // namespace oar::formats
