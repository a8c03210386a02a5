// Matmul with AVX2, FMA and F16C: every float weight becomes f32 and is multiplied with FMA.
#include <immintrin.h>

#include "kernels/cpu/matmul/int4_avx2.h"
#include "kernels/cpu/matmul/int8_avx2.h"
#include "kernels/cpu/matmul/matmul_decode.h"
#include "kernels/cpu/matmul/matmul_f8.h"

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

// Through f16, which knows the exponents of both and converts subnormals at full speed: e5m2 is its high
// byte, e4m3 is 2^8 of it but for NaN.
template <class T>
struct Avx2Widen {
  using Number = float;
  using Reg = __m256;
  static constexpr bool kE4m3 = std::is_same_v<T, e4m3>;
  static constexpr float kUnit = kE4m3 ? 256 : 1;
  static constexpr int kSweeps = 1;
  static Reg plain(const uint8_t* p) {
    __m128i v = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    if constexpr (kE4m3) {
      const __m128i nan = _mm_set1_epi16(0x3f80);
      v = _mm_and_si128(_mm_slli_epi16(v, 7), _mm_set1_epi16(static_cast<short>(0xbf80)));
      const __m128i is_nan = _mm_cmpeq_epi16(_mm_and_si128(v, nan), nan);
      v = _mm_or_si128(v, _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00)));
    } else {
      v = _mm_slli_epi16(v, 8);
    }
    return _mm256_cvtph_ps(v);
  }
  static Reg scaled(const uint8_t* p, float d) { return _mm256_mul_ps(plain(p), _mm256_set1_ps(d)); }
  static void store(float* p, Reg v) { _mm256_storeu_ps(p, v); }
};

using F32Core = RowDotCore<Avx2Arch<float>>;
using F16Core = RowDotCore<Avx2Arch<f16>>;
using Bf16Core = RowDotCore<Avx2Arch<bf16>>;

constexpr auto kEntries =
    join(MatmulDriver<F32Core>::kernels("f32", Isa::kAvx2), MatmulDriver<F16Core>::kernels("f16", Isa::kAvx2),
         MatmulDriver<Bf16Core>::kernels("bf16", Isa::kAvx2),
         f8_kernels<Avx2Arch<float>, Avx2Widen>(Isa::kAvx2), int8_kernels<Int8Core<Avx2Int8>>(Isa::kAvx2),
         int4_kernels<Avx2Int4<Avx2Int8>, Int8Core<Avx2Int8>>(Isa::kAvx2),
         MatmulDriver<DecodeCore<F32Core>>::kernels(nullptr, Isa::kAvx2));

}  // namespace

constinit const KernelTable kernels_matmul_avx2{kEntries};

}  // namespace oar
