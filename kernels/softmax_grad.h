// Softmax as training needs it: of rows that see a part of a matrix of scores, its way back, and the loss of
// a vocabulary. Each row by itself: its bits do not depend on other rows. In f32, sums in double.
//
//   seen_softmax    p[r, c] = exp(s[c] - max s) / sum over the row's columns, 0 where the row sees nothing;
//                   s = scale x, or softcap tanh(scale x / softcap)
//   softmax_grad    g[r, c] = slope p[r, c] (g[r, c] - sum of p[r] g[r]), with slope = scale, or
//                   scale (1 - tanh(scale x / softcap)^2) of the raw scores x
//   cross_entropy   loss[r] = log sum exp(s) - s[target]; z[r, c] becomes factor slope (softmax(s)[c] -
//                   (c == target)), slope as above; hit[r]: the first of the largest s is the target's
//
// A NaN that a row sees makes all of its results NaN, and no other's. Roofline: three reads and two writes of
// the rows, in the caches after the first.
#pragma once

#include "kernels/kernel.h"

namespace oar {

struct SeenSoftmaxArgs {
  uint32_t size = sizeof(SeenSoftmaxArgs);
  uint32_t version = 1;
  float* x = nullptr;  // [rows, n]: scores, then weights
  int64_t rows = 0, n = 0;
  // Row r sees columns [first[r % period], last[r % period]).
  const int32_t* first = nullptr;
  const int32_t* last = nullptr;
  int64_t period = 1;
  float scale = 1, softcap = 0;
};

struct SoftmaxGradArgs {
  uint32_t size = sizeof(SoftmaxGradArgs);
  uint32_t version = 1;
  const float* p = nullptr;  // [rows, n]
  float* g = nullptr;        // [rows, n]: the gradient of p, then that of x
  const float* x = nullptr;  // [rows, n], read with a softcap alone
  int64_t rows = 0, n = 0;
  const int32_t* first = nullptr;
  const int32_t* last = nullptr;
  int64_t period = 1;
  float scale = 1, softcap = 0;
};

struct CrossEntropyArgs {
  uint32_t size = sizeof(CrossEntropyArgs);
  uint32_t version = 1;
  float* z = nullptr;  // [rows, n]: logits, then their gradients
  int64_t rows = 0, n = 0;
  const int32_t* target = nullptr;  // [rows], within [0, n)
  double* loss = nullptr;           // [rows]
  int32_t* hit = nullptr;           // [rows]: 0 or 1
  float factor = 1;
  float scale = 1, softcap = 0;
};

}  // namespace oar
