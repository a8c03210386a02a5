// Reductions for one instruction set (ReduceArgs, kernels/reduce.h): entries that lie together go in lanes,
// columns beside each other each in a lane of its own.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd.h"
#include "kernels/partition.h"
#include "kernels/reduce.h"

namespace oar::OAR_SIMD_NAMESPACE {

constexpr int64_t kReduceColumns = 16 * kLanes;  // a unit's sums in double stay in the first-level cache
constexpr int64_t kReduceRun = 64;               // entries whose sum is f32

// The larger, a NaN where either is one.
OAR_INLINE Vf larger(Vf v, Vf top) { return select(is_nan(v), v, max(v, top)); }
OAR_INLINE float larger(float v, float top) { return v != v || v > top ? v : top; }

// n entries together. kSquares: of their squares.
template <bool kSquares>
inline double sum_row(const float* x, int64_t n) {
  const auto add = [](Vf sum, Vf v) { return kSquares ? fma(v, v, sum) : sum + v; };
  double total = 0;
  constexpr int64_t kBlock = 4 * kLanes * (kReduceRun / 4);
  for (int64_t from = 0; from < n; from += kBlock) {
    const int64_t to = std::min(n, from + kBlock);
    Vf a = zero(), b = zero(), c = zero(), d = zero();
    int64_t k = from;
    for (; k + 4 * kLanes <= to; k += 4 * kLanes) {
      a = add(a, load(x + k)), b = add(b, load(x + k + kLanes));
      c = add(c, load(x + k + 2 * kLanes)), d = add(d, load(x + k + 3 * kLanes));
    }
    for (; k < to; k += kLanes) a = add(a, load_part(x + k, std::min(kLanes, to - k)));
    total += static_cast<double>(reduce_add((a + b) + (c + d)));
  }
  return total;
}

// The largest of n entries, of each times `sign`.
inline float largest_of_row(const float* x, int64_t n, float sign) {
  float most = -INFINITY;
  int64_t k = 0;
  if (n >= kLanes) {
    Vf a = load(x) * set1(sign), b = a;
    for (; k + 2 * kLanes <= n; k += 2 * kLanes)
      a = larger(load(x + k) * set1(sign), a), b = larger(load(x + k + kLanes) * set1(sign), b);
    for (; k + kLanes <= n; k += kLanes) a = larger(load(x + k) * set1(sign), a);
    a = larger(a, b);
    if (any(is_nan(a))) return NAN;
    most = reduce_max(a);
  }
  for (; k < n; ++k) most = larger(x[k] * sign, most);
  return most;
}

// Adds sums over at most kReduceRun rows of `m` columns, V vectors of them, to `sums`. Rows lie `step` apart.
template <bool kSquares, int V>
OAR_INLINE void sum_strip(const float* x, int64_t rows, int64_t step, int64_t m, double* sums) {
  Vf sum[V];
  for (int v = 0; v < V; ++v) sum[v] = zero();
  for (int64_t k = 0; k < rows; ++k, x += step) {
    for (int v = 0; v < V; ++v) {
      const Vf e = V > 1 ? load(x + v * kLanes) : load_part(x, m);
      sum[v] = kSquares ? fma(e, e, sum[v]) : sum[v] + e;
    }
  }
  float run[V * kLanes];
  for (int v = 0; v < V; ++v) store(run + v * kLanes, sum[v]);
  for (int64_t j = 0; j < m; ++j) sums[j] += static_cast<double>(run[j]);
}

// Sums over the rows of `count` columns, `step` apart, in `sums`.
template <bool kSquares>
inline void sum_columns(const float* x, int64_t n, int64_t step, int64_t count, double* sums) {
  constexpr int64_t kStrip = 4 * kLanes;
  std::fill_n(sums, count, 0.0);
  for (int64_t from = 0; from < n; from += kReduceRun) {
    const int64_t rows = std::min(kReduceRun, n - from);
    const float* at = x + from * step;
    int64_t i = 0;
    for (; i + kStrip <= count; i += kStrip) sum_strip<kSquares, 4>(at + i, rows, step, kStrip, sums + i);
    for (; i < count; i += kLanes)
      sum_strip<kSquares, 1>(at + i, rows, step, std::min(kLanes, count - i), sums + i);
  }
}

inline void largest_of_columns(const float* x, int64_t n, int64_t step, int64_t count, float sign,
                               float* out) {
  for_lanes(count, [&](int64_t i, int64_t m) {
    Vf top = set1(-INFINITY);
    for (int64_t k = 0; k < n; ++k) top = larger(load_part(x + k * step + i, m) * set1(sign), top);
    store_part(out + i, top * set1(sign), m);
  });
}

struct ReduceUnits {
  int64_t blocks, units, per;  // blocks of columns; units of one block; units of a chunk
  explicit ReduceUnits(const ReduceArgs& a)
      : blocks(ceil_div(a.inner, kReduceColumns)),
        units(a.outer * blocks),
        per(rows_per_chunk(units, 4 * a.n * std::min(a.inner, kReduceColumns))) {}
};

inline void reduce_plan(const void* args, int, KernelPlan* out) {
  const ReduceUnits u(*static_cast<const ReduceArgs*>(args));
  *out = {1, {row_chunks(u.units, u.per)}};
}

inline void reduce_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const ReduceArgs*>(args);
  const ReduceUnits units(a);
  const bool extreme = a.op == ReduceOp::kMax || a.op == ReduceOp::kMin,
             squares = a.op == ReduceOp::kSumOfSquares;
  const float sign = a.op == ReduceOp::kMin ? -1.f : 1.f;
  const double count = a.op == ReduceOp::kMean ? static_cast<double>(a.n) : 1;
  double sums[kReduceColumns];
  const int64_t last = std::min(end * units.per, units.units);
  for (int64_t u = begin * units.per; u < last; ++u) {
    const int64_t o = u / units.blocks, i = u % units.blocks * kReduceColumns,
                  columns = std::min(kReduceColumns, a.inner - i);
    const float* x = a.x + o * a.n * a.inner + i;
    float* out = a.out + o * a.inner + i;
    if (extreme) {
      if (a.inner == 1) *out = sign * largest_of_row(x, a.n, sign);
      else largest_of_columns(x, a.n, a.inner, columns, sign, out);
      continue;
    }
    if (a.inner == 1) sums[0] = squares ? sum_row<true>(x, a.n) : sum_row<false>(x, a.n);
    else if (squares) sum_columns<true>(x, a.n, a.inner, columns, sums);
    else sum_columns<false>(x, a.n, a.inner, columns, sums);
    for (int64_t k = 0; k < columns; ++k) out[k] = static_cast<float>(sums[k] / count);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
