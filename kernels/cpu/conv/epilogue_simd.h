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
    apply_epilogue(e, a.out + i, n);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
