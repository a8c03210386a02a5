// Rotary position embedding for one instruction set; included by elementwise_<isa>.cc. The cosines and sines
// of a token are computed once for all the heads of a chunk: a few dozen, so no table is shared between
// workers, which would cost a barrier.
#pragma once

#include "kernels/cpu/elementwise/norm_simd.h"
#include "kernels/rope.h"

namespace oar::OAR_SIMD_NAMESPACE {

// cos and sin of position * inv_freq[i], times `scale`. The angle and its reduction are in double: pi/2 is
// cut in three so that the products with a 31-bit quotient are exact without fused operations; what is left,
// |r| <= pi/4, goes to f32 polynomials [2^-28 and 2^-33]. Below 2 ulp of a result near one.
inline void cos_sin(double position, const float* inv_freq, int64_t n, float scale, float* cosine,
                    float* sine) {
  constexpr double kTwoOverPi = 0.63661977236758134308;
  constexpr double kHalfPi1 = 0x1.921fbp+0;           // 22 bits of pi/2
  constexpr double kHalfPi2 = 0x1.5110bp-22;          // the next 22
  constexpr double kHalfPi3 = 0x1.18469898cc517p-44;  // the rest
  constexpr double kRound = 6755399441055744.0;       // 1.5 * 2^52: adding it rounds to an integer
  constexpr int64_t kBatch = 64;
  alignas(64) float reduced[kBatch];
  alignas(64) int32_t quadrant[kBatch];
  for (int64_t base = 0; base < n; base += kBatch) {
    const int64_t m = n - base < kBatch ? n - base : kBatch;
    for (int64_t i = 0; i < m; ++i) {
      const double x = position * static_cast<double>(inv_freq[base + i]);
      const double rounded = x * kTwoOverPi + kRound, k = rounded - kRound;
      reduced[i] = static_cast<float>(((x - k * kHalfPi1) - k * kHalfPi2) - k * kHalfPi3);
      int64_t b;
      memcpy(&b, &rounded, sizeof b);
      quadrant[i] = static_cast<int32_t>(b & 3);
    }
    for (int64_t i = m; i % kLanes != 0; ++i) {
      reduced[i] = 0.f;
      quadrant[i] = 0;
    }
    for (int64_t i = 0; i < m; i += kLanes) {
      const Vf r = load(reduced + i), r2 = r * r;
      Vf s = set1(-1.951463200e-4f);
      s = fma(s, r2, set1(8.332155645e-3f));
      s = fma(s, r2, set1(-1.666665524e-1f));
      s = fma(s * r2, r, r);
      Vf c = set1(2.443241283e-5f);
      c = fma(c, r2, set1(-1.388730947e-3f));
      c = fma(c, r2, set1(4.166664556e-2f));
      c = fma(c * r2, r2, fma(set1(-0.5f), r2, set1(1.f)));
      // Quadrants 1 and 3 swap the two; sin is negative in 2 and 3, cos in 1 and 2.
      const Vi q = load_int(quadrant + i), one = set1_int(1), two = set1_int(2);
      const Mask swap = set1_int(0) < (q & one);
      const Vi sin_sign = shift_left<30>(q & two), cos_sign = shift_left<30>((q + one) & two);
      const Vf flip_s = from_bits(sin_sign | bits(set1(scale))),
               flip_c = from_bits(cos_sign | bits(set1(scale)));
      store_part(sine + base + i, select(swap, c, s) * flip_s, m - i < kLanes ? m - i : kLanes);
      store_part(cosine + base + i, select(swap, s, c) * flip_c, m - i < kLanes ? m - i : kLanes);
    }
  }
}

OAR_INLINE int64_t rope_heads_per_chunk(const RopeArgs& a) { return rows_per_chunk(a.T * a.heads, a.D * 8); }

inline void rope_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const RopeArgs*>(args);
  *out = {1, {row_chunks(a.T * a.heads, rope_heads_per_chunk(a))}};
  // cos, sin, and one normalized head.
  out->worker_scratch = static_cast<size_t>(a.rot_dim + a.D) * sizeof(float);
}

inline void rope_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const RopeArgs*>(args);
  const int64_t half = a.rot_dim / 2, per = rope_heads_per_chunk(a), rows = a.T * a.heads;
  const int64_t last = end * per < rows ? end * per : rows;
  auto* cosine = static_cast<float*>(scratch.worker);
  float* sine = cosine + half;
  float* normalized = sine + half;
  int64_t token = -1;
  for (int64_t row = begin * per; row < last; ++row) {
    const int64_t t = row / a.heads, h = row % a.heads;
    if (t != token) {
      cos_sin(a.positions[t], a.inv_freq, half, a.mscale, cosine, sine);
      token = t;
    }
    const float* x = a.x + t * a.ldx + h * a.step_of_x();
    float* out = a.out + t * a.ldo + h * a.step_of_out();
    if (a.norm_w != nullptr) {
      const float squares = sum_lanes(a.D, [&](int64_t i, int64_t n) {
        const Vf v = load_part(x + i, n);
        return v * v;
      });
      const Vf scale = set1(1.f / std::sqrt(squares / static_cast<float>(a.D) + a.norm_eps));
      for_lanes(a.D, [&](int64_t i, int64_t n) {
        store_part(normalized + i, load_part(x + i, n) * scale * load_part(a.norm_w + i, n), n);
      });
      x = normalized;
    }
    if (a.interleaved != 0) {
      for (int64_t i = 0; i < half; ++i) {
        const float x0 = x[2 * i], x1 = x[2 * i + 1];
        out[2 * i] = x0 * cosine[i] - x1 * sine[i];
        out[2 * i + 1] = x1 * cosine[i] + x0 * sine[i];
      }
    } else {
      for_lanes(half, [&](int64_t i, int64_t n) {
        const Vf x0 = load_part(x + i, n), x1 = load_part(x + half + i, n);
        const Vf c = load_part(cosine + i, n), s = load_part(sine + i, n);
        store_part(out + i, x0 * c - x1 * s, n);
        store_part(out + half + i, x1 * c + x0 * s, n);
      });
    }
    if (out != x) {
      for_lanes(a.D - a.rot_dim, [&](int64_t i, int64_t n) {
        store_part(out + a.rot_dim + i, load_part(x + a.rot_dim + i, n), n);
      });
    }
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
