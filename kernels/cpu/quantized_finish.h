// What follows the sums of 8-bit and bf16 convolution (kernels/quantized_conv.h): scales, bounds, rounding,
// the sum with another tensor; sixteen channels at a time, the same for every instruction set. Included by
// quantized_conv_<isa>.cc through its driver; everything is local to the file.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "kernels/cpu/epilogue_simd.h"
#include "kernels/quantized_conv.h"

namespace oar {
namespace {

// Sixteen channels: vectors that the compiler splits to the width of the set.
using QuantizedInts = int32_t __attribute__((vector_size(64)));
using QuantizedFloats = float __attribute__((vector_size(64)));
using QuantizedBytes = uint8_t __attribute__((vector_size(16)));

// What the channels of a tile need beside their sums, padded to whole panels.
template <int64_t kPanels>
struct alignas(64) QuantizedLanes {
  int32_t start[kPanels * kQuantizedPanel] = {}, w_sums[kPanels * kQuantizedPanel] = {};
  float scale[kPanels * kQuantizedPanel] = {}, shift[kPanels * kQuantizedPanel] = {};
  float sum_inverse = 1.f;  // 1 / sum_scale, or NaN where that is too large to multiply by
};
inline float quantized_inverse(float scale) { return 1.f / scale < 1e30f ? 1.f / scale : __builtin_nanf(""); }

template <class V>
[[gnu::always_inline]] inline void load_lanes(V& v, const void* from) {
  std::memcpy(&v, from, sizeof v);
}
// n values of up to a whole vector, the others zero.
template <class V>
[[gnu::always_inline]] inline void load_lanes(V& v, const void* from, size_t n, size_t width) {
  if (n * width == sizeof v) return load_lanes(v, from);
  v = V{};
  std::memcpy(&v, from, n * width);
}

// Sums wrap, as in unsigned numbers.
using QuantizedUnsigned = uint32_t __attribute__((vector_size(64)));
[[gnu::always_inline]] inline void add_wrapping(QuantizedInts& s, const QuantizedInts& by) {
  s = reinterpret_cast<QuantizedInts>(reinterpret_cast<QuantizedUnsigned>(s) +
                                      reinterpret_cast<QuantizedUnsigned>(by));
}

// Of the image that a pixel belongs to.
struct QuantizedImage {
  float scale;
  int32_t zero;
};

// What a result has beside its sums: nothing, a scale of its image, or another tensor added.
enum class QuantizedTail { kPlain, kImages, kSum };

// Sums of sixteen channels, complete. (Vectors of 64 bytes are returned in no register that all sets have.)
template <class Core, QuantizedTail kTail>
[[gnu::always_inline]] inline void quantized_sums(QuantizedInts& s,
                                                  const QuantizedLanes<Core::kPanels>& lanes, int64_t lane,
                                                  const int32_t* acc, QuantizedImage image) {
  QuantizedInts start;
  load_lanes(s, acc);
  load_lanes(start, lanes.start + lane);
  add_wrapping(s, start);
  if constexpr (kTail == QuantizedTail::kImages) {
    QuantizedInts w_sums;
    load_lanes(w_sums, lanes.w_sums + lane);
    add_wrapping(s, reinterpret_cast<QuantizedInts>(reinterpret_cast<QuantizedUnsigned>(w_sums) *
                                                    (0u - static_cast<uint32_t>(image.zero))));
  }
}

// Scaled and shifted.
template <class Core, QuantizedTail kTail>
[[gnu::always_inline]] inline void quantized_scaled(QuantizedFloats& t,
                                                    const QuantizedLanes<Core::kPanels>& lanes, int64_t lane,
                                                    const int32_t* acc, QuantizedImage image) {
  QuantizedFloats shift;
  if constexpr (Core::kWidth == 2) {
    load_lanes(t, acc);
  } else {
    QuantizedInts s;
    quantized_sums<Core, kTail>(s, lanes, lane, acc, image);
    QuantizedFloats scale;
    load_lanes(scale, lanes.scale + lane);
    if constexpr (kTail == QuantizedTail::kImages) scale *= image.scale;
    t = __builtin_convertvector(s, QuantizedFloats) * scale;
  }
  load_lanes(shift, lanes.shift + lane);
  t += shift;
}

// u / scale, bounded to [low, high], as integers after rounding. By the reciprocal, whose product is off by
// less than 2^-22 of the quotient: where one of the vector is so close to the middle of two integers that
// this could matter, all are divided, which takes as long as everything else here.
[[gnu::always_inline]] inline void quantized_quotient(QuantizedFloats& u, const QuantizedSum& sum,
                                                      [[maybe_unused]] float inverse) {
#ifdef __AVX512F__
  const __m512 low = _mm512_set1_ps(sum.low), high = _mm512_set1_ps(sum.high),
               round = _mm512_set1_ps(12582912.f);
  __m512 t = _mm512_mul_ps(u, _mm512_set1_ps(inverse));
  t = _mm512_min_ps(_mm512_max_ps(t, low), high);
  const __m512 off = _mm512_sub_ps(t, _mm512_sub_ps(_mm512_add_ps(t, round), round));
  // A reciprocal that is NaN ends at a bound, which has no fraction.
  if (inverse == inverse &&
      _mm512_cmp_ps_mask(_mm512_abs_ps(off), _mm512_set1_ps(0.4999f), _CMP_GT_OQ) == 0) {
    u = t;
    return;
  }
#endif
  u /= sum.sum_scale;
  u = u > sum.low ? u : QuantizedFloats{} + sum.low;
  u = u < sum.high ? u : QuantizedFloats{} + sum.high;
}

// Bounded, rounded to n bytes at `at`; with kSum, added to the other tensor and rounded again.
template <QuantizedTail kTail>
[[gnu::always_inline]] inline void quantized_bytes(const QuantizedConvArgs& a, QuantizedFloats& t, int64_t at,
                                                   size_t n, [[maybe_unused]] float sum_inverse = 1.f) {
  const QuantizedFloats low = QuantizedFloats{} + a.low, high = QuantizedFloats{} + a.high;
  // Adding and taking 1.5 2^23 rounds half to even what is smaller than 2^22.
  constexpr float kRound = 12582912.f;
  t = t > low ? t : low;
  t = t < high ? t : high;
  t += kRound;
  int32_t zero = a.y_zero;
  if constexpr (kTail == QuantizedTail::kSum) {
    t -= kRound;
    const QuantizedSum& sum = a.sum;
    // The bytes of an i8 with their sign bit turned are those of a u8 that is 128 more.
    const uint8_t turn = sum.other_signed ? 0x80 : 0;
    QuantizedBytes bytes;
    load_lanes(bytes, sum.other + at, n, 1);
    const QuantizedInts wide = __builtin_convertvector(bytes ^ turn, QuantizedInts);
    const QuantizedFloats other =
        __builtin_convertvector(wide, QuantizedFloats) - (sum.other_zero + static_cast<float>(turn));
    t = t * sum.scale + other * sum.other_scale;
    quantized_quotient(t, sum, sum_inverse);
    t += kRound;
    zero = sum.zero;
  }
  // In 1.5 2^23 + i the low bits are the integer i.
  const QuantizedInts whole = reinterpret_cast<QuantizedInts>(t) + (zero - std::bit_cast<int32_t>(kRound));
  const QuantizedBytes bytes = __builtin_convertvector(whole, QuantizedBytes);
  uint8_t* out = static_cast<uint8_t*>(a.out) + at;
  if (n == sizeof bytes) std::memcpy(out, &bytes, sizeof bytes);
  else std::memcpy(out, &bytes, n);
}

// Results of one pixel's channels [m0, m0 + n), n <= 16, from their sums; `at` is the first one's place.
template <class Core, class T, QuantizedTail kTail>
[[gnu::always_inline]] inline void quantized_store(const QuantizedConvArgs& a,
                                                   const QuantizedLanes<Core::kPanels>& lanes, int64_t lane,
                                                   const int32_t* acc, QuantizedImage image, int64_t at,
                                                   size_t n, [[maybe_unused]] float sum_inverse) {
  if constexpr (std::is_same_v<T, int32_t>) {
    QuantizedInts s;
    quantized_sums<Core, kTail>(s, lanes, lane, acc, image);
    std::memcpy(static_cast<T*>(a.out) + at, &s, n * sizeof(T));
  } else {
    QuantizedFloats t;
    quantized_scaled<Core, kTail>(t, lanes, lane, acc, image);
    if constexpr (std::is_same_v<T, float>) {
      if (a.residual) {
        QuantizedFloats residual;
        load_lanes(residual, a.residual + at, n, sizeof(float));
        t += residual;
      }
      const QuantizedFloats low = QuantizedFloats{} + a.low, high = QuantizedFloats{} + a.high;
      t = t < low ? low : t;  // NaN stays
      t = t > high ? high : t;
      std::memcpy(static_cast<T*>(a.out) + at, &t, n * sizeof(T));
    } else {
      quantized_bytes<kTail>(a, t, at, n, sum_inverse);
    }
  }
}

#ifdef __AVX512BW__
// Sixteen sums scaled, shifted and bounded, as quantized_scaled() and quantized_bytes() do.
[[gnu::always_inline]] inline __m512 quantized_bounded(__m512i sums, __m512 scale, __m512 shift, __m512 low,
                                                       __m512 high) {
  const __m512 t = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums), scale), shift);
  return _mm512_min_ps(_mm512_max_ps(t, low), high);
}
// Rounded half to even, + zero (16-bit lanes), to bytes: quarter q of the result has quarter q of t[0], t[1],
// t[2] and t[3].
template <bool kSigned>
[[gnu::always_inline]] inline __m512i quantized_packed(const __m512* t, __m512i zero) {
  __m512i y[4];
  for (int j = 0; j < 4; ++j) y[j] = _mm512_cvtps_epi32(t[j]);
  const __m512i lo = _mm512_add_epi16(_mm512_packs_epi32(y[0], y[1]), zero);
  const __m512i hi = _mm512_add_epi16(_mm512_packs_epi32(y[2], y[3]), zero);
  return kSigned ? _mm512_packs_epi16(lo, hi) : _mm512_packus_epi16(lo, hi);
}

