// What follows a sum (Epilogue, kernels/conv.h) on vectors. Clamping is done where the sums are; the others
// run over values just written, which are still in the first-level cache, so that one copy of their code
// serves every tile shape.
#pragma once

#include "kernels/conv.h"
#include "kernels/cpu/gelu_simd.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

struct EpilogueArgs {
  Epilogue kind;
  float alpha, beta;
  // Bounds that hold for every kind: infinite where the kind is no clamp.
  OAR_INLINE Vf low() const { return set1(kind == Epilogue::kClamp ? alpha : -INFINITY); }
  OAR_INLINE Vf high() const { return set1(kind == Epilogue::kClamp ? beta : INFINITY); }
  OAR_INLINE bool later() const { return kind != Epilogue::kNone && kind != Epilogue::kClamp; }
};

// NaN stays.
OAR_INLINE Vf hold(Vf x, Vf low, Vf high) { return min(high, max(low, x)); }

template <class F>
OAR_INLINE void epilogue_map(float* p, int64_t n, F&& f) {
  for_lanes(n, [&](int64_t i, int64_t k) { store_part(p + i, f(load_part(p + i, k)), k); });
}

// exp(x) - 1 of x below 0: 2 t / (1 - t) with t = tanh(x / 2), of which nothing cancels.
OAR_INLINE Vf less_one(Vf x) {
  const Vf t = tanh(set1(0.5f) * x);
  return (t + t) / (set1(1.f) - t);
}

// max(x, 0) + log(1 + e) with e = exp(-|x|). The logarithm is 2 atanh(s) with s = e / (2 + e), at most a
// third: its series up to s^13 leaves 2^-26 of it.
OAR_INLINE Vf softplus(Vf x) {
  const Vf e = exp(zero() - abs(x)), s = e / (set1(2.f) + e), z = s * s;
  Vf series = set1(1.f / 13);
  for (const float odd : {11.f, 9.f, 7.f, 5.f, 3.f, 1.f}) series = fma(series, z, set1(1 / odd));
  return max(zero(), x) + (s + s) * series;
}

// With e = exp(x), tanh(log(1 + e)) is w / (w + 2) for w = e (e + 2), and 1 from x = 20 on.
OAR_INLINE Vf mish(Vf x) {
  const Vf e = exp(min(set1(20.f), x)), w = e * (e + set1(2.f));
  return x * (w / (w + set1(2.f)));
}

// p[0, n) = f(p) for the kinds that are not done with the sums.
[[gnu::noinline]] inline void apply_epilogue(const EpilogueArgs& e, float* p, int64_t n) {
  const Vf a = set1(e.alpha), b = set1(e.beta), one = set1(1.f), none = zero();
  switch (e.kind) {
    case Epilogue::kNone:
    case Epilogue::kClamp: return;
    case Epilogue::kSigmoid: return epilogue_map(p, n, [](Vf x) { return sigmoid(x); });
    case Epilogue::kSilu: return epilogue_map(p, n, [](Vf x) { return silu(x); });
    case Epilogue::kHardSigmoid:
      return epilogue_map(p, n, [&](Vf x) { return hold(fma(a, x, b), none, one); });
    case Epilogue::kHardSwish:
      return epilogue_map(p, n, [&](Vf x) { return x * hold(fma(a, x, b), none, one); });
    case Epilogue::kLeakyRelu: return epilogue_map(p, n, [&](Vf x) { return select(x < none, a * x, x); });
    case Epilogue::kTanh: return epilogue_map(p, n, [](Vf x) { return tanh(x); });
    case Epilogue::kGelu: return epilogue_map(p, n, [](Vf x) { return gelu_erf(x); });
    case Epilogue::kGeluTanh: return epilogue_map(p, n, [](Vf x) { return gelu_tanh(x); });
    case Epilogue::kElu:  // of activations by themselves
    case Epilogue::kSoftplus:
    case Epilogue::kSoftsign:
    case Epilogue::kMish: return;
  }
}

// The same of an activation by itself, which has more kinds: every convolution would carry their code.
inline void apply_activation(const EpilogueArgs& e, float* p, int64_t n) {
  const Vf a = set1(e.alpha), b = set1(e.beta), one = set1(1.f), none = zero();
  switch (e.kind) {
    case Epilogue::kElu:
      return epilogue_map(p, n, [&](Vf x) { return select(x < none, a * less_one(x), b * x); });
    case Epilogue::kSoftplus: return epilogue_map(p, n, [](Vf x) { return softplus(x); });
    case Epilogue::kSoftsign: return epilogue_map(p, n, [&](Vf x) { return x / (one + abs(x)); });
    case Epilogue::kMish: return epilogue_map(p, n, [](Vf x) { return mish(x); });
    default: return apply_epilogue(e, p, n);
  }
}

// --- an activation by itself: chunks of whole cache lines ---

OAR_INLINE int64_t activate_per(int64_t n) { return ceil_div(rows_per_chunk(n, 2 * sizeof(float)), 16) * 16; }
inline void activate_plan(const void* args, int, KernelPlan* out) {
  const int64_t n = static_cast<const ActivateArgs*>(args)->n;
  *out = {1, {row_chunks(n, activate_per(n))}};
}
inline void activate_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const ActivateArgs*>(args);
  const EpilogueArgs e{a.epilogue, a.alpha, a.beta};
  const int64_t per = activate_per(a.n), last = end * per < a.n ? end * per : a.n;
  // A block at a time, so that the second look at the values finds them in the first-level cache.
  constexpr int64_t kBlock = 4096;
  for (int64_t i = begin * per; i < last; i += kBlock) {
    const int64_t n = last - i < kBlock ? last - i : kBlock;
    const Vf low = e.low(), high = e.high();
    for_lanes(n, [&](int64_t k, int64_t lanes) {
      store_part(a.out + i + k, hold(load_part(a.x + i + k, lanes), low, high), lanes);
    });
    apply_activation(e, a.out + i, n);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
