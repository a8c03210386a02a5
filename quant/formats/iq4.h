// iq4_nl: 32 four-bit indices of a table of 16 levels under one f16 scale, x = d * level[q]; 4.5 bits per
// weight. iq4_xs: 256 of them in 8 groups of 32, each with a 6-bit scale, x = (d * (scale - 32)) *
// level[q]; 4.25 bits. GGUF's GGML_TYPE_IQ4_NL and GGML_TYPE_IQ4_XS. Decode only.
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"
#include "quant/formats/k_scales.h"

namespace oar::formats {

// Eight levels of sixteen, a byte each, the first lowest: an index of an array would put it into memory of a
// device's thread. They are denser near zero, as weights are. From the GGUF format's definition.
constexpr OAR_HD uint64_t iq4_levels(int first) {
  constexpr int8_t kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  uint64_t levels = 0;
  for (int i = 0; i < 8; ++i) levels |= uint64_t{static_cast<uint8_t>(kLevels[first + i])} << (8 * i);
  return levels;
}
inline OAR_HD int iq4_level(int q) {
  constexpr uint64_t kLow = iq4_levels(0), kHigh = iq4_levels(8);
  return static_cast<int8_t>(static_cast<uint8_t>((q < 8 ? kLow : kHigh) >> (8 * (q % 8))));
}

namespace iq4_nl {

struct Block {
  oar::f16 d;
  uint8_t q[16];  // order of group.h
};
static_assert(sizeof(Block) == 18);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(iq4_level(nibble(b.q, i)));
}

inline constexpr FormatInfo kInfo = block_format<Block, 32, &decode, nullptr>("iq4_nl");

}  // namespace iq4_nl

namespace iq4_xs {

struct Block {
  oar::f16 d;
  uint16_t scales_high;                  // two bits each, group 0 lowest
  uint8_t scales_low[kSuperGroup / 64];  // four bits each, group 0 in the low nibble
  uint8_t q[kSuperGroup / 2];            // order of group.h
};
static_assert(sizeof(Block) == 136);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int g = 0; g < 8; ++g) {
    const int low = (b.scales_low[g / 2] >> (4 * (g % 2))) & 15, high = (b.scales_high >> (2 * g)) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    for (int i = 0; i < 32; ++i) {
      out[g * 32 + i] = scale * static_cast<float>(iq4_level(nibble(b.q, g * 32 + i)));
    }
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("iq4_xs");

}  // namespace iq4_xs

}  // namespace oar::formats
