// f32 rows as bf16 or 8-bit integers (kernels/narrow.h) for one instruction set; included by image_<isa>.cc.
// Rows are cut into segments, so that a single image keeps every worker busy. Where a row's range is not
// given, a first phase finds each segment's, and the second joins those of its row: least and largest do not
// depend on the order.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/narrow.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

struct NarrowWork {
  int64_t segment, segments;  // of one row
  int64_t per, chunks;        // segments of one chunk
  bool search;
  explicit NarrowWork(const NarrowArgs& a) {
    constexpr int64_t kSegment = 8192;
    segment = a.n < kSegment ? (a.n > 0 ? a.n : 1) : kSegment;
    segments = ceil_div(a.n > 0 ? a.n : 1, segment);
    const int64_t all = a.rows * segments;
    per = rows_per_chunk(all, segment * static_cast<int64_t>(sizeof(float)));
    chunks = row_chunks(all, per);
    search = !a.bf16 && !a.f16 && !(a.divisor > 0) && (a.own_scale != nullptr || a.low > a.high);
  }
};

// Of one segment: `finite` is NaN when a value is not finite; a NaN is neither low nor high.
struct NarrowRange {
  float low, high, finite;
};
// Of some of them.
inline NarrowRange joined(const NarrowRange* r, int64_t n) {
  NarrowRange all = r[0];
  for (int64_t k = 1; k < n; ++k) {
    all.low = r[k].low < all.low ? r[k].low : all.low;
    all.high = r[k].high > all.high ? r[k].high : all.high;
    all.finite += r[k].finite;
  }
  return all;
}

inline void narrow_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const NarrowArgs*>(args);
  const NarrowWork w(a);
  if (!w.search) {
    *out = {1, {w.chunks}};
    return;
  }
  *out = {2, {w.chunks, w.chunks}};
  out->shared_scratch = static_cast<size_t>(a.rows * w.segments) * sizeof(NarrowRange);
}

inline NarrowRange narrow_range(const float* x, int64_t n) {
  Vf low = zero(), high = zero(), finite = zero();
  for_lanes(n, [&](int64_t i, int64_t k) {
    const Vf v = load_part(x + i, k);
    low = min(v, low), high = max(v, high);
    finite = finite + v * zero();
  });
  return {-reduce_max(-low), reduce_max(high), reduce_add(finite)};
}

// The n first lanes, each as its low bytes: T is uint8_t or uint16_t.
template <class T>
OAR_INLINE void store_narrow(T* p, Vi v, int64_t n) {
#if defined(__AVX512F__)
  const __mmask16 mask = n == kLanes ? static_cast<__mmask16>(0xffff) : first_lanes(n);
  if constexpr (sizeof(T) == 1) _mm512_mask_cvtepi32_storeu_epi8(p, mask, v.v);
  else _mm512_mask_cvtepi32_storeu_epi16(p, mask, v.v);
#else
  int32_t wide[kLanes];
  memcpy(wide, &v.v, sizeof wide);
  for (int64_t i = 0; i < n; ++i) p[i] = static_cast<T>(wide[i]);
#endif
}

inline void narrow_bf16(const float* x, uint16_t* out, int64_t n) {
  const Vi one = set1_int(1), half = set1_int(0x7fff);
  for_lanes(n, [&](int64_t i, int64_t k) {
    const Vf v = load_part(x + i, k);
    const Vi b = bits(v);
    const Vi rounded = b + (half + (shift_right<16>(b) & one));
    const Vf kept = select(is_nan(v), from_bits(set1_int(0x7fc00000)), from_bits(rounded));
    store_narrow(out + i, shift_right<16>(bits(kept)), k);
  });
}

