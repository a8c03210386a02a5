// RMSNorm and LayerNorm for one instruction set; included by elementwise_<isa>.cc. Four vector accumulators
// per row, added in a fixed order: a row's result depends on its columns alone.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/norm.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Sum over [0, n) of f(i, lanes), which returns a vector whose lanes past the end are zero.
template <class F>
OAR_INLINE float sum_lanes(int64_t n, F&& f) {
  Vf s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 = s0 + f(i, kLanes);
    s1 = s1 + f(i + kLanes, kLanes);
    s2 = s2 + f(i + 2 * kLanes, kLanes);
    s3 = s3 + f(i + 3 * kLanes, kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) s0 = s0 + f(i, kLanes);
  if (i < n) s1 = s1 + f(i, n - i);
  return reduce_add((s0 + s1) + (s2 + s3));
}

// One row of h = x + residual for both norms. `h` is where the second pass finds it: sum_out, or the output
// row (each element of which is read before it is written), or x itself when there is nothing to add.
template <class Args>
OAR_INLINE const float* add_residual(const Args& a, int64_t row) {
  const float* x = a.x + row * a.ldx;
  if (a.residual == nullptr && a.sum_out == nullptr) return x;
  const float* residual = a.residual != nullptr ? a.residual + row * a.cols : nullptr;
  float* h = a.sum_out != nullptr ? a.sum_out + row * a.cols : a.out + row * a.ldo;
  for_lanes(a.cols, [&](int64_t i, int64_t n) {
    Vf v = load_part(x + i, n);
    if (residual != nullptr) v = v + load_part(residual + i, n);
    store_part(h + i, v, n);
  });
  return h;
}

template <class Args>
int64_t norm_rows(const Args& a) {
  return rows_per_chunk(a.rows, a.cols * 4 * static_cast<int64_t>(sizeof(float)));  // x, residual, sum, out
}

template <class Args>
void norm_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const Args*>(args);
  *out = {1, {row_chunks(a.rows, norm_rows(a))}};
}

inline void rms_norm_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const RmsNormArgs*>(args);
  const int64_t per = norm_rows(a), last = end * per < a.rows ? end * per : a.rows;
  const Vf offset = set1(a.w_offset);
  for (int64_t r = begin * per; r < last; ++r) {
    const float* h = add_residual(a, r);
    const float squares = sum_lanes(a.cols, [&](int64_t i, int64_t n) {
      const Vf v = load_part(h + i, n);
      return v * v;
    });
    const Vf scale = set1(1.f / std::sqrt(squares / static_cast<float>(a.cols) + a.eps));
    float* out = a.out + r * a.ldo;
    for_lanes(a.cols, [&](int64_t i, int64_t n) {
      store_part(out + i, load_part(h + i, n) * scale * (load_part(a.w + i, n) + offset), n);
    });
  }
}

inline void layer_norm_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const LayerNormArgs*>(args);
  const int64_t per = norm_rows(a), last = end * per < a.rows ? end * per : a.rows;
  const float inv_cols = 1.f / static_cast<float>(a.cols);
  for (int64_t r = begin * per; r < last; ++r) {
    const float* h = add_residual(a, r);
    const Vf mean =
        set1(sum_lanes(a.cols, [&](int64_t i, int64_t n) { return load_part(h + i, n); }) * inv_cols);
    // Lanes past the end would contribute mean^2: subtract it from itself there.
    const float squares = sum_lanes(a.cols, [&](int64_t i, int64_t n) {
      Vf v = load_part(h + i, n) - mean;
      if (n != kLanes) {
        float lanes[kLanes] = {};
        store_n(lanes, v, n);
        v = load(lanes);
      }
      return v * v;
    });
    const Vf scale = set1(1.f / std::sqrt(squares * inv_cols + a.eps));
    float* out = a.out + r * a.ldo;
    for_lanes(a.cols, [&](int64_t i, int64_t n) {
      Vf v = (load_part(h + i, n) - mean) * scale;
      if (a.w != nullptr) v = v * load_part(a.w + i, n);
      if (a.b != nullptr) v = v + load_part(a.b + i, n);
      store_part(out + i, v, n);
    });
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
