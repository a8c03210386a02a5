// The Arch of matmul_rowdot.h with AVX-512 BF16 dot products. Activations are rounded to bf16, to nearest
// even; products are exact and sums are f32. vdpbf16ps treats subnormal inputs and sums as zero. Only for
// files compiled with it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/x86_reduce.h"
#include "quant/dtype.h"

namespace oar {
namespace {

struct Bf16Arch {
  using W = bf16;
  using X = bf16;
  using WReg = __m512bh;
  using XReg = __m512bh;
  using Acc = __m512;
  static constexpr int kStep = 32, kTileRows = 4, kTileTokens = 6, kGemvRows = 4;
  static constexpr bool kOneStream = true;  // Zen 5 reads most from one
  static Acc zero() { return _mm512_setzero_ps(); }
  static __m512bh load(const bf16* p) { return (__m512bh)_mm512_loadu_si512(p); }
  static WReg load_w(const W* p) { return load(p); }
  static XReg load_x(const X* p) { return load(p); }
  static Acc dot(Acc a, WReg w, XReg x) { return _mm512_dpbf16_ps(a, w, x); }
  static void reduce4(Acc a, Acc b, Acc c, Acc d, float out[4]) {
    _mm_store_ps(out, avx512_reduce4(a, b, c, d));
  }
  static void pack(X* dst, const float* src, int64_t n) {
    for (int64_t k = 0; k < n; k += kStep) {
      const uint32_t mask = n - k >= kStep ? ~0u : (1u << (n - k)) - 1u;
      const __m512 lo = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), src + k);
      const __m512 hi = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), src + k + 16);
      _mm512_storeu_si512(dst + k, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
    }
  }
};

}  // namespace
}  // namespace oar
