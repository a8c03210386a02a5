// What follows the sums of 8-bit and bf16 convolution (kernels/quantized_conv.h): scales, bounds, rounding,
// the sum with another tensor; sixteen channels at a time, the same for every instruction set. Included by
// quantized_conv_<isa>.cc through its driver; everything is local to the file.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#include "kernels/cpu/conv/epilogue_simd.h"
#include "kernels/quantized_conv.h"
#include "quant/dtype.h"

namespace oar {
namespace {

// Sixteen channels: vectors that the compiler splits to the width of the set.
using QuantizedInts = int32_t __attribute__((vector_size(64)));
using QuantizedFloats = float __attribute__((vector_size(64)));
using QuantizedBytes = uint8_t __attribute__((vector_size(16)));

// What a run brings beside the layer (RunConvArgs).
struct QuantizedRun {
  int32_t x_zero;
  float scale;
  const int32_t* w_zeros;
  static QuantizedRun of(const QuantizedConvArgs& a, int64_t width) {
    if (width == 2) return {a.x_zero, 1.f, nullptr};
    return {RunConvArgs::zero_of(a), RunConvArgs::scale_of(a), RunConvArgs::w_zeros_of(a)};
  }
};

// The sum with another tensor as r by + (o other_by + offset). Where that is further than `surely` from an
// integer it might round to another one than the quotient of QuantizedSum does.
struct QuantizedProducts {
  float by = 0, other_by = 0, offset = 0, surely = -1;
};
inline QuantizedProducts quantized_products(const QuantizedConvArgs& a) {
  const QuantizedSum& sum = a.sum;
  QuantizedProducts p;
  p.by = sum.scale / sum.sum_scale, p.other_by = sum.other_scale / sum.sum_scale;
  p.offset = -sum.other_zero * p.other_by;
  // How far off it may be, in 2^-24: the three constants are rounded, so is each step here and there, and
  // results beyond 300 end at a bound.
  const float most = std::max(std::fabs(a.low), std::fabs(a.high));
  const float off = 2 * most * std::fabs(p.by) + 4 * 255 * std::fabs(p.other_by) + 3 * 300;
  p.surely = off < 1e5f ? 0.5f - off * 6.3e-8f : -1.f;  // also where something is not finite
  return p;
}

// n values of channels, or as many of what stands for those that nobody gives.
template <class T>
inline void copy_lanes(T* to, const T* of_channels, int64_t first, int64_t n, T otherwise) {
  if (of_channels) std::memcpy(to, of_channels + first, static_cast<size_t>(n) * sizeof(T));
  else std::fill_n(to, n, otherwise);
}

// What the channels of a tile need beside their sums, padded to whole panels.
template <int64_t kPanels>
struct alignas(64) QuantizedLanes {
  int32_t start[kPanels * kQuantizedPanel] = {};
  int32_t by[kPanels * kQuantizedPanel] = {};  // of kRows: the sum of the weights, or their zero point
  float scale[kPanels * kQuantizedPanel] = {}, shift[kPanels * kQuantizedPanel] = {};
  float sum_inverse = 1.f;  // 1 / sum_scale, or NaN where that is too large to multiply by
  QuantizedProducts products;

