// mxfp4: 4-bit floats (e2m1) in groups of 32 under a power of two (e8m0), x = q * 2^(e - 127); 4.25 bits per
// weight. OCP Microscaling Formats (MX) 1.0, in GGUF's layout (GGML_TYPE_MXFP4).
#pragma once

#include "quant/format.h"
#include "quant/formats/group.h"

namespace oar::formats::mxfp4 {

inline constexpr int kElems = 32;

struct Block {
  oar::e8m0 e;
  uint8_t q[kElems / 2];  // order of group.h
};
static_assert(sizeof(Block) == 17);

inline OAR_HD void decode(const Block& b, float* out) {
  const float d = to_f32(b.e);
  for (int i = 0; i < kElems; ++i) out[i] = to_f32(oar::e2m1{static_cast<uint8_t>(nibble(b.q, i))}) * d;
}

// The largest power of two that brings the largest magnitude to 4 .. 8 (e2m1 ends at 6, so what lies above 6
// is clipped, as the specification has it): exponent floor(log2 absmax) - 2.
inline OAR_HD void encode(const float* in, Block& b) {
  b = {};
  const int exponent = static_cast<int>(oar::detail::bits_of(absmax(in, kElems)) >> 23) - 2;
  b.e.bits = static_cast<uint8_t>(exponent < 0 ? 0 : exponent > 252 ? 252 : exponent);
  const float d = to_f32(b.e);
  for (int i = 0; i < kElems; ++i) set_nibble(b.q, i, to_e2m1(in[i] / d).bits);
}

inline constexpr FormatInfo kInfo = block_format<Block, kElems, &decode, &encode>("mxfp4");

}  // namespace oar::formats::mxfp4