// Up to 64 channels of a pixel to bytes at once, as quantized_store() does sixteen, bit for bit.
template <bool kSigned, QuantizedTail kTail>
class QuantizedBytes64 {
 public:
  QuantizedBytes64(const QuantizedConvArgs& a, const QuantizedLanes<4>& lanes, int64_t channels)
      : low_(_mm512_set1_ps(a.low)),
        high_(_mm512_set1_ps(a.high)),
        zero_(_mm512_set1_epi16(static_cast<int16_t>(kTail == QuantizedTail::kSum ? a.sum.zero : a.y_zero))),
        sum_(a.sum),
        inverse_(lanes.sum_inverse),
        mask_(channels == 64 ? ~__mmask64{0} : (__mmask64{1} << channels) - 1) {
    for (int j = 0; j < 4; ++j) {
      start_[j] = _mm512_load_si512(lanes.start + 16 * j);
      scale_[j] = _mm512_load_ps(lanes.scale + 16 * j), shift_[j] = _mm512_load_ps(lanes.shift + 16 * j);
    }
  }
  // `at`: where the first channel goes, and lies in the tensor that is added.
  [[gnu::always_inline]] void store(const int32_t* acc, uint8_t* out, int64_t at) const {
    __m512 t[4];
    for (int j = 0; j < 4; ++j) {
      const __m512i s = _mm512_add_epi32(_mm512_load_si512(acc + 16 * j), start_[j]);
      t[j] = quantized_bounded(s, scale_[j], shift_[j], low_, high_);
    }
    if constexpr (kTail == QuantizedTail::kSum) add_other(t, at);
    const __m512i turned = quantized_packed<kSigned>(t, zero_);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_mask_storeu_epi8(out + at, mask_, _mm512_permutexvar_epi32(order, turned));
  }

