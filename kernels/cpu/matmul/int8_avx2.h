// The Arch of int8_core.h with AVX2. Only for files compiled with it.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/matmul/int8_core.h"

namespace oar {
namespace {

// Eight rows at a time. vpmaddubsw adds two products of an unsigned and a signed byte in 16 bits with
// saturation; |w| <= 128 against x carrying w's sign, |x| <= 127, stays at 2 * 128 * 127 = 32512 and never
// saturates.
struct Avx2Int8 {
  struct WReg {
    __m256i w, magnitude;
  };
  using XReg = __m256i;
  using Dot = __m256i;
  using Sum = __m256;
  static constexpr int kLanes = 8, kTileVectors = 1, kTileTokens = 4, kGemvVectors = 2;
  static constexpr bool kBiased = false;
  static WReg load_w(const char* line) {
    const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line));
    return {w, _mm256_abs_epi8(w)};
  }
  static XReg load_x(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
  }
  static Dot start(int32_t) { return _mm256_setzero_si256(); }
  static Dot dot(Dot d, WReg w, XReg x) {
    const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(x, w.w));
    return _mm256_add_epi32(d, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static Dot dot_signed(Dot d, __m256i w, XReg x) { return dot(d, {w, _mm256_abs_epi8(w)}, x); }
  static Sum load(const float* p) { return _mm256_loadu_ps(p); }
  static Sum flush(Sum s, Dot d, Sum scale_w, float scale_x) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(scale_w, _mm256_set1_ps(scale_x)), s);
  }
  static Sum add(Sum a, Sum b) { return _mm256_add_ps(a, b); }
  static void store(float* p, Sum s) { _mm256_storeu_ps(p, s); }
};

}  // namespace
}  // namespace oar
