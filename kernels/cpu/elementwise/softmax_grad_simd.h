// kernels/softmax_grad.h for one instruction set; included by image_<isa>.cc. exp and tanh are vmath.h's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/vmath.h"
#include "kernels/partition.h"
#include "kernels/softmax_grad.h"

namespace oar::OAR_SIMD_NAMESPACE {

// scale x, or softcap tanh(scale x / softcap); and how that grows with x, given the score.
struct ScoreOf {
  float scale, softcap;
  OAR_INLINE bool plain() const { return !(softcap > 0.f); }
  OAR_INLINE Vf score(Vf x) const {
    return plain() ? x * set1(scale) : set1(softcap) * tanh(x * set1(scale / softcap));
  }
  OAR_INLINE Vf slope(Vf score) const {
    const Vf t = score * set1(1.f / softcap);
    return set1(scale) * (set1(1.f) - t * t);
  }
};

// x becomes its scores; the largest of them.
inline float scores_of(float* x, int64_t n, const ScoreOf& of) {
  const int64_t whole = n / kLanes * kLanes;
  Vf top = set1(-INFINITY);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Vf v = of.score(load(x + i));
    store(x + i, v);
    top = max(v, top);
  }
  float most = whole > 0 ? reduce_max(top) : -INFINITY;
  if (whole < n) {
    store_n(x + whole, of.score(load_n(x + whole, n - whole)), n - whole);
    for (int64_t i = whole; i < n; ++i) most = x[i] > most ? x[i] : most;
  }
  return most;
}

// Sums of f(i, lanes) over [0, n): f32 within spans of 1,024, whose sums are added in double.
template <class F>
OAR_INLINE double sum_of(int64_t n, F&& f) {
  constexpr int64_t kSpan = 1024;
  double sum = 0;
  for (int64_t from = 0; from < n; from += kSpan) {
    const int64_t to = std::min(n, from + kSpan), whole = from + (to - from) / kLanes * kLanes;
    Vf part = zero();
    for (int64_t i = from; i < whole; i += kLanes) part = part + f(i, kLanes);
    sum += static_cast<double>(reduce_add(part));
    if (whole < to) {
      alignas(64) float rest[kLanes];
      store(rest, f(whole, to - whole));
      for (int64_t i = 0; i < to - whole; ++i) sum += static_cast<double>(rest[i]);
    }
  }
  return sum;
}

// x becomes exp(x - top); their sum.
inline double exponentials(float* x, int64_t n, float top) {
  const Vf shift = set1(top);
  return sum_of(n, [&](int64_t i, int64_t k) {
    const Vf e = exp_nonpositive(load_part(x + i, k) - shift);
    store_part(x + i, e, k);
    return e;
  });
}

template <class Args>
OAR_INLINE int64_t softmax_grad_rows(const Args& a) {
  return rows_per_chunk(a.rows, a.n * 16);
}
template <class Args>
inline void softmax_grad_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const Args*>(args);
  *out = {1, {row_chunks(a.rows, softmax_grad_rows(a))}};
}
// row(r) for the rows of chunks [begin, end).
template <class Args, class F>
OAR_INLINE void each_row(const Args& a, int64_t begin, int64_t end, F&& row) {
  const int64_t per = softmax_grad_rows(a), last = std::min(end * per, a.rows);
  for (int64_t r = begin * per; r < last; ++r) row(r);
}

inline void seen_softmax_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const SeenSoftmaxArgs*>(args);
  const ScoreOf of{a.scale, a.softcap};
  each_row(a, begin, end, [&](int64_t r) {
    float* const x = a.x + r * a.n;
    const int64_t first = a.first[r % a.period], n = a.last[r % a.period] - first;
    std::fill(x, x + first, 0.f);
    std::fill(x + first + n, x + a.n, 0.f);
    float* const seen = x + first;
    const float top = scores_of(seen, n, of);
    const Vf inverse = set1(static_cast<float>(1 / exponentials(seen, n, top)));
    for_lanes(n, [&](int64_t i, int64_t k) { store_part(seen + i, load_part(seen + i, k) * inverse, k); });
  });
}

inline void softmax_grad_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const SoftmaxGradArgs*>(args);
  const ScoreOf of{a.scale, a.softcap};
  each_row(a, begin, end, [&](int64_t r) {
    const int64_t first = a.first[r % a.period], n = a.last[r % a.period] - first;
    const float* const p = a.p + r * a.n + first;
    float* const all = a.g + r * a.n;
    float* const g = all + first;
    std::fill(all, g, 0.f);
    std::fill(g + n, all + a.n, 0.f);
    const Vf sum = set1(static_cast<float>(
        sum_of(n, [&](int64_t i, int64_t k) { return load_part(p + i, k) * load_part(g + i, k); })));
    for_lanes(n, [&](int64_t i, int64_t k) {
      Vf slope = set1(a.scale);
      if (!of.plain()) slope = of.slope(of.score(load_part(a.x + r * a.n + first + i, k)));
      store_part(g + i, slope * load_part(p + i, k) * (load_part(g + i, k) - sum), k);
    });
  });
}

inline void cross_entropy_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const CrossEntropyArgs*>(args);
  const ScoreOf of{a.scale, a.softcap};
  each_row(a, begin, end, [&](int64_t r) {
    float* const z = a.z + r * a.n;
    const int64_t target = a.target[r];
    const float top = scores_of(z, a.n, of), at = z[target];
    a.hit[r] = at == top && std::find(z, z + target, top) == z + target;
    if (of.plain()) {
      const double sum = exponentials(z, a.n, top);
      const Vf factor = set1(static_cast<float>(static_cast<double>(a.factor * a.scale) / sum));
      for_lanes(a.n, [&](int64_t i, int64_t k) { store_part(z + i, load_part(z + i, k) * factor, k); });
      z[target] -= a.factor * a.scale;
      a.loss[r] = static_cast<double>(top) + std::log(sum) - static_cast<double>(at);
      return;
    }
    const Vf shift = set1(top);
    const double sum = sum_of(a.n, [&](int64_t i, int64_t k) { return exp(load_part(z + i, k) - shift); });
    const Vf share = set1(static_cast<float>(1 / sum)), factor = set1(a.factor);
    const float of_target = static_cast<float>(std::exp(static_cast<double>(at - top)) / sum) - 1;
    for_lanes(a.n, [&](int64_t i, int64_t k) {
      const Vf s = load_part(z + i, k);
      store_part(z + i, factor * of.slope(s) * (exp(s - shift) * share), k);
    });
    const float t = at / a.softcap;
    z[target] = a.factor * (a.scale * (1 - t * t)) * of_target;
    a.loss[r] = static_cast<double>(top) + std::log(sum) - static_cast<double>(at);
  });
}

}  // namespace oar::OAR_SIMD_NAMESPACE
