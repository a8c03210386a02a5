// q3_k: 256 three-bit codes in 16 groups of 16, each with a 6-bit scale, x = (d * (scale - 32)) * (q - 4);
// 3.4375 bits per weight. GGUF's GGML_TYPE_Q3_K. Decode only.
//
// The low two bits lie as in q2_k; the third of element e is bit e / 32 of high[e % 32]. Scales 0-7 have
// their low four bits in the low nibbles of packed bytes 0-7, scales 8-15 in the high nibbles of the same;
// the top two of scale j are bits 2 (j / 4) and up of packed byte 8 + j % 4.
#pragma once

#include "quant/format.h"
#include "quant/formats/k_scales.h"

namespace oar::formats::q3_k {

struct Block {
  uint8_t high[kSuperGroup / 8];
  uint8_t low[kSuperGroup / 4];
  uint8_t scales[12];
  oar::f16 d;
};
static_assert(sizeof(Block) == 110);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int e = 0; e < kSuperGroup; ++e) {
    const int j = e / 16;
    const int bottom = j < 8 ? b.scales[j] & 15 : b.scales[j - 8] >> 4;
    const int top = (b.scales[8 + j % 4] >> (2 * (j / 4))) & 3;
    const int pair = (b.low[e / 128 * 32 + e % 32] >> (2 * (e % 128 / 32))) & 3;
    const int level = pair | ((b.high[e % 32] >> (e / 32)) & 1) << 2;
    out[e] = d * static_cast<float>((bottom | top << 4) - 32) * static_cast<float>(level - 4);
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("q3_k");

}  // namespace oar::formats::q3_k
