// Activations for the super-block kernels: 256 k at a time become signed bytes under one f32 scale, absmax /
// 127 (so -128 never occurs). With them are the exact sums of every 16 bytes, which minima and offsets of the
// weights are multiplied with.
//
// A packed token is [blocks][256] int8, then [blocks][16] int16 sums, then [blocks] f32 scales.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/matmul/block_absmax.h"
#include "kernels/cpu/matmul/kquant_format.h"
#include "kernels/cpu/matmul/matmul_driver.h"

namespace oar {
namespace {

struct KToken {
  static constexpr int64_t kSums = 2 * kSuperGroups;  // bytes of a block's sums
  static int64_t bytes(int64_t K) { return (K / kSuperBlock * (kSuperBlock + kSums + 4) + 63) / 64 * 64; }
  static const int8_t* levels(const char* token, int64_t b) {
    return reinterpret_cast<const int8_t*>(token) + b * kSuperBlock;
  }
  static const char* sums(const char* token, int64_t K, int64_t b) { return token + K + b * kSums; }
  static float scale(const char* token, int64_t K, int64_t b) {
    float s;
    std::memcpy(&s, token + K + K / kSuperBlock * kSums + b * 4, 4);
    return s;
  }
};

// One block to bytes and sums; returns the scale. A block with a NaN or an infinity gets a NaN scale, which
// reaches every output of its token. Blocks below 1e-30 count as zero: the reciprocal of their scale would
// overflow.
inline float quantize_super(const float* x, int8_t* q, int16_t* sums) {
  const float absmax = block_absmax(x, kSuperBlock);
  const bool finite = std::isfinite(absmax);
  if (!finite || absmax <= kLeastAbsmax) {
    std::memset(q, 0, kSuperBlock);
    std::memset(sums, 0, KToken::kSums);
    return finite ? 0.f : __builtin_nanf("");
  }
  const float inverse = 127.f / absmax;
  // Adding 1.5 * 2^23 rounds to an integer, to nearest even, and leaves it in the low bits.
  constexpr float kRound = 12582912.f;
  for (int64_t i = 0; i < kSuperBlock; ++i) {
    const float scaled = x[i] * inverse + kRound;
    uint32_t n;
    std::memcpy(&n, &scaled, sizeof n);
    q[i] = static_cast<int8_t>(n);
  }
  for (int64_t g = 0; g < kSuperGroups; ++g) {
    int sum = 0;
    for (int64_t i = 0; i < 16; ++i) sum += q[g * 16 + i];
    sums[g] = static_cast<int16_t>(sum);
  }
  return absmax / 127.f;
}

inline void pack_tokens(void* run, const PackTask& p) {
  const int64_t bytes = KToken::bytes(p.K);
  for (int64_t t = p.t_begin; t < p.t_end; ++t) {
    char* token = static_cast<char*>(run) + t * bytes;
    for (int64_t k = p.k_begin; k < p.k_end; k += kSuperBlock) {
      const int64_t b = k / kSuperBlock;
      const float scale =
          quantize_super(p.at(t, k), reinterpret_cast<int8_t*>(token) + k,
                         reinterpret_cast<int16_t*>(const_cast<char*>(KToken::sums(token, p.K, b))));
      std::memcpy(token + p.K + p.K / kSuperBlock * KToken::kSums + b * 4, &scale, 4);
    }
  }
}

}  // namespace
}  // namespace oar
