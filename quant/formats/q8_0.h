// q8_0: 32 signed bytes under one f16 scale, x = d * q; 8.5 bits per weight. GGUF's GGML_TYPE_Q8_0.
#pragma once

#include "quant/format.h"
#include "quant/formats/group32.h"

namespace oar::formats::q8_0 {

struct Block {
  oar::f16 d;
  int8_t q[kGroup];
};
static_assert(sizeof(Block) == 34);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int i = 0; i < kGroup; ++i) out[i] = d * static_cast<float>(b.q[i]);
}

// d = absmax / 127; q = x / d rounded half away from zero.
inline OAR_HD void encode(const float* in, Block& b) {
  const float extreme = signed_absmax(in);
  const float d = (extreme < 0.0f ? -extreme : extreme) / 127.0f;
  const float inverse = reciprocal_or_zero(d);
  b.d = to_f16(d);
  for (int i = 0; i < kGroup; ++i) {
    const float v = in[i] * inverse;
    const float magnitude = v < 0.0f ? -v : v;
    // round() half away from zero, exactly: adding 0.5 first would carry 0.49999997 up.
    uint32_t n = level(magnitude, 127);
    if (n < 127 && magnitude - static_cast<float>(n) >= 0.5f) ++n;
    b.q[i] = static_cast<int8_t>(v < 0.0f ? -static_cast<int>(n) : static_cast<int>(n));
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kGroup, &decode, &encode>("q8_0");

}  // namespace oar::formats::q8_0
