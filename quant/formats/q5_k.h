// q5_k: 256 five-bit codes, x = (d * scale) * q - (dmin * min) with the scales of k_scales.h; 5.5 bits per
// weight. GGUF's GGML_TYPE_Q5_K. Decode only. Nibbles as in q4_k; bit g of high[i] is the fifth bit of
// element i of group g.
#pragma once

#include "quant/format.h"
#include "quant/formats/k_scales.h"

namespace oar::formats::q5_k {

struct Block {
  oar::f16 d, dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t q[kSuperGroup / 2];
};
static_assert(sizeof(Block) == 176);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d), dmin = to_f32(b.dmin);
  for (int g = 0; g < 8; ++g) {
    const ScaleMin s = unpack_scale_min(b.scales, g);
    const float scale = d * static_cast<float>(s.scale), min = dmin * static_cast<float>(s.min);
    const uint8_t* q = b.q + (g / 2) * 32;
    for (int i = 0; i < 32; ++i) {
      const int nibble = g % 2 == 0 ? q[i] & 15 : q[i] >> 4;
      const int level = nibble | ((b.high[i] >> g) & 1) << 4;
      out[g * 32 + i] = scale * static_cast<float>(level) - min;
    }
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("q5_k");

}  // namespace oar::formats::q5_k
