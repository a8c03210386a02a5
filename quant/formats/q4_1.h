// q4_1: 32 four-bit codes with an f16 scale and an f16 minimum, x = d * q + m; 5 bits per weight. GGUF's
// GGML_TYPE_Q4_1. Byte i holds element i in its low and element i + 16 in its high nibble.
#pragma once

#include "quant/format.h"
#include "quant/formats/group32.h"

namespace oar::formats::q4_1 {

struct Block {
  oar::f16 d, m;
  uint8_t q[kGroup / 2];
};
static_assert(sizeof(Block) == 20);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d), m = to_f32(b.m);
  for (int i = 0; i < kGroup / 2; ++i) {
    out[i] = d * static_cast<float>(b.q[i] & 15) + m;
    out[i + kGroup / 2] = d * static_cast<float>(b.q[i] >> 4) + m;
  }
}

inline OAR_HD void encode(const float* in, Block& b) {
  const MinMax range = min_max(in);
  const float d = (range.max - range.min) / 15.0f;
  const float inverse = reciprocal_or_zero(d);
  b.d = to_f16(d);
  b.m = to_f16(range.min);
  for (int i = 0; i < kGroup / 2; ++i) {
    const uint32_t low = level((in[i] - range.min) * inverse + 0.5f, 15);
    const uint32_t high = level((in[i + kGroup / 2] - range.min) * inverse + 0.5f, 15);
    b.q[i] = static_cast<uint8_t>(low | high << 4);
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kGroup, &decode, &encode>("q4_1");

}  // namespace oar::formats::q4_1
