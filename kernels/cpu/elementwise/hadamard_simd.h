// Grouped Hadamard transform for one instruction set; included by elementwise_<isa>.cc. Every stage is a sum
// or a difference, so the order of additions is fixed by the block alone: batch invariant.
//
// The work is cut into units of one block. Stages below a vector's width are done in registers for whole runs
// of blocks (2^m divides every offset, so a vector never straddles a butterfly), together with the next two;
// the wider ones go through the first-level cache eight vectors at a time, dense cores K vectors at a time.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/hadamard.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Lane i of the result is lane i ^ kStep.
template <int kStep>
OAR_INLINE Vf swap_lanes(Vf a) {
#if defined(__AVX512F__)
  if constexpr (kStep == 1) return {_mm512_permute_ps(a.v, 0xb1)};
  else if constexpr (kStep == 2) return {_mm512_permute_ps(a.v, 0x4e)};
  else if constexpr (kStep == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xb1)};
  else return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)};
#elif defined(__AVX2__)
  if constexpr (kStep == 1) return {_mm256_permute_ps(a.v, 0xb1)};
  else if constexpr (kStep == 2) return {_mm256_permute_ps(a.v, 0x4e)};
  else return {_mm256_permute2f128_ps(a.v, a.v, 1)};
#else
  if constexpr (kStep == 1) return {__builtin_shufflevector(a.v, a.v, 1, 0, 3, 2)};
  else return {__builtin_shufflevector(a.v, a.v, 2, 3, 0, 1)};
#endif
}

// The butterfly of stage kStep within a vector: (a, b) -> (a + b, a - b). The product with +-1 is exact, so
// the fused sum rounds once, as the difference would.
template <int kStep>
OAR_INLINE Vf lane_butterfly(Vf a) {
  alignas(64) static constexpr struct Signs {
    float v[kLanes];
    constexpr Signs() : v() {
      for (int64_t i = 0; i < kLanes; ++i) v[i] = (i & kStep) != 0 ? -1.f : 1.f;
    }
  } kSigns;
  return fma(a, load(kSigns.v), swap_lanes<kStep>(a));
}

// All stages narrower than min(power, kLanes).
OAR_INLINE Vf lane_stages(Vf a, int64_t power) {
  if (power > 1) a = lane_butterfly<1>(a);
  if (power > 2) a = lane_butterfly<2>(a);
  if constexpr (kLanes > 4) {
    if (power > 4) a = lane_butterfly<4>(a);
  }
  if constexpr (kLanes > 8) {
    if (power > 8) a = lane_butterfly<8>(a);
  }
  return a;
}

OAR_INLINE void butterfly(Vf& a, Vf& b) {
  const Vf sum = a + b;
  b = a - b;
  a = sum;
}

// Stages h, 2h, .. of kRadix vectors h elements apart.
template <int kRadix>
OAR_INLINE void wide_stages(Vf (&v)[kRadix]) {
  for (int h = 1; h < kRadix; h *= 2) {
    for (int i = 0; i < kRadix; ++i) {
      if ((i & h) == 0) butterfly(v[i], v[i + h]);
    }
  }
}

template <int kRadix>
OAR_INLINE void wide_pass(float* x, int64_t n, int64_t h) {
  for (int64_t base = 0; base < n; base += kRadix * h) {
    for (int64_t i = base; i < base + h; i += kLanes) {
      Vf v[kRadix];
      for (int k = 0; k < kRadix; ++k) v[k] = load(x + i + k * h);
      wide_stages<kRadix>(v);
      for (int k = 0; k < kRadix; ++k) store(x + i + k * h, v[k]);
    }
  }
}

// First pass: input scaled and signed, stages of a vector, and stages kLanes .. 4 kLanes of kRadix vectors.
template <int kRadix>
OAR_INLINE void first_pass(const float* x, const float* signs, Vf scale, int64_t power, float* out,
                           int64_t n) {
  int64_t i = 0;
  for (; i + kRadix * kLanes <= n; i += kRadix * kLanes) {
    Vf v[kRadix];
    for (int k = 0; k < kRadix; ++k) {
      v[k] = load(x + i + k * kLanes) * scale;
      if (signs != nullptr) v[k] = v[k] * load(signs + i + k * kLanes);
      v[k] = lane_stages(v[k], power);
    }
    wide_stages<kRadix>(v);
    for (int k = 0; k < kRadix; ++k) store(out + i + k * kLanes, v[k]);
  }
  if constexpr (kRadix == 1) {
    if (i == n) return;
    Vf v = load_n(x + i, n - i) * scale;
    if (signs != nullptr) v = v * load_n(signs + i, n - i);
    store_n(out + i, lane_stages(v, power), n - i);
  }
}

