// Activations for int4_groups_core.h: 256 k at a time become signed bytes under one f32 scale, absmax / 127.
// With them are the exact sums of every 64 or 128 bytes, which offsets of the weights are multiplied with. A
// function of those 256 values alone, so that a token's bytes do not depend on its batch.
//
// A run of n tokens is [K / 256][n] of GroupsToken, so that the tokens of a tile lie beside each other. The
// sums are there twice because both are read by broadcasts: made from each other in the tile, by way of
// memory, they cost a sixth of its time (Zen 5).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/matmul/block_absmax.h"
#include "kernels/cpu/matmul/int4_groups.h"
#include "kernels/cpu/matmul/matmul_driver.h"

namespace oar {
namespace {  // compiled with the flags of every instruction set

struct alignas(32) GroupsToken {
  int8_t levels[kGroupsBlock];    // zero where there is no k
  int32_t minus[kGroupsOfBlock];  // minus the groups' sums
  int16_t sums[kGroupsOfBlock];
  float scale;

  static int64_t blocks(int64_t K) { return (K + kGroupsBlock - 1) / kGroupsBlock; }
  // Of a token.
  static int64_t bytes(int64_t K) {
    return (blocks(K) * static_cast<int64_t>(sizeof(GroupsToken)) + 63) / 64 * 64;
  }

  // Of groups of `group` k. A block with a NaN or an infinity gets a NaN scale, which reaches every output of
  // its token. Below 1e-30 a block counts as zero: the reciprocal of its scale would overflow.
  static void quantize(const float* x, int64_t group, GroupsToken* to) {
    const float absmax = block_absmax(x, kGroupsBlock);
    const bool finite = std::isfinite(absmax);
    std::memset(to, 0, sizeof *to);
    if (!finite || absmax <= kLeastAbsmax) {
      to->scale = finite ? 0.f : __builtin_nanf("");
      return;
    }
    const float inverse = 127.f / absmax;
    for (int64_t g = 0; g < kGroupsBlock / group; ++g) {
      int32_t sum = 0;
      for (int64_t i = g * group; i < (g + 1) * group; ++i) {
        // Adding 1.5 * 2^23 rounds to an integer, to nearest even, and leaves it in the low bits.
        const float rounded = x[i] * inverse + 12582912.f;
        int32_t n;
        std::memcpy(&n, &rounded, sizeof n);
        n -= 0x4b400000;
        to->levels[i] = static_cast<int8_t>(n);
        sum += n;
      }
      to->minus[g] = -sum;
      to->sums[g] = static_cast<int16_t>(sum);
    }
    to->scale = absmax / 127.f;
  }

  // Quantize: as quantize(), with what an instruction set has.
  template <class Quantize>
  static void pack(void* run, const PackTask& p, int64_t group, Quantize&& quantize_block) {
    auto* tokens = static_cast<GroupsToken*>(run);
    for (int64_t k = p.k_begin; k < p.k_end; k += kGroupsBlock) {
      const int64_t count = std::min(kGroupsBlock, p.K - k);
      for (int64_t t = p.t_begin; t < p.t_end; ++t) {
        const float* x = p.at(t, k);
        alignas(64) float padded[kGroupsBlock];
        if (count < kGroupsBlock) {
          std::memset(padded, 0, sizeof padded);
          std::memcpy(padded, x, static_cast<size_t>(count) * sizeof(float));
          x = padded;
        }
        quantize_block(x, group, tokens + k / kGroupsBlock * p.tokens + t);
      }
    }
  }
};

}  // namespace
}  // namespace oar
