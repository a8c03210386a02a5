// i8_channel: signed bytes under one f32 scale per row, x = scale * q; 8 bits per weight and 4 bytes per row.
// "Per channel": a row of a weight is one output channel. A tensor with one scale for all is stored so too,
// with the scale in each row. Grouped 8-bit weights: q8_0 (groups of 32), i8_g64, i8_g128.
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"

namespace oar::formats::i8_channel {

struct Head {
  float scale;
};

inline OAR_HD void decode(const Head& row, const int8_t& q, float* out) {
  *out = row.scale * static_cast<float>(q);
}

// scale = absmax / 127; q = round to nearest even of x / scale, so that -128 is never used.
inline OAR_HD void encode(const float* in, int64_t n, Head& row, int8_t* q) {
  row.scale = absmax(in, n) / 127.0f;
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<int8_t>(quotient(in[i], row.scale, -127, 127));
}

inline constexpr FormatInfo kInfo = row_format<Head, int8_t, 1, &decode, &encode>("i8_channel");

}  // namespace oar::formats::i8_channel
