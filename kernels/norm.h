// Normalizations over the last axis, with the residual addition in front fused. Memory bound: x, residual and
// out once each. Sums are accumulated in a fixed order per row, independent of T.
#pragma once

#include "kernels/kernel.h"

namespace oar {

// h = x + residual (when residual is given; also written to sum_out when that is given)
// out = h / sqrt(mean(h^2) + eps) * (w + w_offset)        https://arxiv.org/abs/1910.07467
struct RmsNormArgs {
  uint32_t size = sizeof(RmsNormArgs);
  uint32_t version = 1;
  float* out = nullptr;             // [rows, cols], row stride ldo
  float* sum_out = nullptr;         // [rows, cols], row stride cols, or null; may equal residual
  const float* x = nullptr;         // [rows, cols], row stride ldx
  const float* residual = nullptr;  // [rows, cols], row stride cols, or null
  const float* w = nullptr;         // [cols]
  int64_t rows = 0, cols = 0, ldx = 0, ldo = 0;
  float eps = 1e-5f;
  float w_offset = 0.f;  // 1 for checkpoints that store w - 1
};

// out = (h - mean(h)) / sqrt(var(h) + eps) * w + b, h as above.   https://arxiv.org/abs/1607.06450
struct LayerNormArgs {
  uint32_t size = sizeof(LayerNormArgs);
  uint32_t version = 1;
  float* out = nullptr;
  float* sum_out = nullptr;
  const float* x = nullptr;
  const float* residual = nullptr;
  const float* w = nullptr;  // [cols] or null (1)
  const float* b = nullptr;  // [cols] or null (0)
  int64_t rows = 0, cols = 0, ldx = 0, ldo = 0;
  float eps = 1e-5f;
};

}  // namespace oar
