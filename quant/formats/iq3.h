// iq3_xxs, iq3_s: 256 elements in runs of four, each a point of a set (iq_points.h) with a sign for every
// element, under 4-bit scales of 32 elements and one f16: x = d * (s + 1/2) / 2 * point * sign, and of iq3_s
// d * (2 s + 1) * point * sign. 3.0625 and 3.4375 bits per weight. GGUF's GGML_TYPE_IQ3_XXS and IQ3_S. Decode
// only, exact in f32.
#pragma once

#include "quant/formats/iq2.h"

namespace oar::formats {

namespace iq3_xxs {

struct Block {
  oar::f16 d;
  uint8_t q[kSuperGroup / 4];
  uint8_t rest[kSuperGroup / 8];  // of 32 elements a word: signs of eight in sevens, and the scale
};
static_assert(sizeof(Block) == 98);

// 4, 12, 20, 28, 36, 44, 52, 62: computed, as a list may end on the stack of a device's thread.
inline OAR_HD float magnitude(int k) { return static_cast<float>(8 * k + (k == 7 ? 6 : 4)); }

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int g = 0; g < 8; ++g) {
    uint32_t rest;
    memcpy(&rest, b.rest + 4 * g, sizeof rest);
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
    for (int i = 0; i < 32; ++i) {
      const float x =
          scale * magnitude(static_cast<int>(iq3_xxs_point(b.q[8 * g + i / 4]) >> (4 * (i % 4)) & 7));
      const int signs = iq_signs(static_cast<int>(rest >> (7 * (i / 8)) & 127));
      out[32 * g + i] = (signs >> (i % 8) & 1) != 0 ? -x : x;
    }
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("iq3_xxs");

}  // namespace iq3_xxs

namespace iq3_s {

struct Block {
  oar::f16 d;
  uint8_t q[kSuperGroup / 4];        // lower eight bits of the index
  uint8_t high[kSuperGroup / 32];    // the ninth of eight indices
  uint8_t signs[kSuperGroup / 8];    // all
  uint8_t scales[kSuperGroup / 64];  // the first of two in the low nibble
};
static_assert(sizeof(Block) == 110);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int i = 0; i < kSuperGroup; ++i) {
    const int point = iq3_s_point(b.q[i / 4] | (b.high[i / 32] >> (i / 4 % 8) & 1) << 8);
    const int s = b.scales[i / 64] >> (4 * (i / 32 % 2)) & 15;
    const float x =
        d * static_cast<float>(2 * s + 1) * static_cast<float>(2 * (point >> (4 * (i % 4)) & 7) + 1);
    out[i] = (b.signs[i / 8] >> (i % 8) & 1) != 0 ? -x : x;
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("iq3_s");

}  // namespace iq3_s

}  // namespace oar::formats
