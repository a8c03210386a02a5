// What an optimizer does to a stretch of one tensor, in f32 but for the sum.
//
//   squares   sum = sum of x^2, in double
//   adamw     x = clip g; m = beta1 m + (1 - beta1) x; v = beta2 v + (1 - beta2) x^2;
//             p = keep p - step m / (root sqrt(v) + epsilon); and, where asked, g = 0
//             (https://arxiv.org/abs/1711.05101, its corrections folded into `step` and `root`). x below
//             2^-56, m below 2^-120 and v below 2^-126 count as zero: squares and moments are never subnormal
//
// One chunk each: who calls them divides the tensors. Roofline: 4 bytes an element, and 28 or with
// g = 0 32, over memory bandwidth.
#pragma once

#include "kernels/kernel.h"

namespace oar {

struct SquaresArgs {
  uint32_t size = sizeof(SquaresArgs);
  uint32_t version = 1;
  const float* x = nullptr;  // [n]
  int64_t n = 0;
  double* sum = nullptr;  // written
};

struct AdamwArgs {
  uint32_t size = sizeof(AdamwArgs);
  uint32_t version = 1;
  float *p = nullptr, *m = nullptr, *v = nullptr;  // [n] each, updated in place
  float* g = nullptr;                              // [n], written where `clear`
  int64_t n = 0;
  bool clear = true;
  float clip = 1;  // of the gradient
  float beta1 = 0, beta2 = 0;
  float rest1 = 1, rest2 = 1;  // 1 - beta1, 1 - beta2, rounded once
  float keep = 1;              // 1 - rate decay
  float step = 0;              // rate / (1 - beta1^n)
  float root = 1;              // 1 / sqrt(1 - beta2^n)
  float epsilon = 0;
};

}  // namespace oar
