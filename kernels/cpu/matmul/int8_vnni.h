// The Arch of int8_core.h with AVX-512 VNNI, shared by the levels that have it. Only for files compiled with
// it.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/matmul/int8_core.h"

namespace oar {
namespace {

// Sixteen rows at a time. vpdpbusd wants its weight operand unsigned: w + 128, which is w with the sign bit
// flipped; the surplus of 128 times the sum of the block's activations is what the dots start from.
struct VnniInt8 {
  using WReg = __m512i;
  using XReg = __m512i;
  using Dot = __m512i;
  using Sum = __m512;
  // 3 x 8 dots, three weights, an activation: an activation broadcast from memory serves three dots, which
  // the two load ports keep up with.
  static constexpr int kLanes = 16, kTileVectors = 3, kTileTokens = 8, kGemvVectors = 1;
  static constexpr bool kBiased = true;
  static WReg load_w(const char* line) {
    return _mm512_xor_si512(_mm512_loadu_si512(line), _mm512_set1_epi8(-128));
  }
  static XReg load_x(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Dot start(int32_t v) { return _mm512_set1_epi32(v); }
  static Dot dot(Dot d, WReg w, XReg x) { return _mm512_dpbusd_epi32(d, w, x); }
  static Sum load(const float* p) { return _mm512_loadu_ps(p); }
  static Sum flush(Sum s, Dot d, Sum scale_w, float scale_x) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(scale_w, _mm512_set1_ps(scale_x)), s);
  }
  static Sum add(Sum a, Sum b) { return _mm512_add_ps(a, b); }
  static void store(float* p, Sum s) { _mm512_storeu_ps(p, s); }
};

// For processors whose memory likes several streams per core (Sapphire Rapids reads 65 GB/s with four, 49
// with one; Zen 5 is fastest with one): one token takes four panels at a time.
struct VnniInt8Streams : VnniInt8 {
  static constexpr int kGemvVectors = 4;
};

}  // namespace
}  // namespace oar
