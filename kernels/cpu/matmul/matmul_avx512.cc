// Matmul with AVX-512 (F, BW, VL, DQ): every float weight becomes f32 and is multiplied with FMA. f16 stays
// with this on processors that have AVX512-FP16 too: sums of f16 products in f16 are not precise enough.
#include <immintrin.h>

#include "kernels/cpu/matmul/int4_avx512.h"
#include "kernels/cpu/matmul/matmul_decode.h"
#include "kernels/cpu/matmul/matmul_f8.h"
#include "kernels/cpu/x86_reduce.h"

namespace oar {
namespace {

inline __m512 widen(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 widen(const f16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m512 widen(const bf16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

template <class Weight>
struct Avx512Arch {
  using W = Weight;
  using X = float;
  using WReg = __m512;
  using XReg = __m512;
  using Acc = __m512;
  static constexpr int kStep = 16, kTileRows = 4, kTileTokens = 6, kGemvRows = 4;
  static Acc zero() { return _mm512_setzero_ps(); }
  static WReg load_w(const W* p) { return widen(p); }
  static XReg load_x(const X* p) { return _mm512_loadu_ps(p); }
  static Acc dot(Acc a, WReg w, XReg x) { return _mm512_fmadd_ps(w, x, a); }
  static void reduce4(Acc a, Acc b, Acc c, Acc d, float out[4]) {
    _mm_store_ps(out, avx512_reduce4(a, b, c, d));
  }
  static void pack(X* dst, const float* src, int64_t n) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    for (; n % kStep != 0; ++n) dst[n] = 0.f;
  }
};

// Through f16, which knows the exponents of both and converts subnormals at full speed: e5m2 is its high
// byte, e4m3 is 2^8 of it but for NaN.
template <class T>
struct Avx512Widen {
  using Number = float;
  using Reg = __m512;
  static constexpr bool kE4m3 = std::is_same_v<T, e4m3>;
  static constexpr float kUnit = kE4m3 ? 256 : 1;
  static constexpr int kSweeps = 4;
  static Reg plain(const uint8_t* p) {
    __m256i v = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    if constexpr (kE4m3) {
      const __m256i nan = _mm256_set1_epi16(0x3f80);
      v = _mm256_and_si256(_mm256_slli_epi16(v, 7), _mm256_set1_epi16(static_cast<short>(0xbf80)));
      const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(v, nan), nan);
      v = _mm256_mask_mov_epi16(v, is_nan, _mm256_set1_epi16(0x7e00));
    } else {
      v = _mm256_slli_epi16(v, 8);
    }
    return _mm512_cvtph_ps(v);
  }
  static Reg scaled(const uint8_t* p, float d) { return _mm512_mul_ps(plain(p), _mm512_set1_ps(d)); }
  static void store(float* p, Reg v) { _mm512_storeu_ps(p, v); }
};

// Sixteen rows at a time. Without a dot-product instruction: |w| times x with w's sign, as in the AVX2
// kernel.
struct Int8Weights {
  __m512i magnitude;
  __mmask64 negative;
};
struct Avx512Int8 {
  using WReg = Int8Weights;
  using XReg = __m512i;
  using Dot = __m512i;
  using Sum = __m512;
  static constexpr int kLanes = 16, kTileVectors = 1, kTileTokens = 8, kGemvVectors = 2;
  static constexpr bool kBiased = false;
  static WReg weights(__m512i w) { return {_mm512_abs_epi8(w), _mm512_movepi8_mask(w)}; }
  static WReg load_w(const char* line) { return weights(_mm512_loadu_si512(line)); }
  static XReg load_x(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Dot start(int32_t v) { return _mm512_set1_epi32(v); }
  static Dot dot(Dot d, WReg w, XReg x) {
    const __m512i signed_x = _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
    const __m512i pairs = _mm512_maddubs_epi16(w.magnitude, signed_x);
    return _mm512_add_epi32(d, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  static Dot dot_signed(Dot d, __m512i w, XReg x) { return dot(d, weights(w), x); }
  static Sum load(const float* p) { return _mm512_loadu_ps(p); }
  static Sum flush(Sum s, Dot d, Sum scale_w, float scale_x) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(scale_w, _mm512_set1_ps(scale_x)), s);
  }
  static Sum add(Sum a, Sum b) { return _mm512_add_ps(a, b); }
  static void store(float* p, Sum s) { _mm512_storeu_ps(p, s); }
};

using F32Core = RowDotCore<Avx512Arch<float>>;
using F16Core = RowDotCore<Avx512Arch<f16>>;
using Bf16Core = RowDotCore<Avx512Arch<bf16>>;

constexpr auto kEntries = join(MatmulDriver<F32Core>::kernels("f32", Isa::kAvx512),
                               MatmulDriver<F16Core>::kernels("f16", Isa::kAvx512),
                               MatmulDriver<Bf16Core>::kernels("bf16", Isa::kAvx512),
                               f8_kernels<Avx512Arch<float>, Avx512Widen, F32Core, 1>(Isa::kAvx512),
                               int8_kernels<Int8Core<Avx512Int8>>(Isa::kAvx512),
                               int4_kernels<Avx512Int4<Avx512Int8>, Int8Core<Avx512Int8>>(Isa::kAvx512),
                               MatmulDriver<DecodeCore<F32Core>>::kernels(nullptr, Isa::kAvx512));

}  // namespace

constinit const KernelTable kernels_matmul_avx512{kEntries};

}  // namespace oar
