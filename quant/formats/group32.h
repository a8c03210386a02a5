// What the 32-element GGUF formats share: the statistics a block's scale is made from, and the rounding of an
// element to an unsigned code. The order of operations is ggml's reference quantizer's, so that both produce
// the same bytes.
#pragma once

#include "quant/dtype.h"

namespace oar::formats {

inline constexpr int kGroup = 32;

// The element of largest magnitude, with its sign; the first of several; 0 when all are zero or NaN.
inline OAR_HD float signed_absmax(const float* x) {
  float best = 0.0f, magnitude = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const float a = x[i] < 0.0f ? -x[i] : x[i];
    if (a > magnitude) {
      magnitude = a;
      best = x[i];
    }
  }
  return best;
}

struct MinMax {
  float min, max;
};
inline OAR_HD MinMax min_max(const float* x) {
  MinMax m{x[0], x[0]};
  for (int i = 1; i < kGroup; ++i) {
    if (x[i] < m.min) m.min = x[i];
    if (x[i] > m.max) m.max = x[i];
  }
  return m;
}

inline OAR_HD float reciprocal_or_zero(float d) { return d != 0.0f ? 1.0f / d : 0.0f; }

// floor(v) limited to [0, top]; NaN gives 0. The half that makes it a rounding is in v.
inline OAR_HD uint32_t level(float v, uint32_t top) {
  if (!(v > 0.0f)) return 0;
  return v < static_cast<float>(top) ? static_cast<uint32_t>(v) : top;
}

}  // namespace oar::formats
