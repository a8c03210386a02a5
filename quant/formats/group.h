// What our own integer formats share: statistics of a group, the rounding of an element to a code, and where
// 4-bit codes lie. Rounding is to nearest, ties to even, of the quotient x / scale with the scale as it is
// stored: the definition other tools use as well (torch.round), so that the same weights give the same bytes.
#pragma once

#include <cmath>
#include <cstdint>

#include "quant/dtype.h"

namespace oar::formats {

// A group's scale as it is stored: the nearest f16, never infinite.
inline OAR_HD oar::f16 f16_scale(float scale) {
  const float limited = scale > 65504.0f ? 65504.0f : scale < -65504.0f ? -65504.0f : scale;
  return to_f16(limited);
}

// max |x|; NaN counts as 0.
inline OAR_HD float absmax(const float* x, int64_t n) {
  float best = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float a = x[i] < 0.0f ? -x[i] : x[i];
    if (a > best) best = a;
  }
  return best;
}

// The element of largest magnitude, with its sign; the first of several.
inline OAR_HD float signed_absmax(const float* x, int64_t n) {
  float best = 0.0f, magnitude = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float a = x[i] < 0.0f ? -x[i] : x[i];
    if (a > magnitude) {
      magnitude = a;
      best = x[i];
    }
  }
  return best;
}

// Least and largest of the values and 0, as asymmetric codes that hit 0 want it.
struct Range {
  float min = 0.0f, max = 0.0f;
};
inline OAR_HD Range range_with_zero(const float* x, int64_t n) {
  Range r;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] < r.min) r.min = x[i];
    if (x[i] > r.max) r.max = x[i];
  }
  return r;
}

// v rounded to nearest even and limited to [lo, hi]; NaN gives the code nearest 0.
inline OAR_HD int round_level(float v, int lo, int hi) {
  if (!(v > static_cast<float>(lo))) return v <= static_cast<float>(lo) || lo > 0 ? lo : 0;
  if (v >= static_cast<float>(hi)) return hi;
  return static_cast<int>(nearbyintf(v));
}

// x / scale as a code; 0 for a scale of 0.
inline OAR_HD int quotient(float x, float scale, int lo, int hi) {
  return scale == 0.0f ? 0 : round_level(x / scale, lo, hi);
}

// 4-bit codes lie 32 to 16 bytes, in every format of ours as in GGUF's q4_0: byte i of the 16 holds element
// i in its low and element i + 16 in its high nibble. One kernel's unpacking serves them all.
inline OAR_HD int nibble(const uint8_t* q, int i) {
  const uint8_t byte = q[i / 32 * 16 + i % 16];
  return i % 32 < 16 ? byte & 15 : byte >> 4;
}
// Bytes must be zero before.
inline OAR_HD void set_nibble(uint8_t* q, int i, int level) {
  q[i / 32 * 16 + i % 16] =
      static_cast<uint8_t>(q[i / 32 * 16 + i % 16] | (i % 32 < 16 ? level : level << 4));
}

}  // namespace oar::formats
