// i4_s8_g32: 4-bit codes in groups of 32 under an 8-bit sub-scale, one f32 scale per row,
// x = scale * (s * (q - 8)); 4.25 bits per weight and 4 bytes per row. Made for integer arithmetic: with int8
// activations a, |sum over 32 of (q - 8) * a| <= 8 * 127 * 32 = 32512 fits 16 bits. So one 16-bit
// multiply-add applies s, and nothing in the inner loop is a float.
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"

namespace oar::formats::i4_s8_g32 {

inline constexpr int kElems = 32;

struct Head {
  float scale;
};

struct Block {
  uint8_t s;
  uint8_t q[kElems / 2];  // codes 0 .. 15, order of group.h
};
static_assert(sizeof(Block) == 17);

inline OAR_HD void decode(const Head& row, const Block& b, float* out) {
  for (int i = 0; i < kElems; ++i) {
    out[i] = row.scale * static_cast<float>(static_cast<int>(b.s) * (nibble(b.q, i) - 8));
  }
}

// A group wants the step absmax / 7.5, with which -8 .. 7 reaches every element within half a step. The row's
// largest step is 255 units of scale; the others are rounded to units, at least one.
inline OAR_HD void encode(const float* in, int64_t nblocks, Head& row, Block* blocks) {
  row.scale = absmax(in, nblocks * kElems) / (7.5f * 255.0f);
  for (int64_t g = 0; g < nblocks; ++g) {
    const float* x = in + g * kElems;
    Block& b = blocks[g];
    b = {};
    const float step = absmax(x, kElems) / 7.5f;
    if (step > 0.0f) b.s = static_cast<uint8_t>(quotient(step, row.scale, 1, 255));
    const float d = row.scale * static_cast<float>(b.s);
    for (int i = 0; i < kElems; ++i) set_nibble(b.q, i, quotient(x[i], d, -8, 7) + 8);
  }
}

inline constexpr FormatInfo kInfo = row_format<Head, Block, kElems, &decode, &encode>("i4_s8_g32");

}  // namespace oar::formats::i4_s8_g32
