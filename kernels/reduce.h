// Sums, means and extremes along one axis of three; axes that lie together count as one.
//
//   out[o, i] = op over k of x[o, k, i],  0 <= k < n
//
// Sums: f32 lanes over at most 64 entries, these in double, in an order that n decides, and
// whether inner is 1. So
//   |error| <= 66 epsilon sum over k of |x[o, k, i]|
// A NaN among the entries is the result. Of no entries a sum is 0, a mean NaN, the largest -infinity, the
// smallest infinity.
//
// Roofline: bytes of x over memory bandwidth.
#pragma once

#include "kernels/kernel.h"

namespace oar {

enum class ReduceOp : int32_t { kSum, kMean, kSumOfSquares, kMax, kMin };

struct ReduceArgs {
  uint32_t size = sizeof(ReduceArgs);
  uint32_t version = 1;
  float* out = nullptr;      // (outer, inner)
  const float* x = nullptr;  // (outer, n, inner)
  int64_t outer = 0, n = 0, inner = 1;
  ReduceOp op = ReduceOp::kSum;
};

}  // namespace oar
