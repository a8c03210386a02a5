// q5_1: 32 five-bit codes with an f16 scale and an f16 minimum, x = d * q + m; 6 bits per weight. GGUF's
// GGML_TYPE_Q5_1. Nibbles as in q4_1; bit i of the little-endian word `high` is element i's fifth bit.
#pragma once

#include "quant/format.h"
#include "quant/formats/group32.h"

namespace oar::formats::q5_1 {

struct Block {
  oar::f16 d, m;
  uint8_t high[4];
  uint8_t q[kGroup / 2];
};
static_assert(sizeof(Block) == 24);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d), m = to_f32(b.m);
  for (int i = 0; i < kGroup; ++i) {
    const int nibble = i < kGroup / 2 ? b.q[i] & 15 : b.q[i - kGroup / 2] >> 4;
    const int fifth = (b.high[i / 8] >> (i % 8)) & 1;
    out[i] = d * static_cast<float>(nibble | fifth << 4) + m;
  }
}

inline OAR_HD void encode(const float* in, Block& b) {
  const MinMax range = min_max(in);
  const float d = (range.max - range.min) / 31.0f;
  const float inverse = reciprocal_or_zero(d);
  b = Block{};
  b.d = to_f16(d);
  b.m = to_f16(range.min);
  for (int i = 0; i < kGroup; ++i) {
    const uint32_t q = level((in[i] - range.min) * inverse + 0.5f, 31);
    b.q[i % (kGroup / 2)] |= static_cast<uint8_t>((q & 15) << (i < kGroup / 2 ? 0 : 4));
    b.high[i / 8] |= static_cast<uint8_t>((q >> 4) << (i % 8));
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kGroup, &decode, &encode>("q5_1");

}  // namespace oar::formats::q5_1
