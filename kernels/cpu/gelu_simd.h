// GELU, https://arxiv.org/abs/1606.08415: x/2 (1 + erf(x / sqrt 2)), and its approximation by tanh.
//
// erf is what a layer with GELU spends on it. Where a permutation looks up sixteen floats (AVX-512), erf(a /
// sqrt 2) is a polynomial of degree 5 in each sixteenth of [0, 6). It is 2^-25 from the truth, for half the
// instructions of vmath.h's erf. That is an absolute error, as that of the sum with 1 is: the latter loses as
// much. Elsewhere it is erf itself.
#pragma once

#include "kernels/cpu/vmath.h"

namespace oar::OAR_SIMD_NAMESPACE {

#if defined(__AVX512F__)

inline constexpr int kErfPieces = 16, kErfTerms = 6;
inline constexpr double kErfReach = 6;  // 1 - erf(6 / sqrt 2) = 2e-9

// erf(x) = 2 / sqrt(pi) exp(-x^2) (x + 2 x^3 / 3 + 4 x^5 / 15 + ...): all terms positive, so none cancel. For
// 0 <= x <= 4.3.
constexpr double exact_erf(double x) {
  double term = x, sum = x, power = 1, exp = 1;  // of x^2
  for (int n = 1; n < 120; ++n) {
    term *= 2 * x * x / (2 * n + 1);
    sum += term;
    power *= x * x / n;
    exp += power;
  }
  return 1.1283791670955126 * sum / exp;
}

// Coefficient k of piece p, for u in [-1/2, 1/2] across it: the polynomial through erf at Chebyshev's points.
struct ErfTable {
  alignas(64) float of[kErfTerms][kErfPieces];
};
constexpr ErfTable make_erf_table() {
  // cos((2 j + 1) pi / 12) / 2
  constexpr double at[kErfTerms] = {0.48296291314453414,  0.35355339059327376,  0.12940952255126037,
                                    -0.12940952255126037, -0.35355339059327376, -0.48296291314453414};
  ErfTable table{};
  for (int p = 0; p < kErfPieces; ++p) {
    double d[kErfTerms] = {};  // divided differences
    for (int j = 0; j < kErfTerms; ++j)
      d[j] = exact_erf((p + 0.5 + at[j]) * kErfReach / kErfPieces * 0.70710678118654752);
    for (int k = 1; k < kErfTerms; ++k) {
      for (int j = kErfTerms - 1; j >= k; --j) d[j] = (d[j] - d[j - 1]) / (at[j] - at[j - k]);
    }
    double c[kErfTerms] = {};  // Newton's form multiplied out
    for (int k = kErfTerms - 1; k >= 0; --k) {
      for (int j = kErfTerms - 1; j > 0; --j) c[j] = c[j - 1] - c[j] * at[k];
      c[0] = d[k] - c[0] * at[k];
    }
    for (int k = 0; k < kErfTerms; ++k) table.of[k][p] = static_cast<float>(c[k]);
  }
  return table;
}
inline constexpr ErfTable kErfTable = make_erf_table();

// 1 + erf(x / sqrt 2); NaN stays.
OAR_INLINE Vf one_plus_erf(Vf x) {
  // In pieces; the last value before 16 for all beyond.
  const Vf t = min(set1(15.999999f), abs(x) * set1(static_cast<float>(kErfPieces / kErfReach)));
  const Vf piece = floor(t), u = t - piece - set1(0.5f);
  const __m512i index = _mm512_cvttps_epi32(piece.v);
  const auto term = [&](int k) { return Vf{_mm512_permutexvar_ps(index, _mm512_load_ps(kErfTable.of[k]))}; };
  Vf e = term(kErfTerms - 1);
#pragma GCC unroll 8
  for (int k = kErfTerms - 2; k >= 0; --k) e = fma(e, u, term(k));
  return set1(1.f) + with_sign_of(e, x);
}

#else

OAR_INLINE Vf one_plus_erf(Vf x) { return set1(1.f) + erf(x * set1(0.707106781f)); }

#endif

OAR_INLINE Vf gelu_erf(Vf x) { return set1(0.5f) * x * one_plus_erf(x); }
OAR_INLINE Vf gelu_tanh(Vf x) {
  const Vf cubic = fma(x * x * x, set1(0.044715f), x);
  return set1(0.5f) * x * (set1(1.f) + tanh(set1(0.797884561f) * cubic));
}

}  // namespace oar::OAR_SIMD_NAMESPACE
