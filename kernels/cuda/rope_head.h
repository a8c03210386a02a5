// One head of one token, rotated by a warp (rope.cu, heads.cu).
#pragma once

#include "kernels/cuda/math.h"
#include "kernels/rope.h"

namespace oar::cuda {

// As rotate_head() takes them, with both steps.
inline RopeArgs with_steps(RopeArgs a) {
  a.x_step = a.step_of_x();
  a.out_step = a.step_of_out();
  return a;
}

// Lanes take pairs in turn, so out may be x: whoever writes an element has read it, and nobody else reads it,
// once the norm's sum is known.
OAR_DEVICE void rotate_head(const RopeArgs& a, int64_t t, int64_t h) {
  const float* x = a.x + t * a.ldx + h * a.x_step;
  float* out = a.out + t * a.ldo + h * a.out_step;

  float scale = 1.f;
  if (a.norm_w != nullptr) {
    float squares = 0.f;
    for (int64_t i = lane(); i < a.D; i += kWarp) squares = __fmaf_rn(x[i], x[i], squares);
    scale = 1.f / sqrtf(warp_sum(squares) / static_cast<float>(a.D) + a.norm_eps);
  }
  const auto at = [&](int64_t i) { return a.norm_w != nullptr ? x[i] * scale * a.norm_w[i] : x[i]; };

  const int64_t half = a.rot_dim / 2;
  const double position = a.positions[t];
  for (int64_t i = lane(); i < half; i += kWarp) {
    const int64_t i0 = a.interleaved != 0 ? 2 * i : i, i1 = a.interleaved != 0 ? 2 * i + 1 : i + half;
    float s, c;
    sine_cosine(position * static_cast<double>(a.inv_freq[i]), &s, &c);
    s *= a.mscale;
    c *= a.mscale;
    const float x0 = at(i0), x1 = at(i1);
    out[i0] = x0 * c - x1 * s;
    out[i1] = x1 * c + x0 * s;
  }
  for (int64_t i = 2 * half + lane(); i < a.D; i += kWarp) out[i] = at(i);
}

}  // namespace oar::cuda