  // Scales and shifts of channels [first, first + n).
  void scaled(const QuantizedConvArgs& a, const QuantizedRun& run, int64_t first, int64_t n) {
    copy_lanes(scale, a.scale, first, n, 1.f);
    copy_lanes(shift, a.shift, first, n, 0.f);
    for (float& s : scale) s *= run.scale;
  }
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

// The first n of them. A copy of a size that is not known is a loop, and costs as much as the tile before it.
template <class V>
[[gnu::always_inline]] inline void store_lanes(void* to, const V& v, size_t n, size_t width) {
  if (n * width == sizeof v) std::memcpy(to, &v, sizeof v);
  else std::memcpy(to, &v, n * width);
}

// Sums wrap, as in unsigned numbers.
using QuantizedUnsigned = uint32_t __attribute__((vector_size(64)));
[[gnu::always_inline]] inline void add_wrapping(QuantizedInts& s, const QuantizedInts& by) {
  s = reinterpret_cast<QuantizedInts>(reinterpret_cast<QuantizedUnsigned>(s) +
                                      reinterpret_cast<QuantizedUnsigned>(by));
}

// Of a row of sums: the scale and the zero point of its image.
struct QuantizedRow {
  float scale;
  int32_t zero;
};

// What a result has beside its sums: nothing, a scale and a zero point of its row, or another tensor added.
enum class QuantizedTail { kPlain, kRows, kSum };

// Sums of sixteen channels, complete. (Vectors of 64 bytes are returned in no register that all sets have.)
template <class Core, QuantizedTail kTail>
[[gnu::always_inline]] inline void quantized_sums(QuantizedInts& s,
                                                  const QuantizedLanes<Core::kPanels>& lanes, int64_t lane,
                                                  const int32_t* acc, QuantizedRow row) {
  load_lanes(s, acc);
  if constexpr (!Core::kStarts) {
    QuantizedInts start;
    load_lanes(start, lanes.start + lane);
    add_wrapping(s, start);
  }
  if constexpr (kTail == QuantizedTail::kRows) {
    QuantizedInts by;
    load_lanes(by, lanes.by + lane);
    add_wrapping(s, reinterpret_cast<QuantizedInts>(reinterpret_cast<QuantizedUnsigned>(by) *
                                                    (0u - static_cast<uint32_t>(row.zero))));
  }
}

// Scaled and shifted.
template <class Core, QuantizedTail kTail>
[[gnu::always_inline]] inline void quantized_scaled(QuantizedFloats& t,
                                                    const QuantizedLanes<Core::kPanels>& lanes, int64_t lane,
                                                    const int32_t* acc, QuantizedRow row) {
  QuantizedFloats shift;
  if constexpr (Core::kWidth == 2) {
    load_lanes(t, acc);
  } else {
    QuantizedInts s;
    quantized_sums<Core, kTail>(s, lanes, lane, acc, row);
    QuantizedFloats scale;
    load_lanes(scale, lanes.scale + lane);
    if constexpr (kTail == QuantizedTail::kRows) scale *= row.scale;
    t = __builtin_convertvector(s, QuantizedFloats) * scale;
  }
  load_lanes(shift, lanes.shift + lane);
  t += shift;
}

// u / scale, bounded to [low, high], as integers after rounding. By the reciprocal, whose product is off by
// less than 2^-22 of the quotient: one of the vector may be so close to the middle of two integers that this
// could matter. Then all are divided, which takes as long as everything else here.
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
  store_lanes(out, bytes, n, 1);
}

// n numbers to bf16, half to even. As products of bf16 do, takes subnormals for zero where there is an
// instruction.
[[gnu::always_inline]] inline void quantized_rounded(const QuantizedFloats& t, bf16* to, size_t n) {
#ifdef __AVX512BF16__
  const auto bits = std::bit_cast<__m256i>(_mm512_cvtneps_pbh(std::bit_cast<__m512>(t)));
  if (n == kQuantizedPanel) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << n) - 1), bits);
#else
  for (size_t i = 0; i < n; ++i) to[i] = to_bf16(t[i]);
#endif
}

