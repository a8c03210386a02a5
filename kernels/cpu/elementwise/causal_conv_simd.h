// Causal convolutions with state for one instruction set; included by elementwise_<isa>.cc. A chunk is a few
// rows and a tile of channels: rows are independent of each other, so prompts and single tokens run the same
// code. A channel's sum is one chain of fused products from the oldest row on.
#pragma once

#include "kernels/causal_conv.h"
#include "kernels/cpu/simd.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kCausalRows = 16;       // of a chunk
inline constexpr int64_t kCausalChannels = 512;  // of a chunk

inline void causal_conv_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const CausalConvArgs*>(args);
  *out = {1, {row_chunks(a.T, kCausalRows) * ceil_div(a.C, kCausalChannels)}};
}

OAR_INLINE void causal_copy(const float* from, int64_t n, float* to) {
  for_lanes(n, [&](int64_t k, int64_t lanes) { store_part(to + k, load_part(from + k, lanes), lanes); });
}

inline void causal_conv_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const CausalConvArgs*>(args);
  const int64_t tiles = ceil_div(a.C, kCausalChannels);
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t t0 = chunk / tiles * kCausalRows, at = chunk % tiles * kCausalChannels;
    const int64_t t1 = t0 + kCausalRows < a.T ? t0 + kCausalRows : a.T;
    const int64_t n = a.C - at < kCausalChannels ? a.C - at : kCausalChannels;
    CausalConvRow row(a, t0);
    for (int64_t t = t0; t < t1; ++t) {
      const int64_t p = row.position(t), oldest = p - (a.L - 1);
      float* out = a.out + t * a.ldo + at;
      for_lanes(n, [&](int64_t k, int64_t lanes) {
        store_part(out + k, a.bias != nullptr ? load_part(a.bias + at + k, lanes) : zero(), lanes);
      });
      for (int64_t i = oldest < 0 ? -oldest : 0; i < a.L; ++i) {
        const float* x = row.input(oldest + i) + at;
        const float* w = a.w + i * a.C + at;
        for_lanes(n, [&](int64_t k, int64_t lanes) {
          store_part(out + k,
                     fma(load_part(w + k, lanes), load_part(x + k, lanes), load_part(out + k, lanes)), lanes);
        });
      }
      if (float* kept = state_row(a.state, t)) causal_copy(a.x + t * a.ldx + at, n, kept + at);
      if (float* border = row.border(p))
        for (int64_t i = 0; i + 1 < a.L; ++i)
          causal_copy(row.input(p - (a.L - 2) + i) + at, n, border + i * a.C + at);
    }
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
