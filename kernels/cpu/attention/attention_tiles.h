// What attention without a cache is made of, for one instruction set: scores of rows with packed panels,
// exponentials of a row, and weighted sums of values. Every sum has its terms in ascending order, one lane a
// result: what a row gets depends on itself and what it sees, not on the tile that it is in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/unrolled.h"
#include "kernels/cpu/vmath.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Rows of a tile: with two vectors each, as many sums as registers allow.
inline constexpr int64_t kAttentionTile = kLanes == 16 ? 8 : 4;

OAR_INLINE int64_t whole_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// Rows x[0 .. n) of `depth` numbers as panels of kLanes rows: (panels, depth, kLanes), zeros behind the last.
inline void pack_panels(const float* x, int64_t ldx, int64_t n, int64_t depth, float* to) {
  for (int64_t s = 0; s < n; s += kLanes, x += kLanes * ldx, to += kLanes * depth) {
    const int64_t rows = std::min<int64_t>(kLanes, n - s);
    for (int64_t d = 0; d < depth; ++d) {
      for (int64_t lane = 0; lane < rows; ++lane) to[d * kLanes + lane] = x[lane * ldx + d];
      for (int64_t lane = rows; lane < kLanes; ++lane) to[d * kLanes + lane] = 0;
    }
  }
}

// Rows of n floats, whole vectors each: (rows, whole_lanes(n)). What is behind n is never used.
inline void pack_rows(const float* x, int64_t ldx, int64_t rows, int64_t n, float* to) {
  const int64_t width = whole_lanes(n);
  for (int64_t s = 0; s < rows; ++s)
    for_lanes(
        n, [&](int64_t d, int64_t lanes) { store(to + s * width + d, load_part(x + s * ldx + d, lanes)); });
}

// out[r, lane] = sum over d of x[r, d] panel[d, lane]: R rows with V panels.
template <int R, int V>
OAR_INLINE void panel_products(const float* x, int64_t ldx, int64_t depth, const float* panels, float* out,
                               int64_t ldo) {
  Vf sum[R][V];
  unrolled<R>([&](auto r)
                  OAR_INLINE_BODY { unrolled<V>([&](auto v) OAR_INLINE_BODY { sum[r][v] = zero(); }); });
  for (int64_t d = 0; d < depth; ++d) {
    Vf panel[V];
    unrolled<V>([&](auto v) OAR_INLINE_BODY { panel[v] = load(panels + (v * depth + d) * kLanes); });
    unrolled<R>([&](auto r) OAR_INLINE_BODY {
      const Vf e = set1(x[r * ldx + d]);
      unrolled<V>([&](auto v) OAR_INLINE_BODY { sum[r][v] = fma(e, panel[v], sum[r][v]); });
    });
  }
  unrolled<R>([&](auto r) OAR_INLINE_BODY {
    unrolled<V>([&](auto v) OAR_INLINE_BODY { store(out + r * ldo + v * kLanes, sum[r][v]); });
  });
}

// The same for the panels of n columns.
template <int R>
OAR_INLINE void products(const float* x, int64_t ldx, int64_t depth, const float* panels, int64_t n,
                         float* out, int64_t ldo) {
  int64_t s = 0;
  for (; s + kLanes < n; s += 2 * kLanes)
    panel_products<R, 2>(x, ldx, depth, panels + s * depth, out + s, ldo);
  if (s < n) panel_products<R, 1>(x, ldx, depth, panels + s * depth, out + s, ldo);
}

// row[s] = exp(row[s] - the largest), for n numbers; returns their sum. Where all are -infinity: NaN.
OAR_INLINE float exponentials(float* row, int64_t n) {
  Vf top = set1(-INFINITY);
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t s = 0; s < whole; s += kLanes) top = max(load(row + s), top);
  float most = reduce_max(top);
  for (int64_t s = whole; s < n; ++s) most = row[s] > most ? row[s] : most;
  const Vf shift = set1(most);
  Vf sum = zero();
  for_lanes(n, [&](int64_t s, int64_t lanes) {
    const Vf e = exp_nonpositive(load_part(row + s, lanes) - shift);
    store_part(row + s, e, lanes);
    sum = sum + (lanes == kLanes ? e : load_part(row + s, lanes));
  });
  return reduce_add(sum);
}

// V vectors of R rows of the result from column d on: inverse[r] times the sum over s of p[r, s] values[s].
// Of the last vector `last` lanes are there; `values` has whole vectors unless kPart.
template <int R, int V, bool kPart>
OAR_INLINE void value_sums(const float* p, int64_t ldp, int64_t n, const float* values, int64_t ldv,
                           int64_t last, const float* inverse, float* out, int64_t ldo) {
  Vf sum[R][V];
  unrolled<R>([&](auto r)
                  OAR_INLINE_BODY { unrolled<V>([&](auto v) OAR_INLINE_BODY { sum[r][v] = zero(); }); });
  for (int64_t s = 0; s < n; ++s) {
    Vf value[V];
    unrolled<V>([&](auto v) OAR_INLINE_BODY {
      const float* const from = values + s * ldv + v * kLanes;
      if constexpr (kPart && v + 1 == V) value[v] = load_part(from, last);
      else value[v] = load(from);
    });
    unrolled<R>([&](auto r) OAR_INLINE_BODY {
      const Vf e = set1(p[r * ldp + s]);
      unrolled<V>([&](auto v) OAR_INLINE_BODY { sum[r][v] = fma(e, value[v], sum[r][v]); });
    });
  }
  unrolled<R>([&](auto r) OAR_INLINE_BODY {
    unrolled<V>([&](auto v) OAR_INLINE_BODY {
      store_part(out + r * ldo + v * kLanes, sum[r][v] * set1(inverse[r]), v + 1 == V ? last : kLanes);
    });
  });
}

// R rows of `width` columns. kPart: `values` are rows of that many floats, else of whole vectors.
template <int R, bool kPart>
OAR_INLINE void weighted_sums(const float* p, int64_t ldp, int64_t n, const float* values, int64_t ldv,
                              int64_t width, const float* inverse, float* out, int64_t ldo) {
  int64_t d = 0;
  for (; d + kLanes < width; d += 2 * kLanes)
    value_sums<R, 2, kPart>(p, ldp, n, values + d, ldv, std::min<int64_t>(kLanes, width - d - kLanes),
                            inverse, out + d, ldo);
  if (d < width)
    value_sums<R, 1, kPart>(p, ldp, n, values + d, ldv, std::min<int64_t>(kLanes, width - d), inverse,
                            out + d, ldo);
}

}  // namespace oar::OAR_SIMD_NAMESPACE
