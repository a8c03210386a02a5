// Elements moved from one box of strides to another, of any type: what transposing, cutting, joining,
// splitting and repeating come to.
//
//   out[sum over k of i[k] out_steps[k]] = x[sum over k of i[k] x_steps[k]],  0 <= i[k] < dims[k]
//
// Bytes are copied, so results are equal to the bit whoever moves them. Boxes do not overlap.
//
// Roofline: bytes of x and out over memory bandwidth.
#pragma once

#include "kernels/kernel.h"

namespace oar {

struct StridedCopyArgs {
  static constexpr int kMostAxes = 8;
  uint32_t size = sizeof(StridedCopyArgs);
  uint32_t version = 1;
  void* out = nullptr;  // element 0 of each box; null x: zeros are written
  const void* x = nullptr;
  int64_t dims[kMostAxes] = {};       // outermost first; the rest is not looked at
  int64_t x_steps[kMostAxes] = {};    // elements between neighbours; 0 repeats, negative ones go backwards
  int64_t out_steps[kMostAxes] = {};  // no element is written twice
  int32_t rank = 0;
  int32_t element = 4;  // bytes: 1, 2, 4 or 8
};

// The same box with as few axes as can be: those of one entry are left out, and neighbours that lie in one
// another's order in both boxes are one. A box without elements has one axis, of none.
inline StridedCopyArgs merged(const StridedCopyArgs& a) {
  StridedCopyArgs m = a;
  m.rank = 0;
  for (int k = 0; k < a.rank; ++k) {
    const int64_t n = a.dims[k], x = a.x != nullptr ? a.x_steps[k] : 0, out = a.out_steps[k];
    if (n == 0) {
      m.rank = 1, m.dims[0] = 0;
      return m;
    }
    if (n == 1) continue;
    const int last = m.rank - 1;
    if (last >= 0 && m.x_steps[last] == x * n && m.out_steps[last] == out * n) {
      m.dims[last] *= n, m.x_steps[last] = x, m.out_steps[last] = out;
    } else {
      m.dims[m.rank] = n, m.x_steps[m.rank] = x, m.out_steps[m.rank] = out;
      ++m.rank;
    }
  }
  return m;
}

}  // namespace oar
