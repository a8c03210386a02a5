// Interpolation along up to two neighbouring axes of an image: every output entry of an axis is a weighted
// sum of input entries, its taps. Nearest, linear and cubic filters are such sums, with or without
// antialiasing, and each is separable: rows first, then columns.
//
//   line[q, e]      = sum over taps s of row i: rows.weight[s] x[o, rows.at[s], q, e]     (f32, in order)
//   out[o, i, j, e] = sum over taps t of column j: cols.weight[t] line[cols.at[t], e]     (f32, in order)
//
// An entry of one tap with weight 1 is a copy, to the bit. An entry without taps is 0.
//
// Roofline: bytes of x and out over memory bandwidth; of cubic filters 4 multiply-adds an element and axis.
#pragma once

#include "kernels/kernel.h"

namespace oar {

// Taps of output entry k are [first[k], first[k + 1]) of `at`, in [0, in), and `weight`. Without `first` the
// axis stays as it is: out = in.
struct ResizeAxis {
  const int32_t* first = nullptr;  // [out + 1]
  const int32_t* at = nullptr;
  const float* weight = nullptr;
  int64_t in = 1, out = 1;
};

struct ResizeArgs {
  uint32_t size = sizeof(ResizeArgs);
  uint32_t version = 1;
  float* out = nullptr;      // (outer, rows.out, cols.out, inner)
  const float* x = nullptr;  // (outer, rows.in, cols.in, inner)
  ResizeAxis rows, cols;
  int64_t outer = 1, inner = 1;
};

}  // namespace oar
