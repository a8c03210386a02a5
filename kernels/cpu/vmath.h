// Elementary functions on vectors of floats. Polynomials are minimax fits of the named function on the
// reduced interval (relative error of the fit in brackets); the bounds below are for the whole function
// against the exact value, and tests/kernels/elementwise_test.cc holds them to that. NaN in, NaN out. No
// function reads the rounding mode.
//
//   exp      2 ulp      correct infinities and subnormals        tanh     3 ulp
//   erf      3 ulp
//   log      2 ulp      log(0) = -inf, log(x < 0) = NaN          sigmoid  3 ulp     zero below 2^-126
//   silu     4 ulp      zero where sigmoid is below 2^-126
#pragma once

#include "kernels/cpu/simd.h"

namespace oar::OAR_SIMD_NAMESPACE {

// p * 2^n for |p| in [1/2, 2], integral n in [-152, 130]: overflows to infinity, underflows through
// subnormals.
OAR_INLINE Vf scale_by_power(Vf p, Vf n) {
#if defined(__AVX512F__)
  return {_mm512_scalef_ps(p.v, n.v)};
#else
  // Half the power at a time keeps both factors normal.
  const Vi whole = to_int(n), half = shift_right<1>(whole), rest = whole - half, bias = set1_int(127);
  return p * from_bits(shift_left<23>(half + bias)) * from_bits(shift_left<23>(rest + bias));
#endif
}

// x held to [lo, hi]; NaN stays.
OAR_INLINE Vf clamp(Vf x, float lo, float hi) { return min(set1(hi), max(set1(lo), x)); }

OAR_INLINE Vf exp(Vf x) {
  // e^89 overflows and e^-105 < 2^-151 rounds to zero: beyond, nothing changes.
  x = clamp(x, -105.f, 89.f);
  const Vf n = round(x * set1(1.44269504f));
  // ln 2 in two pieces; the upper has 9 bits, so that its product with n is exact.
  Vf r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  Vf q = set1(1.381459879e-3f);  // [2^-28]
  q = fma(q, r, set1(8.368716575e-3f));
  q = fma(q, r, set1(4.166838899e-2f));
  q = fma(q, r, set1(1.666652113e-1f));
  q = fma(q, r, set1(4.999999404e-1f));
  return scale_by_power(fma(q, r * r, r) + set1(1.f), n);
}

// e^x for x <= 0, -infinity and NaN included; zero below e^-69, as exp2_nonpositive() below.
OAR_INLINE Vf exp_nonpositive(Vf x) { return select(x < set1(-69.f), zero(), exp(x)); }

// (2^r - 1) / r for the fraction r that is left: of [0, 1), or of [-1/2, 1/2].
#if defined(__AVX512F__)
inline constexpr float kExp2Terms4[] = {6.930448413e-01f, 2.412801981e-01f, 5.224247277e-02f,
                                        1.342668477e-02f};
inline constexpr float kExp2Terms6[] = {6.931470633e-01f, 2.402293086e-01f, 5.548528209e-02f,
                                        9.675451554e-03f, 1.246784581e-03f, 2.161291486e-04f};
#else
inline constexpr float kExp2Terms4[] = {6.931241751e-01f, 2.402409911e-01f, 5.590650439e-02f,
                                        9.582845494e-03f};
inline constexpr float kExp2Terms6[] = {6.931471825e-01f, 2.402264774e-01f, 5.550332367e-02f,
                                        9.618437849e-03f, 1.339888782e-03f, 1.535335177e-04f};
#endif

// Below it a power of two counts as zero: no sum beside a 1 shows it, and nothing that is made of it is
// subnormal, at which processors crawl.
inline constexpr float kLeastExponent = -100.f;
#if defined(__AVX512F__)
OAR_INLINE Vf scale_nonpositive(Vf fraction, Vf x) {
  const __mmask16 counts = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(kLeastExponent), _CMP_NLT_UQ);  // NaN does
  return {_mm512_maskz_scalef_ps(counts, fraction.v, x.v)};
}
#endif