// The dense core of order K over rows `stride` apart; `copy` holds K vectors.
OAR_INLINE void core_pass(float* x, int64_t n, const float* core, int64_t K, int64_t stride, float* copy) {
  for (int64_t base = 0; base < n; base += K * stride) {
    for_lanes(stride, [&](int64_t j, int64_t lanes) {
      float* p = x + base + j;
      for (int64_t k = 0; k < K; ++k) store(copy + k * kLanes, load_part(p + k * stride, lanes));
      int64_t r = 0;
      for (; r + 4 <= K; r += 4) {  // every core order is a multiple of 4
        Vf sum[4] = {zero(), zero(), zero(), zero()};
        for (int64_t k = 0; k < K; ++k) {
          const Vf v = load(copy + k * kLanes);
          for (int64_t q = 0; q < 4; ++q) sum[q] = fma(set1(core[(r + q) * K + k]), v, sum[q]);
        }
        for (int64_t q = 0; q < 4; ++q) store_part(p + (r + q) * stride, sum[q], lanes);
      }
    });
  }
}

// A run of whole blocks.
OAR_INLINE void hadamard_blocks(const HadamardArgs& a, const float* x, const float* signs, float* out,
                                int64_t n, float* copy) {
  const Vf scale = set1(1.f / std::sqrt(static_cast<float>(a.block)));
  const float* before = a.inverse != 0 ? nullptr : signs;
  int64_t h = kLanes;
  if (a.power >= 8 * kLanes) {
    first_pass<8>(x, before, scale, a.power, out, n);
    h = 8 * kLanes;
  } else if (a.power == 4 * kLanes) {
    first_pass<4>(x, before, scale, a.power, out, n);
    h = 4 * kLanes;
  } else if (a.power == 2 * kLanes) {
    first_pass<2>(x, before, scale, a.power, out, n);
    h = 2 * kLanes;
  } else {
    first_pass<1>(x, before, scale, a.power, out, n);
  }
  for (; h * 8 <= a.power; h *= 8) wide_pass<8>(out, n, h);
  if (h * 4 <= a.power) wide_pass<4>(out, n, h), h *= 4;
  if (h * 2 <= a.power) wide_pass<2>(out, n, h);
  int64_t stride = a.power;
  for (int c = 0; c < a.num_cores; ++c) {
    core_pass(out, n, a.cores[c], a.core_order[c], stride, copy);
    stride *= a.core_order[c];
  }
  if (a.inverse != 0 && signs != nullptr) {
    for_lanes(n, [&](int64_t i, int64_t lanes) {
      store_part(out + i, load_part(out + i, lanes) * load_part(signs + i, lanes), lanes);
    });
  }
}

OAR_INLINE int64_t hadamard_per(const HadamardArgs& a) {
  // A unit's passes go through the cache log2(block) / 3 times.
  return rows_per_chunk(a.rows * (a.n / a.block), a.block * 16);
}

inline void hadamard_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const HadamardArgs*>(args);
  *out = {1, {row_chunks(a.rows * (a.n / a.block), hadamard_per(a))}};
  int64_t largest = 0;
  for (int c = 0; c < a.num_cores; ++c) largest = a.core_order[c] > largest ? a.core_order[c] : largest;
  out->worker_scratch = static_cast<size_t>(largest * kLanes) * sizeof(float);
}

inline void hadamard_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const HadamardArgs*>(args);
  const int64_t per_row = a.n / a.block, units = a.rows * per_row, per = hadamard_per(a);
  const int64_t last = end * per < units ? end * per : units;
  for (int64_t u = begin * per; u < last;) {
    const int64_t row = u / per_row, first = u % per_row;
    const int64_t left = last - u, count = per_row - first < left ? per_row - first : left;
    const int64_t at = first * a.block;
    hadamard_blocks(a, a.x + row * a.ldx + at, a.signs != nullptr ? a.signs + at : nullptr,
                    a.out + row * a.ldo + at, count * a.block, static_cast<float*>(scratch.worker));
    u += count;
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