// Results of one pixel's channels [m0, m0 + n), n <= 16, from their sums; `at` is the first one's place.
template <class Core, class T, QuantizedTail kTail>
[[gnu::always_inline]] inline void quantized_store(const QuantizedConvArgs& a,
                                                   const QuantizedLanes<Core::kPanels>& lanes, int64_t lane,
                                                   const int32_t* acc, QuantizedRow row, int64_t at, size_t n,
                                                   [[maybe_unused]] float sum_inverse) {
  if constexpr (std::is_same_v<T, int32_t>) {
    QuantizedInts s;
    quantized_sums<Core, kTail>(s, lanes, lane, acc, row);
    store_lanes(static_cast<T*>(a.out) + at, s, n, sizeof(T));
  } else {
    QuantizedFloats t;
    quantized_scaled<Core, kTail>(t, lanes, lane, acc, row);
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, bf16>) {
      if (a.residual) {
        QuantizedFloats residual;
        load_lanes(residual, a.residual + at, n, sizeof(float));
        t += residual;
      }
      const QuantizedFloats low = QuantizedFloats{} + a.low, high = QuantizedFloats{} + a.high;
      t = t < low ? low : t;  // NaN stays
      t = t > high ? high : t;
      if constexpr (std::is_same_v<T, bf16>) quantized_rounded(t, static_cast<T*>(a.out) + at, n);
      else store_lanes(static_cast<T*>(a.out) + at, t, n, sizeof(T));
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
// Rounded half to even, + zero (16-bit lanes), to bytes, each step saturating: quarter q of the result has
// quarter q of t[0], t[1], t[2] and t[3].
template <bool kSigned>
[[gnu::always_inline]] inline __m512i quantized_packed(const __m512* t, __m512i zero) {
  __m512i y[4];
  for (int j = 0; j < 4; ++j) y[j] = _mm512_cvtps_epi32(t[j]);
  const __m512i lo = _mm512_adds_epi16(_mm512_packs_epi32(y[0], y[1]), zero);
  const __m512i hi = _mm512_adds_epi16(_mm512_packs_epi32(y[2], y[3]), zero);
  return kSigned ? _mm512_packs_epi16(lo, hi) : _mm512_packus_epi16(lo, hi);
}

// Up to 64 channels of a pixel to bytes at once, as quantized_store() does sixteen, bit for bit. Of a Core
// with kStarts.
template <bool kSigned, QuantizedTail kTail>
class QuantizedBytes64 {
 public:
  QuantizedBytes64(const QuantizedConvArgs& a, const QuantizedLanes<4>& lanes, int64_t channels)
      : low_(_mm512_set1_ps(a.low)),
        high_(_mm512_set1_ps(a.high)),
        zero_(_mm512_set1_epi16(static_cast<int16_t>(kTail == QuantizedTail::kSum ? a.sum.zero : a.y_zero))),
        sum_(a.sum),
        products_(lanes.products),
        shifted_(a.shift != nullptr),
        mask_(channels == 64 ? ~__mmask64{0} : (__mmask64{1} << channels) - 1) {
    for (int j = 0; j < 4; ++j) {
      scale_[j] = _mm512_load_ps(lanes.scale + 16 * j), shift_[j] = _mm512_load_ps(lanes.shift + 16 * j);
    }
    constexpr float kLeast = kSigned ? -128 : 0;
    least_ = kTail == QuantizedTail::kSum ? sum_.low == kLeast - static_cast<float>(sum_.zero)
                                          : a.low == kLeast - static_cast<float>(a.y_zero);
  }
  // `at`: where the first channel goes, and lies in the tensor that is added.
  [[gnu::always_inline]] void store(const int32_t* acc, uint8_t* out, int64_t at) const {
    __m512 t[4];
    for (int j = 0; j < 4; ++j) {
      t[j] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(acc + 16 * j)), scale_[j]);
    }
    if (shifted_) {
      for (int j = 0; j < 4; ++j) t[j] = _mm512_add_ps(t[j], shift_[j]);
    }
    // The least byte is where packing saturates; the largest is not, of numbers beyond 2^31.
    if (kTail == QuantizedTail::kSum || !least_) {
      for (int j = 0; j < 4; ++j) t[j] = _mm512_max_ps(t[j], low_);
    }
    for (int j = 0; j < 4; ++j) t[j] = _mm512_min_ps(high_, t[j]);  // NaN stays, and packs to the least
    if constexpr (kTail == QuantizedTail::kSum) add_other(t, at);
    const __m512i turned = quantized_packed<kSigned>(t, zero_);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_mask_storeu_epi8(out + at, mask_, _mm512_permutexvar_epi32(order, turned));
  }

 private:
  [[gnu::always_inline]] void add_other(__m512* t, int64_t at) const {
    __m512 other[4], quotient[4];
    for (int j = 0; j < 4; ++j) {
      const __m128i bytes =
          _mm_maskz_loadu_epi8(static_cast<__mmask16>(mask_ >> 16 * j), sum_.other + at + 16 * j);
      other[j] =
          _mm512_cvtepi32_ps(sum_.other_signed ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
      t[j] = whole(t[j]);
    }
    // By products, where these cannot round to another integer than quotients of the sum (the definition).
    __m512 off = _mm512_setzero_ps();
    for (int j = 0; j < 4; ++j) {
      const __m512 added =
          _mm512_fmadd_ps(other[j], _mm512_set1_ps(products_.other_by), _mm512_set1_ps(products_.offset));
      quotient[j] = _mm512_fmadd_ps(t[j], _mm512_set1_ps(products_.by), added);
      constexpr int kAbsMax = 0b1011;
      off = _mm512_range_ps(off, _mm512_reduce_ps(quotient[j], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                            kAbsMax);
    }
    if (_mm512_cmp_ps_mask(off, _mm512_set1_ps(products_.surely), _CMP_NLT_UQ) != 0) [[unlikely]] {
      for (int j = 0; j < 4; ++j) {
        const __m512 added = _mm512_mul_ps(_mm512_sub_ps(other[j], _mm512_set1_ps(sum_.other_zero)),
                                           _mm512_set1_ps(sum_.other_scale));
        quotient[j] = _mm512_add_ps(_mm512_mul_ps(t[j], _mm512_set1_ps(sum_.scale)), added);
        quotient[j] = _mm512_div_ps(quotient[j], _mm512_set1_ps(sum_.sum_scale));
      }
    }
    for (int j = 0; j < 4; ++j) {
      if (!least_) quotient[j] = _mm512_max_ps(quotient[j], _mm512_set1_ps(sum_.low));
      t[j] = _mm512_min_ps(_mm512_set1_ps(sum_.high), quotient[j]);
    }
  }
  // Rounded half to even.
  [[gnu::always_inline]] static __m512 whole(__m512 x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  const __m512 low_, high_;
  const __m512i zero_;
  const QuantizedSum sum_;
  const QuantizedProducts products_;
  const bool shifted_;
  bool least_;  // the last bound below is the type's
  const __mmask64 mask_;
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
