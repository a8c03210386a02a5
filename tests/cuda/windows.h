// Windows of convolutions and pools, and what bounds their results.
#pragma once

#include "kernels/conv.h"
#include "tests/cuda/on_device.h"

namespace oar_test {

struct Window {
  int64_t N, H, W, KH, KW, stride_h, stride_w, dilation, pad_top, pad_left, pad_bottom, pad_right;
};

inline oar::WindowShape shape_of(const Window& s) {
  oar::WindowShape w;
  w.N = s.N, w.H = s.H, w.W = s.W, w.KH = s.KH, w.KW = s.KW;
  w.stride_h = s.stride_h, w.stride_w = s.stride_w;
  w.dilation_h = w.dilation_w = s.dilation;
  w.pad_top = s.pad_top, w.pad_left = s.pad_left, w.pad_bottom = s.pad_bottom, w.pad_right = s.pad_right;
  w.OH = (s.H + s.pad_top + s.pad_bottom - (s.KH - 1) * s.dilation - 1) / s.stride_h + 1;
  w.OW = (s.W + s.pad_left + s.pad_right - (s.KW - 1) * s.dilation - 1) / s.stride_w + 1;
  return w;
}

inline std::vector<float> filled(int64_t n, Values values, uint32_t seed) {
  return random_values(static_cast<size_t>(n), values, seed);
}

inline std::vector<float> magnitudes(std::vector<float> v) {
  for (float& x : v) x = std::fabs(x);
  return v;
}

// What follows the sum keeps its error or shrinks it, but for hard_swish (slopes to 1.5), silu and gelu
// (1.13); their functions are within 32 units of values of the size of 1.
inline double after(double sum_error, float want) {
  return 1.5 * sum_error + 64 * kUnit * (1 + std::fabs(want));
}

constexpr float kNobodys = 1e30f;  // what lies between rows

}  // namespace oar_test
