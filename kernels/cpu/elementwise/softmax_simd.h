// Softmax of rows for one instruction set (SoftmaxArgs, kernels/conv.h).
#pragma once

#include <algorithm>

#include "kernels/conv.h"
#include "kernels/cpu/vmath.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

// One row: the largest scaled score first, then exponentials and their sum, then the quotient.
inline void softmax_row(const float* x, const float* mask, float* out, int64_t n, float scale) {
  const Vf factor = set1(scale);
  const auto score = [&](int64_t i, int64_t k) {
    const Vf v = load_part(x + i, k) * factor;
    return mask ? v + load_part(mask + i, k) : v;
  };
  Vf top = set1(-INFINITY);
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vf v = score(i, kLanes);
    store(out + i, v);
    top = max(v, top);
  }
  float most = whole > 0 ? reduce_max(top) : -INFINITY;
  if (whole < n) {
    store_n(out + whole, score(whole, n - whole), n - whole);
    for (int64_t i = whole; i < n; ++i) most = out[i] > most ? out[i] : most;
  }
  const Vf shift = set1(most);
  Vf sums = zero();
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vf e = exp_nonpositive(load(out + i) - shift);
    store(out + i, e);
    sums = sums + e;
  }
  float sum = reduce_add(sums);
  if (whole < n) {
    store_n(out + whole, exp_nonpositive(load_n(out + whole, n - whole) - shift), n - whole);
    for (int64_t i = whole; i < n; ++i) sum += out[i];
  }
  const Vf inverse = set1(1.f / sum);
  for_lanes(n, [&](int64_t i, int64_t k) { store_part(out + i, load_part(out + i, k) * inverse, k); });
}

OAR_INLINE int64_t softmax_rows(const SoftmaxArgs& a) { return rows_per_chunk(a.rows, a.n * 16); }
inline void softmax_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const SoftmaxArgs*>(args);
  *out = {1, {row_chunks(a.rows, softmax_rows(a))}};
}
inline void softmax_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const SoftmaxArgs*>(args);
  const int64_t per = softmax_rows(a), last = std::min(end * per, a.rows);
  for (int64_t r = begin * per; r < last; ++r) {
    softmax_row(a.x + r * a.n, a.mask ? a.mask + r * a.mask_row : nullptr, a.out + r * a.n, a.n, a.scale);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