inline void narrow_f16(const float* x, uint16_t* out, int64_t n) {
  for_lanes(n, [&](int64_t i, int64_t k) {
    const Vf v = load_part(x + i, k);
#if defined(__AVX512F__)
    const __mmask16 mask = k == kLanes ? static_cast<__mmask16>(0xffff) : first_lanes(k);
    _mm256_mask_storeu_epi16(out + i, mask,
                             _mm512_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
    const __m128i halves = _mm256_cvtps_ph(v.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    if (k == kLanes) _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
    else memcpy(out + i, &halves, static_cast<size_t>(k) * sizeof(uint16_t));
#else
    float lanes[kLanes];
    store(lanes, v);
    for (int64_t j = 0; j < k; ++j) out[i + j] = to_f16(lanes[j]).bits;
#endif
  });
}

inline void narrow_u8(const float* x, uint8_t* out, int64_t n, NarrowScale s) {
  // Bounds before rounding: integers far from the range, and NaN, have no conversion.
  const Vf inverse = set1(s.inverse), low = set1(static_cast<float>(-s.zero)),
           high = set1(static_cast<float>(255 - s.zero));
  const Vi offset = set1_int(s.zero);
  for_lanes(n, [&](int64_t i, int64_t k) {
    const Vf t = min(max(load_part(x + i, k) * inverse, low), high);
    store_narrow(out + i, to_int(t) + offset, k);
  });
}

// Quotients by a product with the reciprocal, which is off by less than 2^-22 of them: where one of a vector
// is so close to the middle of two integers that this could matter, all are divided.
inline void quantize_u8(const float* x, uint8_t* out, int64_t n, float divisor, int32_t zero,
                        int32_t lowest) {
  const float least = static_cast<float>(lowest - zero), reciprocal = 1.f / divisor;
  const bool divide = !(reciprocal < 1e30f);  // the product would overflow where the quotient does not
  const Vf d = set1(divisor), inverse = set1(reciprocal), low = set1(least), high = set1(least + 255);
  const Vf close = set1(0.4999f), nothing = set1(static_cast<float>(-zero));
  const Vi offset = set1_int(zero);
  for_lanes(n, [&](int64_t i, int64_t k) {
    const Vf v = load_part(x + i, k);
    Vf t = min(max(v * inverse, low), high);
    if (divide || any(close < abs(t - round(t)))) t = min(max(v / d, low), high);
    store_narrow(out + i, to_int(select(is_nan(v), nothing, t)) + offset, k);
  });
}

inline void narrow_run(const void* args, int phase, int64_t begin, int64_t end,
                       const KernelScratch& scratch) {
  const auto& a = *static_cast<const NarrowArgs*>(args);
  const NarrowWork w(a);
  auto* ranges = static_cast<NarrowRange*>(scratch.shared);
  const int64_t all = a.rows * w.segments, last = end * w.per < all ? end * w.per : all;
  int64_t known = -1;  // the row that `s` is of
  NarrowScale s = {1.f, 1.f, 0};
  for (int64_t u = begin * w.per; u < last; ++u) {
    const int64_t row = u / w.segments, from = u % w.segments * w.segment;
    const int64_t n = a.n - from < w.segment ? a.n - from : w.segment, at = row * a.n + from;
    if (a.bf16) {
      narrow_bf16(a.x + at, static_cast<uint16_t*>(a.out) + at, n);
      continue;
    }
    if (a.f16) {
      narrow_f16(a.x + at, static_cast<uint16_t*>(a.out) + at, n);
      continue;
    }
    if (a.divisor > 0) {
      quantize_u8(a.x + at, static_cast<uint8_t*>(a.out) + at, n, a.divisor, a.offset, a.least);
      continue;
    }
    if (w.search && phase == 0) {
      ranges[u] = narrow_range(a.x + at, n);
      continue;
    }
    if (a.own_scale != nullptr) {
      if (known < 0) {
        const NarrowRange r = joined(ranges, all);
        s = range_scale(r.low, r.high);
      }
      known = row;
      if (u == 0) *a.own_scale = s.scale, *a.own_zero = static_cast<uint8_t>(s.zero);
      uint8_t* const to = static_cast<uint8_t*>(a.out) + at;
      if (s.inverse > 0) quantize_u8(a.x + at, to, n, s.scale, s.zero, 0);
      else memset(to, 0, static_cast<size_t>(n));
      continue;
    }
    if (row != known) {
      const NarrowRange r =
          w.search ? joined(ranges + row * w.segments, w.segments) : NarrowRange{a.low, a.high, 0.f};
      s = narrow_scale(r.low, r.high);
      if (!(r.finite == 0.f)) s = {r.finite, 0.f, 0};
      known = row;
    }
    if (from == 0) a.scale[row] = s.scale, a.zero[row] = s.zero;
    narrow_u8(a.x + at, static_cast<uint8_t*>(a.out) + at, n, s);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
