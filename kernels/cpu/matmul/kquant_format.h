// What the kernels of GGUF's super-block formats (q2_k .. q6_k, iq4_xs) have in common, read in place from
// the file.
//
// A super-block is 256 consecutive k of a row: codes u (small unsigned integers), an integer scale s for
// every 16 of them (formats with groups of 32 repeat theirs), and
//
//   w = d * s * (u - kOffset)                     (q3_k, q6_k, iq4_xs: u is the table's value + 128)
//   w = d * s * u - dmin * m                      (q2_k, q4_k, q5_k: an integer minimum m per group)
//
// Activations are quantized to int8 under one scale per 256 k (kquant_token.h), so all sums within a
// super-block are integers and exact, in whatever order an instruction adds them:
//
//   S = sum_k s * (u - kOffset) * x      M = sum_g m_g * sum of the x of group g
//   sum = fma(fma(-dmin, float(M), d * float(S)), scale_x, sum)          super-blocks in ascending order
//
// An output therefore has the same bits on every instruction set here, for every batch and chunk: the
// instructions below only differ in how they get S and M. Bounds: |S| <= 256 * 127 * 128 * 32 < 2^31 (q6_k,
// the largest product of scale and code); |M| <= 63 * 127 * 256 < 2^24, so it is exact in f32 as well.
#pragma once

#include <cstring>

#include "quant/formats/iq4.h"
#include "quant/formats/q2_k.h"
#include "quant/formats/q3_k.h"
#include "quant/formats/q4_k.h"
#include "quant/formats/q5_k.h"
#include "quant/formats/q6_k.h"

namespace oar {

inline constexpr int64_t kSuperBlock = 256;
inline constexpr int64_t kSuperGroups = 16;  // groups of 16 k

// Scales and minima of one super-block, unpacked.
struct KHead {
  float d, dmin;
  int8_t scale[kSuperGroups];
  uint8_t min[kSuperGroups];
};

namespace {

// The twelve bytes of q4_k and q5_k (formats/k_scales.h), four groups at a time.
struct PackedK4 {
  uint32_t scale_lo, scale_hi, min_lo, min_hi;
  explicit PackedK4(const uint8_t* packed) {
    uint32_t a, b, c;
    std::memcpy(&a, packed, 4);
    std::memcpy(&b, packed + 4, 4);
    std::memcpy(&c, packed + 8, 4);
    scale_lo = a & 0x3f3f3f3f;
    min_lo = b & 0x3f3f3f3f;
    scale_hi = (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030);
    min_hi = (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030);
  }
};

template <class Block>
inline void head_of_k4(const Block& b, KHead& h) {
  const PackedK4 p(b.scales);
  uint8_t scale[8], min[8];
  std::memcpy(scale, &p.scale_lo, 4);
  std::memcpy(scale + 4, &p.scale_hi, 4);
  std::memcpy(min, &p.min_lo, 4);
  std::memcpy(min + 4, &p.min_hi, 4);
  for (int j = 0; j < kSuperGroups; ++j) {
    h.scale[j] = static_cast<int8_t>(scale[j / 2]);
    h.min[j] = min[j / 2];
  }
  h.d = to_f32(b.d);
  h.dmin = to_f32(b.dmin);
}

// kWide: four products of a code and an activation need more than 16 bits.
struct Q4K {
  using Block = formats::q4_k::Block;
  static constexpr const char* kFormat = "q4_k";
  static constexpr bool kMins = true;
  static constexpr int kOffset = 0;
  static constexpr bool kWide = false;
  static void head(const Block& b, KHead& h) { head_of_k4(b, h); }
};

struct Q5K {
  using Block = formats::q5_k::Block;
  static constexpr const char* kFormat = "q5_k";
  static constexpr bool kMins = true;
  static constexpr int kOffset = 0;
  static constexpr bool kWide = false;
  static void head(const Block& b, KHead& h) { head_of_k4(b, h); }
};

struct Q6K {
  using Block = formats::q6_k::Block;
  static constexpr const char* kFormat = "q6_k";
  static constexpr bool kMins = false;
  static constexpr int kOffset = 32;
  static constexpr bool kWide = false;
  static void head(const Block& b, KHead& h) {
    std::memcpy(h.scale, b.scales, sizeof h.scale);
    h.d = to_f32(b.d);
  }
};

struct Q3K {
  using Block = formats::q3_k::Block;
  static constexpr const char* kFormat = "q3_k";
  static constexpr bool kMins = false;
  static constexpr int kOffset = 4;
  static constexpr bool kWide = false;
  static void head(const Block& b, KHead& h) {
    for (int j = 0; j < kSuperGroups; ++j) {
      const int bottom = j < 8 ? b.scales[j] & 15 : b.scales[j - 8] >> 4;
      const int top = b.scales[8 + j % 4] >> (2 * (j / 4)) & 3;
      h.scale[j] = static_cast<int8_t>((bottom | top << 4) - 32);
    }
    h.d = to_f32(b.d);
  }
};

struct Q2K {
  using Block = formats::q2_k::Block;
  static constexpr const char* kFormat = "q2_k";
  static constexpr bool kMins = true;
  static constexpr int kOffset = 0;
  static constexpr bool kWide = false;
  static void head(const Block& b, KHead& h) {
    for (int j = 0; j < kSuperGroups; ++j) {
      h.scale[j] = static_cast<int8_t>(b.scales[j] & 15);
      h.min[j] = b.scales[j] >> 4;
    }
    h.d = to_f32(b.d);
    h.dmin = to_f32(b.dmin);
  }
};

struct IQ4XS {
  using Block = formats::iq4_xs::Block;
  static constexpr const char* kFormat = "iq4_xs";
  static constexpr bool kMins = false;
  static constexpr int kOffset = 128;
  static constexpr bool kWide = true;
  static void head(const Block& b, KHead& h) {
    for (int j = 0; j < kSuperGroups; ++j) {
      const int g = j / 2, low = b.scales_low[g / 2] >> (4 * (g % 2)) & 15,
                high = b.scales_high >> (2 * g) & 3;
      h.scale[j] = static_cast<int8_t>((low | high << 4) - 32);
    }
    h.d = to_f32(b.d);
  }
};

}  // namespace
}  // namespace oar