 private:
  [[gnu::always_inline]] void add_other(__m512* t, int64_t at) const {
    // The bytes of an i8 with their sign bit turned are those of a u8 that is 128 more.
    const uint8_t turn = sum_.other_signed ? 0x80 : 0;
    const __m512 low = _mm512_set1_ps(sum_.low), high = _mm512_set1_ps(sum_.high);
    const __m512 zero = _mm512_set1_ps(sum_.other_zero + static_cast<float>(turn));
    __m512 quotient[4];
    __mmask16 close = inverse_ == inverse_ ? 0 : 0xffff;
    for (int j = 0; j < 4; ++j) {
      const __m128i bytes = _mm_xor_si128(
          _mm_maskz_loadu_epi8(static_cast<__mmask16>(mask_ >> 16 * j), sum_.other + at + 16 * j),
          _mm_set1_epi8(static_cast<char>(turn)));
      const __m512 other = _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), zero);
      t[j] = _mm512_add_ps(_mm512_mul_ps(whole(t[j]), _mm512_set1_ps(sum_.scale)),
                           _mm512_mul_ps(other, _mm512_set1_ps(sum_.other_scale)));
      // By the reciprocal, where that cannot matter (quantized_quotient).
      quotient[j] = _mm512_mul_ps(t[j], _mm512_set1_ps(inverse_));
      quotient[j] = _mm512_min_ps(_mm512_max_ps(quotient[j], low), high);
      const __m512 off = _mm512_sub_ps(quotient[j], whole(quotient[j]));
      close |= _mm512_cmp_ps_mask(_mm512_abs_ps(off), _mm512_set1_ps(0.4999f), _CMP_GT_OQ);
    }
    for (int j = 0; j < 4; ++j) {
      if (close != 0) [[unlikely]] {
        quotient[j] = _mm512_div_ps(t[j], _mm512_set1_ps(sum_.sum_scale));
        quotient[j] = _mm512_min_ps(_mm512_max_ps(quotient[j], low), high);
      }
      t[j] = quotient[j];
    }
  }
  // Rounded half to even.
  [[gnu::always_inline]] static __m512 whole(__m512 x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  const __m512 low_, high_;
  const __m512i zero_;
  const QuantizedSum sum_;
  const float inverse_;
  const __mmask64 mask_;
  __m512i start_[4];
  __m512 scale_[4], shift_[4];
};
#endif

// Values of `row`, a multiple of sixteen of which `channels` count, through the epilogue and to bytes.
inline void quantized_activated(const QuantizedConvArgs& a, float* row, int64_t at, int64_t channels) {
  OAR_SIMD_NAMESPACE::apply_epilogue({a.epilogue, a.alpha, a.beta}, row, channels);
  for (int64_t c = 0; c < channels; c += kQuantizedPanel) {
    QuantizedFloats t;
    load_lanes(t, row + c);
    t *= a.y_inverse;
    quantized_bytes<QuantizedTail::kPlain>(a, t, at + c,
                                           static_cast<size_t>(std::min(kQuantizedPanel, channels - c)));
  }
}

}  // namespace
}  // namespace oar
