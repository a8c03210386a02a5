// q2_k: 256 two-bit codes in 16 groups of 16, each with a 4-bit scale and a 4-bit minimum; 2.625 bits per
// weight. x = (d * scale) * q - (dmin * min). GGUF's GGML_TYPE_Q2_K. Decode only.
//
// Byte i of each half's 32 holds elements i, 32 + i, 64 + i and 96 + i of the half, lowest bits first.
#pragma once

#include "quant/format.h"
#include "quant/formats/k_scales.h"

namespace oar::formats::q2_k {

struct Block {
  uint8_t scales[kSuperGroup / 16];  // scale in the low nibble, minimum in the high
  uint8_t q[kSuperGroup / 4];
  oar::f16 d, dmin;
};
static_assert(sizeof(Block) == 84);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d), dmin = to_f32(b.dmin);
  for (int e = 0; e < kSuperGroup; ++e) {
    const int half = e / 128, run = e % 128 / 32;
    const int level = (b.q[half * 32 + e % 32] >> (2 * run)) & 3;
    const uint8_t s = b.scales[e / 16];
    // Both products are exact in f32 (11 and 4 bits, then 2 more): one rounding, in the subtraction.
    out[e] = d * static_cast<float>((s & 15) * level) - dmin * static_cast<float>(s >> 4);
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("q2_k");

}  // namespace oar::formats::q2_k
