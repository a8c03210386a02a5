// q5_0: 32 five-bit codes under one f16 scale, x = d * (q - 16); 5.5 bits per weight. GGUF's GGML_TYPE_Q5_0.
// Nibbles as in q4_0; bit i of the little-endian word `high` is element i's fifth bit.
#pragma once

#include "quant/format.h"
#include "quant/formats/group32.h"

namespace oar::formats::q5_0 {

struct Block {
  oar::f16 d;
  uint8_t high[4];
  uint8_t q[kGroup / 2];
};
static_assert(sizeof(Block) == 22);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int i = 0; i < kGroup; ++i) {
    const int nibble = i < kGroup / 2 ? b.q[i] & 15 : b.q[i - kGroup / 2] >> 4;
    const int fifth = (b.high[i / 8] >> (i % 8)) & 1;
    out[i] = d * static_cast<float>((nibble | fifth << 4) - 16);
  }
}

// The element of largest magnitude maps to code 0, that is to -16: d may be negative.
inline OAR_HD void encode(const float* in, Block& b) {
  const float d = signed_absmax(in) / -16.0f;
  const float inverse = reciprocal_or_zero(d);
  b = Block{};
  b.d = to_f16(d);
  for (int i = 0; i < kGroup; ++i) {
    const uint32_t q = level(in[i] * inverse + 16.5f, 31);
    b.q[i % (kGroup / 2)] |= static_cast<uint8_t>((q & 15) << (i < kGroup / 2 ? 0 : 4));
    b.high[i / 8] |= static_cast<uint8_t>((q >> 4) << (i % 8));
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kGroup, &decode, &encode>("q5_0");

}  // namespace oar::formats::q5_0
