// kernels/optimizer.h for one instruction set; included by image_<isa>.cc.
#pragma once

#include <cstring>

#include "kernels/cpu/vmath.h"
#include "kernels/optimizer.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline void optimizer_plan(const void*, int, KernelPlan* out) { *out = {1, {1}}; }

// Eight sums side by side, whatever the width of the processor's vectors: the same bits everywhere.
typedef float Floats8 __attribute__((vector_size(32)));
typedef double Doubles8 __attribute__((vector_size(64)));

inline void squares_run(const void* args, int, int64_t, int64_t, const KernelScratch&) {
  const auto& a = *static_cast<const SquaresArgs*>(args);
  Doubles8 sums = {};
  int64_t i = 0;
  for (; i + 8 <= a.n; i += 8) {
    Floats8 x;
    memcpy(&x, a.x + i, sizeof x);
    const Doubles8 wide = __builtin_convertvector(x, Doubles8);
    sums += wide * wide;
  }
  double sum = 0;
  for (; i < a.n; ++i) sum += static_cast<double>(a.x[i]) * static_cast<double>(a.x[i]);
  for (int k = 0; k < 8; ++k) sum += sums[k];
  *a.sum = sum;
}

// x, or zero where it is smaller than `least`: processors crawl over subnormal numbers, and a moment that
// decays would stay one for ever, as 0.9 of the smallest rounds to itself.
OAR_INLINE Vf unless_tiny(Vf x, float least) { return select(abs(x) < set1(least), zero(), x); }

inline void adamw_run(const void* args, int, int64_t, int64_t, const KernelScratch&) {
  const auto& a = *static_cast<const AdamwArgs*>(args);
  const Vf clip = set1(a.clip), beta1 = set1(a.beta1), beta2 = set1(a.beta2), rest1 = set1(a.rest1),
           rest2 = set1(a.rest2), keep = set1(a.keep), step = set1(a.step), root = set1(a.root),
           epsilon = set1(a.epsilon);
  for_lanes(a.n, [&](int64_t i, int64_t k) {
    const Vf x = unless_tiny(load_part(a.g + i, k) * clip, 0x1p-56f);
    const Vf m = unless_tiny(beta1 * load_part(a.m + i, k) + rest1 * x, 0x1p-120f);
    const Vf v = unless_tiny(beta2 * load_part(a.v + i, k) + rest2 * (x * x), 0x1p-126f);
    const Vf p = keep * load_part(a.p + i, k) - step * (m / (root * sqrt(v) + epsilon));
    store_part(a.m + i, m, k), store_part(a.v + i, v, k), store_part(a.p + i, p, k);
    if (a.clear) store_part(a.g + i, zero(), k);
  });
}

}  // namespace oar::OAR_SIMD_NAMESPACE
