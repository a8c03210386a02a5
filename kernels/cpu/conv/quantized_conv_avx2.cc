// 8-bit convolution with AVX2: pairs of products by pmaddwd, which is exact where the byte form saturates.
// The two partial sums of a channel lie beside each other until the end.
#define OAR_SIMD_NAMESPACE quantized_avx2
#include <immintrin.h>

#include "kernels/cpu/conv/quantized_conv_driver.h"

namespace oar {
namespace {

struct Avx2QuantizedCore {
  static constexpr int64_t kRows = 2, kPanels = 1, kWidth = 1, kStep = 4;
  static constexpr bool kTaps = false, kStarts = false, kSignedX = true;
  static void begin() {}
  static void end() {}

  template <int R, bool kSigned>
  static void rows(const QuantizedTile& t) {
    __m256i acc[R][4];  // [quarter of the panel]: channel 4 q + i in lanes 2 i and 2 i + 1
    for (auto& row : acc) {
      for (__m256i& v : row) v = _mm256_setzero_si256();
    }
    const int8_t* w = t.w;
    for (int64_t k = 0; k < t.Kp; k += 4, w += 64) {
      __m256i quarter[4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q)
        quarter[q] = _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(w + 16 * q)));
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, t.x + r * t.ldx + k, 4);
        const __m128i bytes = _mm_cvtsi32_si128(four);
        const __m256i x =
            _mm256_broadcastq_epi64(kSigned ? _mm_cvtepi8_epi16(bytes) : _mm_cvtepu8_epi16(bytes));
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) acc[r][q] = _mm256_add_epi32(acc[r][q], _mm256_madd_epi16(quarter[q], x));
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int h = 0; h < 2; ++h) {
        // hadd works within halves: channels 0 1 4 5 | 2 3 6 7 of this half of the panel.
        const __m256i sum = _mm256_hadd_epi32(acc[r][2 * h], acc[r][2 * h + 1]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(t.acc + r * t.ldacc + 8 * h),
                            _mm256_permute4x64_epi64(sum, _MM_SHUFFLE(3, 1, 2, 0)));
      }
    }
  }
  static void tile(const QuantizedTile& t) {
    if (t.rows == 2) t.x_signed ? rows<2, true>(t) : rows<2, false>(t);
    else t.x_signed ? rows<1, true>(t) : rows<1, false>(t);
  }
};

constexpr KernelEntry kEntries[] = {quantized_conv<Avx2QuantizedCore>(Isa::kAvx2)};

}  // namespace

constinit const KernelTable kernels_quantized_conv_avx2{kEntries};

}  // namespace oar
