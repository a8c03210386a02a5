// q6_k: 256 six-bit codes in 16 groups of 16, each with a signed 8-bit scale, x = (d * scale) * (q -
// 32); 6.5625 bits per weight. GGUF's GGML_TYPE_Q6_K. Decode only.
//
// Each half of the block (128 elements) has 64 bytes of low nibbles and 32 bytes of upper bit pairs. With r =
// 0..3 the run of 32 elements and i the place in it: runs 0 and 1 take the low nibbles of bytes i and 32 + i,
// runs 2 and 3 their high nibbles; the pair is bits 2r, 2r+1 of high[i].
#pragma once

#include "quant/format.h"
#include "quant/formats/k_scales.h"

namespace oar::formats::q6_k {

struct Block {
  uint8_t low[kSuperGroup / 2];
  uint8_t high[kSuperGroup / 4];
  int8_t scales[kSuperGroup / 16];
  oar::f16 d;
};
static_assert(sizeof(Block) == 210);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int half = 0; half < 2; ++half) {
    for (int r = 0; r < 4; ++r) {
      for (int i = 0; i < 32; ++i) {
        const uint8_t byte = b.low[half * 64 + (r % 2) * 32 + i];
        const int nibble = r < 2 ? byte & 15 : byte >> 4;
        const int pair = (b.high[half * 32 + i] >> (2 * r)) & 3;
        const int element = half * 128 + r * 32 + i;
        const float scale = d * static_cast<float>(b.scales[element / 16]);
        out[element] = scale * static_cast<float>((nibble | pair << 4) - 32);
      }
    }
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("q6_k");

}  // namespace oar::formats::q6_k
