// Rotary position embedding, https://arxiv.org/abs/2104.09864. Optionally normalizes each head first
// (QK-norm). out[t, h, :] = rotate(rms_norm(x[t, h, :]) * w, positions[t]); dims beyond rot_dim pass through.
//   half layout (Hugging Face):  pairs (i, i + rot_dim/2)
//   interleaved (GGUF llama, llama2.c): pairs (2i, 2i + 1)
// angle = positions[t] * inv_freq[i]; cos and sin are scaled by `mscale` (YaRN's attention factor).
// Angles are reduced in double, so positions up to 2^31 keep full float accuracy. Heads may lie apart, among
// the columns of wider ones.
#pragma once

#include "kernels/kernel.h"

namespace oar {

struct RopeArgs {
  uint32_t size = sizeof(RopeArgs);
  uint32_t version = 1;
  float* out = nullptr;                // [T, heads, D], row stride ldo; may equal x, lying the same way
  const float* x = nullptr;            // [T, heads, D], row stride ldx
  const int32_t* positions = nullptr;  // [T]
  const float* inv_freq = nullptr;     // [rot_dim / 2]
  const float* norm_w = nullptr;       // [D] or null: RMS norm over D before rotating
  int64_t T = 0, heads = 0, D = 0, rot_dim = 0, ldx = 0, ldo = 0;
  float norm_eps = 1e-6f;
  float mscale = 1.f;
  int32_t interleaved = 0;
  // Elements from one head to the next, at least D; 0: D. Other than 0 in version 2 alone.
  int64_t x_step = 0, out_step = 0;

  constexpr OAR_HD int64_t step_of_x() const { return x_step != 0 ? x_step : D; }
  constexpr OAR_HD int64_t step_of_out() const { return out_step != 0 ? out_step : D; }
};

}  // namespace oar
