// q4_0: 32 four-bit codes under one f16 scale, x = d * (q - 8); 4.5 bits per weight. GGUF's GGML_TYPE_Q4_0.
// Byte i holds element i in its low and element i + 16 in its high nibble.
#pragma once

#include "quant/format.h"
#include "quant/formats/group32.h"

namespace oar::formats::q4_0 {

struct Block {
  oar::f16 d;
  uint8_t q[kGroup / 2];
};
static_assert(sizeof(Block) == 18);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int i = 0; i < kGroup / 2; ++i) {
    out[i] = d * static_cast<float>((b.q[i] & 15) - 8);
    out[i + kGroup / 2] = d * static_cast<float>((b.q[i] >> 4) - 8);
  }
}

// The element of largest magnitude maps to code 0, that is to -8: d may be negative.
inline OAR_HD void encode(const float* in, Block& b) {
  const float d = signed_absmax(in) / -8.0f;
  const float inverse = reciprocal_or_zero(d);
  b.d = to_f16(d);
  for (int i = 0; i < kGroup / 2; ++i) {
    const uint32_t low = level(in[i] * inverse + 8.5f, 15);
    const uint32_t high = level(in[i + kGroup / 2] * inverse + 8.5f, 15);
    b.q[i] = static_cast<uint8_t>(low | high << 4);
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kGroup, &decode, &encode>("q4_0");

}  // namespace oar::formats::q4_0
