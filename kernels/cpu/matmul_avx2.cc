// Matmul with AVX2, FMA and F16C: every float weight becomes f32 and is multiplied with FMA.
#include <immintrin.h>

#include "kernels/cpu/int4_avx2.h"
#include "kernels/cpu/matmul_decode.h"

namespace oar {
namespace {

inline __m256 widen(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 widen(const f16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m256 widen(const bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

template <class Weight>
struct Avx2Arch {
  using W = Weight;
  using X = float;
  using WReg = __m256;
  using XReg = __m256;
  using Acc = __m256;
  // 4 x 3 accumulators, 3 activations and a weight: exactly the 16 registers.
  static constexpr int kStep = 8, kTileRows = 4, kTileTokens = 3, kGemvRows = 4;
  static Acc zero() { return _mm256_setzero_ps(); }
  static WReg load_w(const W* p) { return widen(p); }
  static XReg load_x(const X* p) { return _mm256_loadu_ps(p); }
  static Acc dot(Acc a, WReg w, XReg x) { return _mm256_fmadd_ps(w, x, a); }
  static void reduce4(Acc a, Acc b, Acc c, Acc d, float out[4]) {
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const __m256 abcd = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                                      _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
    _mm_store_ps(out, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
  }
  static void pack(X* dst, const float* src, int64_t n) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    for (; n % kStep != 0; ++n) dst[n] = 0.f;
  }
};

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

using F32Core = RowDotCore<Avx2Arch<float>>;
using F16Core = RowDotCore<Avx2Arch<f16>>;
using Bf16Core = RowDotCore<Avx2Arch<bf16>>;

}  // namespace

void append_matmul_avx2(KernelList& list) {
  MatmulDriver<F32Core>::append(list, Format::f32(), Isa::kAvx2, "matmul.f32.avx2",
                                "grouped_matmul.f32.avx2");
  MatmulDriver<F16Core>::append(list, Format::f16(), Isa::kAvx2, "matmul.f16.avx2",
                                "grouped_matmul.f16.avx2");
  MatmulDriver<Bf16Core>::append(list, Format::bf16(), Isa::kAvx2, "matmul.bf16.avx2",
                                 "grouped_matmul.bf16.avx2");
  append_int8<Int8Core<Avx2Int8>>(list, Isa::kAvx2);
  append_int4<Avx2Int4<Avx2Int8>, Int8Core<Avx2Int8>>(list, Isa::kAvx2);
  MatmulDriver<DecodeCore<F32Core>>::append(list, std::nullopt, Isa::kAvx2, "matmul.any.avx2",
                                            "grouped_matmul.any.avx2");
}

}  // namespace oar
