// iq2_xxs, iq2_xs, iq2_s: 256 elements in runs of eight, each a point of a set (iq_points.h) with a sign for
// every element, under 4-bit scales of 32 or 16 elements and one f16: x = d * (s + 1/2) / 4 * point *
// sign. 2.0625, 2.3125 and 2.5625 bits per weight. GGUF's GGML_TYPE_IQ2_XXS, IQ2_XS and IQ2_S. Decode only.
//
// Exact in f32: 11 bits of d, 5 of the scale, 6 of a magnitude.
#pragma once

#include <cstring>

#include "quant/format.h"
#include "quant/formats/iq_points.h"
#include "quant/formats/k_scales.h"

namespace oar::formats {

// Seven signs of eight are stored: of the eighth, that their number is even.
inline OAR_HD int iq_signs(int stored) {
  int parity = stored ^ stored >> 4;
  parity ^= parity >> 2;
  return stored | ((parity ^ parity >> 1) & 1) << 7;
}

// Eight elements: bit i of `signs` is element i's.
inline OAR_HD void iq2_run(uint16_t point, int signs, float scale, float* out) {
  constexpr uint32_t kMagnitudes = 8 | 25 << 8 | 43 << 16;  // a byte each
  for (int i = 0; i < 8; ++i) {
    const float x = scale * static_cast<float>(kMagnitudes >> (8 * (point >> (2 * i) & 3)) & 255);
    out[i] = (signs >> i & 1) != 0 ? -x : x;
  }
}
inline OAR_HD float iq2_scale(float d, int s) { return d * (0.5f + static_cast<float>(s)) * 0.25f; }

namespace iq2_xxs {

struct Block {
  oar::f16 d;
  uint16_t
      q[kSuperGroup / 8];  // of 32 elements four: indices in bytes 0 .. 3, then signs in sevens and the scale
};
static_assert(sizeof(Block) == 66);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int g = 0; g < 8; ++g) {
    const uint16_t* q = b.q + 4 * g;
    const uint32_t rest = q[2] | static_cast<uint32_t>(q[3]) << 16;
    const float scale = iq2_scale(d, static_cast<int>(rest >> 28));
    for (int r = 0; r < 4; ++r)
      iq2_run(iq2_xxs_point(q[r / 2] >> (8 * (r % 2)) & 255),
              iq_signs(static_cast<int>(rest >> (7 * r) & 127)), scale, out + 32 * g + 8 * r);
  }
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("iq2_xxs");

}  // namespace iq2_xxs

namespace iq2_xs {

struct Block {
  oar::f16 d;
  uint16_t q[kSuperGroup / 8];       // nine bits of index, seven signs
  uint8_t scales[kSuperGroup / 32];  // of 16 elements each, the first in the low nibble
};
static_assert(sizeof(Block) == 74);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int r = 0; r < kSuperGroup / 8; ++r)
    iq2_run(iq2_xs_point(b.q[r] & 511), iq_signs(b.q[r] >> 9),
            iq2_scale(d, b.scales[r / 4] >> (4 * (r / 2 % 2)) & 15), out + 8 * r);
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("iq2_xs");

}  // namespace iq2_xs

namespace iq2_s {

struct Block {
  oar::f16 d;
  uint8_t q[kSuperGroup / 8];        // lower eight bits of the index
  uint8_t signs[kSuperGroup / 8];    // all eight
  uint8_t high[kSuperGroup / 32];    // upper two bits of four indices
  uint8_t scales[kSuperGroup / 32];  // as of iq2_xs
};
static_assert(sizeof(Block) == 82);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.d);
  for (int r = 0; r < kSuperGroup / 8; ++r)
    iq2_run(iq2_s_point(b.q[r] | (b.high[r / 4] >> (2 * (r % 4)) & 3) << 8), b.signs[r],
            iq2_scale(d, b.scales[r / 4] >> (4 * (r / 2 % 2)) & 15), out + 8 * r);
}

inline constexpr FormatInfo kInfo = block_format<Block, kSuperGroup, &decode, nullptr>("iq2_s");

}  // namespace iq2_s

}  // namespace oar::formats