// 2^x for x <= 0, -infinity and NaN included; zero below kLeastExponent. Terms of the polynomial: 6 [2^-29]
// for f32 results, 4 [2^-18] where the result is rounded to bf16.
template <int Terms>
OAR_INLINE Vf exp2_nonpositive(Vf x) {
#if defined(__AVX512F__)
  // vreduceps: x - floor(x), 0 for -infinity; vscalefps takes the floor itself.
  const Vf r = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
#else
  const Mask least = x < set1(kLeastExponent);
  x = max(set1(kLeastExponent - 1), x);
  const Vf n = round(x), r = x - n;
#endif
  Vf q;
  if constexpr (Terms == 4) {
    q = set1(kExp2Terms4[3]);
    q = fma(q, r, set1(kExp2Terms4[2]));
    q = fma(q, r, set1(kExp2Terms4[1]));
    q = fma(q, r, set1(kExp2Terms4[0]));
  } else {
    q = set1(kExp2Terms6[5]);
    q = fma(q, r, set1(kExp2Terms6[4]));
    q = fma(q, r, set1(kExp2Terms6[3]));
    q = fma(q, r, set1(kExp2Terms6[2]));
    q = fma(q, r, set1(kExp2Terms6[1]));
    q = fma(q, r, set1(kExp2Terms6[0]));
  }
#if defined(__AVX512F__)
  return scale_nonpositive(fma(q, r, set1(1.f)), x);
#else
  const Vf power = from_bits(shift_left<23>(to_int(n) + set1_int(127)));
  return select(least, zero(), fma(q, r, set1(1.f)) * power);
#endif
}

