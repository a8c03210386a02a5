// nvfp4: 4-bit floats (e2m1) in groups of 16 under an e4m3 scale, one f32 scale per row, x = q * (s * scale);
// 4.5 bits per weight and 4 bytes per row. NVIDIA's scheme has the f32 scale per tensor: then each row holds
// it. https://developer.nvidia.com/blog/introducing-nvfp4-for-efficient-and-accurate-low-precision-inference/
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"

namespace oar::formats::nvfp4 {

inline constexpr int kElems = 16;

struct Head {
  float scale;
};

struct Block {
  oar::e4m3 s;
  uint8_t q[kElems / 2];  // byte i: element i in its low, element i + 8 in its high nibble
};
static_assert(sizeof(Block) == 9);

inline OAR_HD void decode(const Head& row, const Block& b, float* out) {
  const float d = to_f32(b.s) * row.scale;
  for (int i = 0; i < kElems / 2; ++i) {
    out[i] = to_f32(oar::e2m1{static_cast<uint8_t>(b.q[i] & 15)}) * d;
    out[i + kElems / 2] = to_f32(oar::e2m1{static_cast<uint8_t>(b.q[i] >> 4)}) * d;
  }
}

// The row's largest magnitude is 448 (the largest e4m3) times 6 (the largest e2m1) times scale; a group's
// scale brings its largest magnitude to 6.
inline OAR_HD void encode(const float* in, int64_t nblocks, Head& row, Block* blocks) {
  row.scale = absmax(in, nblocks * kElems) / (448.0f * 6.0f);
  for (int64_t g = 0; g < nblocks; ++g) {
    const float* x = in + g * kElems;
    Block& b = blocks[g];
    b = {};
    if (row.scale == 0.0f) continue;
    b.s = to_e4m3(absmax(x, kElems) / 6.0f / row.scale);
    const float d = to_f32(b.s) * row.scale;
    if (!(d > 0.0f)) continue;
    for (int i = 0; i < kElems / 2; ++i) {
      b.q[i] = static_cast<uint8_t>(to_e2m1(x[i] / d).bits | to_e2m1(x[i + kElems / 2] / d).bits << 4);
    }
  }
}

inline constexpr FormatInfo kInfo = row_format<Head, Block, kElems, &decode, &encode>("nvfp4");

}  // namespace oar::formats::nvfp4
