// A vector of floats for kernels written once and compiled for every instruction set.
//
// A file that includes this (or anything built on it) first defines OAR_SIMD_NAMESPACE, e.g. `avx2`, and is
// compiled with that set's flags; all code then lives in oar::OAR_SIMD_NAMESPACE. So two compilations of one
// header are two families of functions, and the linker never takes one for the other. Three bodies: AVX-512
// (16 lanes), AVX2 with FMA and F16C (8), and compiler vector extensions (4), which is also NEON.
//
// Not a general library: the operations below are the ones our kernels need. Contraction of a * b + c is off
// for these files (-ffp-contract=off): where it may be fused it says fma(), so results do not depend on
// inlining.
#pragma once

#ifndef OAR_SIMD_NAMESPACE
#error "define OAR_SIMD_NAMESPACE before including kernels/cpu/simd.h"
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "quant/dtype.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define OAR_INLINE [[gnu::always_inline]] inline

// Before a loop over a register tile: unrolled while accumulators can still become registers (g++ 12
// otherwise unrolls after it has given arrays of accumulators a place in memory).
#if defined(__clang__)
#define OAR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define OAR_UNROLL _Pragma("GCC unroll 16")
#endif

namespace oar::OAR_SIMD_NAMESPACE {

#if defined(__AVX512F__)

struct Mask {
  __mmask16 m;
};
struct Vi {
  __m512i v;
};
struct Vf {
  static constexpr int64_t kLanes = 16;
  __m512 v;
};

OAR_INLINE Vf set1(float x) { return {_mm512_set1_ps(x)}; }
OAR_INLINE Vf load(const float* p) { return {_mm512_loadu_ps(p)}; }
OAR_INLINE void store(float* p, Vf x) { _mm512_storeu_ps(p, x.v); }
OAR_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
// The first n < 16 lanes; the others load as zero and are not stored. Memory beyond n is not touched.
OAR_INLINE Vf load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
OAR_INLINE void store_n(float* p, Vf x, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }
OAR_INLINE Vf operator+(Vf a, Vf b) { return {_mm512_add_ps(a.v, b.v)}; }
OAR_INLINE Vf operator-(Vf a, Vf b) { return {_mm512_sub_ps(a.v, b.v)}; }
OAR_INLINE Vf operator*(Vf a, Vf b) { return {_mm512_mul_ps(a.v, b.v)}; }
OAR_INLINE Vf operator/(Vf a, Vf b) { return {_mm512_div_ps(a.v, b.v)}; }
OAR_INLINE Vf fma(Vf a, Vf b, Vf c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
OAR_INLINE Vf sqrt(Vf a) { return {_mm512_sqrt_ps(a.v)}; }
// b when either is NaN.
OAR_INLINE Vf max(Vf a, Vf b) { return {_mm512_max_ps(a.v, b.v)}; }
OAR_INLINE Vf min(Vf a, Vf b) { return {_mm512_min_ps(a.v, b.v)}; }
OAR_INLINE Vf abs(Vf a) { return {_mm512_abs_ps(a.v)}; }
// To the nearest integer, ties to even; |a| < 2^22.
OAR_INLINE Vf round(Vf a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
OAR_INLINE Vf floor(Vf a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
OAR_INLINE Mask operator<(Vf a, Vf b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
OAR_INLINE Mask is_nan(Vf a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
OAR_INLINE Vf select(Mask m, Vf a, Vf b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }  // m ? a : b
OAR_INLINE bool any(Mask m) { return m.m != 0; }

OAR_INLINE Vi set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
OAR_INLINE Vi load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
OAR_INLINE Vi operator+(Vi a, Vi b) { return {_mm512_add_epi32(a.v, b.v)}; }
OAR_INLINE Vi operator-(Vi a, Vi b) { return {_mm512_sub_epi32(a.v, b.v)}; }
OAR_INLINE Vi operator&(Vi a, Vi b) { return {_mm512_and_si512(a.v, b.v)}; }
OAR_INLINE Vi operator|(Vi a, Vi b) { return {_mm512_or_si512(a.v, b.v)}; }
OAR_INLINE Mask operator<(Vi a, Vi b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
template <int N>
OAR_INLINE Vi shift_left(Vi a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
OAR_INLINE Vi shift_right(Vi a) {
  return {_mm512_srai_epi32(a.v, N)};
}
OAR_INLINE Vi to_int(Vf a) { return {_mm512_cvtps_epi32(a.v)}; }  // nearest, ties to even
OAR_INLINE Vf to_float(Vi a) { return {_mm512_cvtepi32_ps(a.v)}; }
OAR_INLINE Vi bits(Vf a) { return {_mm512_castps_si512(a.v)}; }
OAR_INLINE Vf from_bits(Vi a) { return {_mm512_castsi512_ps(a.v)}; }
// Lane i: a's lane at[i], which is below kLanes.
OAR_INLINE Vf permute(Vf a, Vi at) { return {_mm512_permutexvar_ps(at.v, a.v)}; }

OAR_INLINE Vf load(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
OAR_INLINE Vf load_n(const f16* p, int64_t n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
OAR_INLINE Vf load(const bf16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
OAR_INLINE Vf load_n(const bf16* p, int64_t n) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

#elif defined(__AVX2__)

struct Mask {
  __m256 m;
};
struct Vi {
  __m256i v;
};
struct Vf {
  static constexpr int64_t kLanes = 8;
  __m256 v;
};

OAR_INLINE Vf set1(float x) { return {_mm256_set1_ps(x)}; }
OAR_INLINE Vf load(const float* p) { return {_mm256_loadu_ps(p)}; }
OAR_INLINE void store(float* p, Vf x) { _mm256_storeu_ps(p, x.v); }
OAR_INLINE __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first n < 8 lanes; the others load as zero and are not stored. Memory beyond n is not touched.
OAR_INLINE Vf load_n(const float* p, int64_t n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
OAR_INLINE void store_n(float* p, Vf x, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), x.v); }
OAR_INLINE Vf operator+(Vf a, Vf b) { return {_mm256_add_ps(a.v, b.v)}; }
OAR_INLINE Vf operator-(Vf a, Vf b) { return {_mm256_sub_ps(a.v, b.v)}; }
OAR_INLINE Vf operator*(Vf a, Vf b) { return {_mm256_mul_ps(a.v, b.v)}; }
OAR_INLINE Vf operator/(Vf a, Vf b) { return {_mm256_div_ps(a.v, b.v)}; }
OAR_INLINE Vf fma(Vf a, Vf b, Vf c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c
OAR_INLINE Vf sqrt(Vf a) { return {_mm256_sqrt_ps(a.v)}; }
// b when either is NaN.
OAR_INLINE Vf max(Vf a, Vf b) { return {_mm256_max_ps(a.v, b.v)}; }
OAR_INLINE Vf min(Vf a, Vf b) { return {_mm256_min_ps(a.v, b.v)}; }
OAR_INLINE Vf abs(Vf a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.f), a.v)}; }
// To the nearest integer, ties to even; |a| < 2^22.
OAR_INLINE Vf round(Vf a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
OAR_INLINE Vf floor(Vf a) { return {_mm256_floor_ps(a.v)}; }
OAR_INLINE Mask operator<(Vf a, Vf b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
OAR_INLINE Mask is_nan(Vf a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
OAR_INLINE Vf select(Mask m, Vf a, Vf b) { return {_mm256_blendv_ps(b.v, a.v, m.m)}; }  // m ? a : b
OAR_INLINE bool any(Mask m) { return _mm256_movemask_ps(m.m) != 0; }

OAR_INLINE Vi set1_int(int32_t x) { return {_mm256_set1_epi32(x)}; }
OAR_INLINE Vi load_int(const int32_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
OAR_INLINE Vi operator+(Vi a, Vi b) { return {_mm256_add_epi32(a.v, b.v)}; }
OAR_INLINE Vi operator-(Vi a, Vi b) { return {_mm256_sub_epi32(a.v, b.v)}; }
OAR_INLINE Vi operator&(Vi a, Vi b) { return {_mm256_and_si256(a.v, b.v)}; }
OAR_INLINE Vi operator|(Vi a, Vi b) { return {_mm256_or_si256(a.v, b.v)}; }
OAR_INLINE Mask operator<(Vi a, Vi b) { return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.v, a.v))}; }
template <int N>
OAR_INLINE Vi shift_left(Vi a) {
  return {_mm256_slli_epi32(a.v, N)};
}
template <int N>
OAR_INLINE Vi shift_right(Vi a) {
  return {_mm256_srai_epi32(a.v, N)};
}
OAR_INLINE Vi to_int(Vf a) { return {_mm256_cvtps_epi32(a.v)}; }  // nearest, ties to even
OAR_INLINE Vf to_float(Vi a) { return {_mm256_cvtepi32_ps(a.v)}; }
OAR_INLINE Vi bits(Vf a) { return {_mm256_castps_si256(a.v)}; }
OAR_INLINE Vf from_bits(Vi a) { return {_mm256_castsi256_ps(a.v)}; }
// Lane i: a's lane at[i], which is below kLanes.
OAR_INLINE Vf permute(Vf a, Vi at) { return {_mm256_permutevar8x32_ps(a.v, at.v)}; }

// Eight halfwords; of fewer, through the stack, as there is no masked 16-bit load.
OAR_INLINE __m128i load_halves(const void* p, int64_t n) {
  if (n == 8) return _mm_loadu_si128(static_cast<const __m128i*>(p));
  uint16_t buffer[8] = {};
  memcpy(buffer, p, static_cast<size_t>(n) * sizeof(uint16_t));
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(buffer));
}
OAR_INLINE Vf load_n(const f16* p, int64_t n) { return {_mm256_cvtph_ps(load_halves(p, n))}; }
OAR_INLINE Vf load(const f16* p) { return load_n(p, 8); }
OAR_INLINE Vf load_n(const bf16* p, int64_t n) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_halves(p, n)), 16))};
}
OAR_INLINE Vf load(const bf16* p) { return load_n(p, 8); }

#else  // compiler vector extensions

typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));

struct Mask {
  i32x4 m;
};
struct Vi {
  i32x4 v;
};
struct Vf {
  static constexpr int64_t kLanes = 4;
  f32x4 v;
};

OAR_INLINE Vf set1(float x) { return {f32x4{x, x, x, x}}; }
OAR_INLINE Vf load(const float* p) {
  Vf x;
  memcpy(&x.v, p, sizeof x.v);
  return x;
}
OAR_INLINE void store(float* p, Vf x) { memcpy(p, &x.v, sizeof x.v); }
// The first n < 4 lanes; the others load as zero and are not stored. Memory beyond n is not touched.
OAR_INLINE Vf load_n(const float* p, int64_t n) {
  return {f32x4{n > 0 ? p[0] : 0.f, n > 1 ? p[1] : 0.f, n > 2 ? p[2] : 0.f, n > 3 ? p[3] : 0.f}};
}
OAR_INLINE void store_n(float* p, Vf x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = x.v[i];
}
OAR_INLINE Vf operator+(Vf a, Vf b) { return {a.v + b.v}; }
OAR_INLINE Vf operator-(Vf a, Vf b) { return {a.v - b.v}; }
OAR_INLINE Vf operator*(Vf a, Vf b) { return {a.v * b.v}; }
OAR_INLINE Vf operator/(Vf a, Vf b) { return {a.v / b.v}; }
// a * b + c: fused where the baseline has it.
#if defined(__aarch64__)
OAR_INLINE Vf fma(Vf a, Vf b, Vf c) {
  return {(f32x4)vfmaq_f32((float32x4_t)c.v, (float32x4_t)a.v, (float32x4_t)b.v)};
}
#else
OAR_INLINE Vf fma(Vf a, Vf b, Vf c) { return {a.v * b.v + c.v}; }
#endif
OAR_INLINE Vf sqrt(Vf a) {
  return {f32x4{std::sqrt(a.v[0]), std::sqrt(a.v[1]), std::sqrt(a.v[2]), std::sqrt(a.v[3])}};
}
OAR_INLINE Vf select(Mask m, Vf a, Vf b) {  // m ? a : b
  return {(f32x4)(((i32x4)a.v & m.m) | ((i32x4)b.v & ~m.m))};
}
OAR_INLINE Mask operator<(Vf a, Vf b) { return {(i32x4)(a.v < b.v)}; }
OAR_INLINE Mask is_nan(Vf a) { return {(i32x4)(a.v != a.v)}; }
// b when either is NaN.
OAR_INLINE Vf max(Vf a, Vf b) { return select({(i32x4)(a.v > b.v)}, a, b); }
OAR_INLINE Vf min(Vf a, Vf b) { return select({(i32x4)(a.v < b.v)}, a, b); }
OAR_INLINE Vf abs(Vf a) { return {(f32x4)((i32x4)a.v & 0x7fffffff)}; }
// To the nearest integer, ties to even; |a| < 2^22.
OAR_INLINE Vf round(Vf a) {
  const Vf magic = set1(12582912.f);  // 1.5 * 2^23: the sum's last bit is worth 1
  return (a + magic) - magic;
}
OAR_INLINE Vf floor(Vf a) {
  return {f32x4{std::floor(a.v[0]), std::floor(a.v[1]), std::floor(a.v[2]), std::floor(a.v[3])}};
}
OAR_INLINE bool any(Mask m) { return (m.m[0] | m.m[1] | m.m[2] | m.m[3]) != 0; }

OAR_INLINE Vi set1_int(int32_t x) { return {i32x4{x, x, x, x}}; }
OAR_INLINE Vi load_int(const int32_t* p) {
  Vi x;
  memcpy(&x.v, p, sizeof x.v);
  return x;
}
// Wrapping, as the instructions do.
OAR_INLINE Vi operator+(Vi a, Vi b) { return {(i32x4)((u32x4)a.v + (u32x4)b.v)}; }
OAR_INLINE Vi operator-(Vi a, Vi b) { return {(i32x4)((u32x4)a.v - (u32x4)b.v)}; }
OAR_INLINE Vi operator*(Vi a, Vi b) { return {(i32x4)((u32x4)a.v * (u32x4)b.v)}; }
OAR_INLINE Vi operator&(Vi a, Vi b) { return {a.v & b.v}; }
OAR_INLINE Vi operator|(Vi a, Vi b) { return {a.v | b.v}; }
OAR_INLINE Mask operator<(Vi a, Vi b) { return {(i32x4)(a.v < b.v)}; }
template <int N>
OAR_INLINE Vi shift_left(Vi a) {
  return {(i32x4)((u32x4)a.v << N)};
}
template <int N>
OAR_INLINE Vi shift_right(Vi a) {
  return {a.v >> N};
}
OAR_INLINE Vf to_float(Vi a) { return {__builtin_convertvector(a.v, f32x4)}; }
OAR_INLINE Vi bits(Vf a) { return {(i32x4)a.v}; }
OAR_INLINE Vf from_bits(Vi a) { return {(f32x4)a.v}; }
// Lane i: a's lane at[i], which is below kLanes.
#if defined(__clang__)
OAR_INLINE Vf permute(Vf a, Vi at) { return {f32x4{a.v[at.v[0]], a.v[at.v[1]], a.v[at.v[2]], a.v[at.v[3]]}}; }
#else
OAR_INLINE Vf permute(Vf a, Vi at) { return {__builtin_shuffle(a.v, at.v)}; }
#endif
OAR_INLINE Vi to_int(Vf a) {
  return bits(a + set1(12582912.f)) - set1_int(0x4b400000);
}  // nearest, even; |a| < 2^22

OAR_INLINE Vf load_n(const f16* p, int64_t n) {
  Vf x{};
  for (int64_t i = 0; i < n; ++i) x.v[i] = to_f32(p[i]);
  return x;
}
#if defined(__aarch64__)
OAR_INLINE Vf load(const f16* p) {
  float16x4_t half;
  memcpy(&half, p, sizeof half);
  return {(f32x4)vcvt_f32_f16(half)};
}
#else
OAR_INLINE Vf load(const f16* p) { return load_n(p, 4); }
#endif
OAR_INLINE Vf load_n(const bf16* p, int64_t n) {
  Vf x{};
  for (int64_t i = 0; i < n; ++i) x.v[i] = to_f32(p[i]);
  return x;
}
OAR_INLINE Vf load(const bf16* p) {
  return {(f32x4)(u32x4{p[0].bits, p[1].bits, p[2].bits, p[3].bits} << 16)};
}

#endif

inline constexpr int64_t kLanes = Vf::kLanes;

OAR_INLINE Vf zero() { return set1(0.f); }
OAR_INLINE Vf operator-(Vf a) { return set1(-0.f) - a; }

// Sum of all lanes by halving: (0 + 8, 1 + 9, ..), then 4, 2, 1. The order is fixed, so the result is.
// Largest lane: a NaN among the lanes may be lost.
#if defined(__AVX2__)
OAR_INLINE __m256 upper_half(__m256 a) { return _mm256_castps128_ps256(_mm256_extractf128_ps(a, 1)); }
OAR_INLINE float reduce_add(__m256 a) {
  a = _mm256_add_ps(a, upper_half(a));
  const __m128 b = _mm256_castps256_ps128(a), c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
OAR_INLINE float reduce_max(__m256 a) {
  a = _mm256_max_ps(a, upper_half(a));
  const __m128 b = _mm256_castps256_ps128(a), c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
#endif
#if defined(__AVX512F__)
OAR_INLINE float reduce_add(Vf a) {
  return reduce_add(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
OAR_INLINE float reduce_max(Vf a) {
  return reduce_max(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
#elif defined(__AVX2__)
OAR_INLINE float reduce_add(Vf a) { return reduce_add(a.v); }
OAR_INLINE float reduce_max(Vf a) { return reduce_max(a.v); }
#else
OAR_INLINE float reduce_add(Vf a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
OAR_INLINE float reduce_max(Vf a) {
  const float x = a.v[0] > a.v[2] ? a.v[0] : a.v[2], y = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return x > y ? x : y;
}
#endif

// reduce_add() of each of four vectors, to the same bits, to to[0, 4).
OAR_INLINE void reduce_add_four(Vf a, Vf b, Vf c, Vf d, float* to) {
#if defined(__AVX512F__)
  // Halves of two vectors side by side, then quarters of four: one addition serves all.
  const auto halves = [](Vf x, Vf y) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(x.v, y.v, 0x44), _mm512_shuffle_f32x4(x.v, y.v, 0xee));
  };
  const __m512 ab = halves(a, b), cd = halves(c, d);
  const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0xee));
  const __m512 sums = _mm512_add_ps(two, _mm512_permute_ps(two, 0x55));
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums)));
#else
  to[0] = reduce_add(a), to[1] = reduce_add(b), to[2] = reduce_add(c), to[3] = reduce_add(d);
#endif
}

// Calls f(offset, n) for [0, count) in steps of a vector; n == kLanes except for the last step.
template <class F>
OAR_INLINE void for_lanes(int64_t count, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, kLanes);
  if (i < count) f(i, count - i);
}
// Full vectors take the unmasked load: the compiler folds the test where n is a constant.
template <class T>
OAR_INLINE Vf load_part(const T* p, int64_t n) {
  return n == kLanes ? load(p) : load_n(p, n);
}
OAR_INLINE void store_part(float* p, Vf x, int64_t n) { n == kLanes ? store(p, x) : store_n(p, x, n); }

}  // namespace oar::OAR_SIMD_NAMESPACE