// exp2_nonpositive<4>() of N vectors, in place, to the bit. Step by step over all of them: a compiler that
// finishes one vector before the next fills the processor's scheduler with operations that wait for each
// other.
template <int N>
OAR_INLINE void exp2_nonpositive_all(Vf* x) {
#if defined(__AVX512F__)
  __m512 r[N], q[N];
  OAR_UNROLL
  for (int i = 0; i < N; ++i) r[i] = _mm512_reduce_ps(x[i].v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  OAR_UNROLL
  for (int i = 0; i < N; ++i) q[i] = _mm512_fmadd_ps(set1(kExp2Terms4[3]).v, r[i], set1(kExp2Terms4[2]).v);
  OAR_UNROLL
  for (int i = 0; i < N; ++i) q[i] = _mm512_fmadd_ps(q[i], r[i], set1(kExp2Terms4[1]).v);
  OAR_UNROLL
  for (int i = 0; i < N; ++i) q[i] = _mm512_fmadd_ps(q[i], r[i], set1(kExp2Terms4[0]).v);
  OAR_UNROLL
  for (int i = 0; i < N; ++i) q[i] = _mm512_fmadd_ps(q[i], r[i], set1(1.f).v);
  OAR_UNROLL
  for (int i = 0; i < N; ++i) x[i] = scale_nonpositive({q[i]}, x[i]);
#else
  for (int i = 0; i < N; ++i) x[i] = exp2_nonpositive<4>(x[i]);
#endif
}

OAR_INLINE Vf log(Vf x) {
  // Subnormals are scaled up by 2^23 first.
  const Mask tiny = x < set1(1.17549435e-38f);
  const Vf scaled = select(tiny, x * set1(8388608.f), x);
  // Exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)).
  const Vi offset = bits(scaled) - set1_int(0x3f3504f3);
  const Vi exponent = shift_right<23>(offset);
  const Vf f = from_bits((offset & set1_int(0x007fffff)) + set1_int(0x3f3504f3)) - set1(1.f);
  const Vf e = to_float(exponent) - select(tiny, set1(23.f), set1(0.f));
  Vf q = set1(-7.634492964e-2f);  // [2^-27]
  q = fma(q, f, set1(1.276157498e-1f));
  q = fma(q, f, set1(-1.316018254e-1f));
  q = fma(q, f, set1(1.420175880e-1f));
  q = fma(q, f, set1(-1.662335694e-1f));
  q = fma(q, f, set1(2.000122666e-1f));
  q = fma(q, f, set1(-2.500081956e-1f));
  q = fma(q, f, set1(3.333333135e-1f));
  const Vf f2 = f * f;
  Vf y = fma(e, set1(-2.12194440e-4f), q * f2 * f);
  y = fma(set1(-0.5f), f2, y) + f;
  y = fma(e, set1(0.693359375f), y);
  const Vf inf = set1(INFINITY);
  y = select(x < inf, y, x);                                      // +inf and NaN
  y = select(set1(0.f) < x, y, select(is_nan(x), x, set1(NAN)));  // negative
  return select(abs(x) < set1(1e-45f), -inf, y);
}

// log(1 + z) for z of at least 0 and finite, also where the sum rounds to 1: the rounded sum's logarithm
// times what rounding did to z (Goldberg 1991, theorem 4).
OAR_INLINE Vf log1p(Vf z) {
  const Vf sum = set1(1.f) + z, rounded = sum - set1(1.f);
  return select(set1(0.f) < rounded, log(sum) * (z / rounded), z);
}

OAR_INLINE Vf sigmoid(Vf x) { return set1(1.f) / (set1(1.f) + exp(-x)); }

OAR_INLINE Vf silu(Vf x) { return x / (set1(1.f) + exp(-x)); }

OAR_INLINE Vf with_sign_of(Vf magnitude, Vf x) {
  return from_bits(bits(magnitude) | (bits(x) & set1_int(INT32_MIN)));
}

OAR_INLINE Vf tanh(Vf x) {
  const Vf a = abs(x), x2 = x * x;
  Vf q = set1(-5.704987328e-3f);  // [2^-28] on |x| < 0.625
  q = fma(q, x2, set1(2.063908800e-2f));
  q = fma(q, x2, set1(-5.373971537e-2f));
  q = fma(q, x2, set1(1.333144158e-1f));
  q = fma(q, x2, set1(-3.333328068e-1f));
  const Vf small = fma(q * x2, x, x);
  const Vf large = set1(1.f) - set1(2.f) / (exp(a + a) + set1(1.f));
  return select(a < set1(0.625f), small, with_sign_of(large, x));
}

OAR_INLINE Vf erf(Vf x) {
  const Vf a = abs(x), x2 = x * x;
  Vf q = set1(7.853896386e-5f);  // erf(x)/x - 1 [2^-30] on |x| < 1
  q = fma(q, x2, set1(-8.010205347e-4f));
  q = fma(q, x2, set1(5.188329145e-3f));
  q = fma(q, x2, set1(-2.685381286e-2f));
  q = fma(q, x2, set1(1.128358543e-1f));
  q = fma(q, x2, set1(-3.761262596e-1f));
  q = fma(q, x2, set1(1.283791661e-1f));
  const Vf small = fma(q, x, x);
  // -log(erfc(x)) on [1, 4] [2^-30 of erf]; erfc(4) < 2^-25, so erf is 1 beyond.
  const Vf t = min(set1(4.f), a);  // NaN stays
  Vf g = set1(-1.863792568e-4f);
  g = fma(g, t, set1(2.947658999e-3f));
  g = fma(g, t, set1(-2.183806710e-2f));
  g = fma(g, t, set1(1.031067595e-1f));
  g = fma(g, t, set1(6.381448507e-1f));
  g = fma(g, t, set1(1.127089143e+0f));
  g = fma(g, t, set1(3.415223036e-4f));
  const Vf large = set1(1.f) - exp(-g);
  return select(a < set1(1.f), small, with_sign_of(large, x));
}

}  // namespace oar::OAR_SIMD_NAMESPACE
