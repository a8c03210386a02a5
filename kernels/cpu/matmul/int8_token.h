// Activations of the integer matmuls: each (token, 256 k) becomes signed bytes under one f32 scale,
// absmax / 127, as ggml's q8_K has it. A function of those 256 values alone, so that a token's bytes do not
// depend on its batch.
//
// Blocks of 16 tokens, the last of a run perhaps of fewer; a block of n tokens lies at its first token times
// bytes(K):
//
//   [K / 64 steps][n tokens][64 k]   the bytes; for 16 tokens each step is an AMX A tile
//   [K / 256 blocks][n] f32          scales
//   [K / 256 blocks][n] int32        -128 * the block's sum: what a dot with w + 128 starts from
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/matmul/block_absmax.h"
#include "kernels/cpu/matmul/int8_panel.h"
#include "kernels/cpu/matmul/matmul_driver.h"

namespace oar {
namespace {  // compiled with the flags of every instruction set

class Int8Tokens {
 public:
  static constexpr int64_t kBlock = kPackTokens;

  static int64_t bytes(int64_t K) { return (panel_k(K) + panel_blocks(K) * 8 + 63) / 64 * 64; }

  // The block of 16 that holds token t of `tokens`, the run packed at x.
  Int8Tokens(const void* x, int64_t K, int64_t tokens, int64_t t)
      : x_(static_cast<const char*>(x) + t / kBlock * kBlock * bytes(K)),
        n_(std::min(kBlock, tokens - t / kBlock * kBlock)),
        scales_(x_ + n_ * panel_k(K)),
        starts_(scales_ + panel_blocks(K) * n_ * 4) {}

  int64_t size() const { return n_; }
  int64_t step_bytes() const { return n_ * kPanelStep; }
  // Token j of the block, step s; the next token is kPanelStep bytes on, the next step step_bytes().
  const int8_t* at(int64_t j, int64_t s) const {
    return reinterpret_cast<const int8_t*>(x_ + s * step_bytes() + j * kPanelStep);
  }
  // Of block b of K, for the n tokens.
  const float* scales(int64_t b) const { return reinterpret_cast<const float*>(scales_ + b * n_ * 4); }
  const int32_t* starts(int64_t b) const { return reinterpret_cast<const int32_t*>(starts_ + b * n_ * 4); }

  // 256 values (missing ones zero) to bytes. A block with a NaN or an infinity gets a NaN scale, which
  // reaches every output of its token. Below 1e-30 a block counts as zero: its reciprocal would overflow.
  static float quantize(const float* v, int8_t* q, int32_t* sum) {
    const float absmax = block_absmax(v, kPanelBlock);
    const bool finite = std::isfinite(absmax);
    *sum = 0;
    if (!finite || absmax <= kLeastAbsmax) {
      std::memset(q, 0, kPanelBlock);
      return finite ? 0.f : __builtin_nanf("");
    }
    const float inverse = 127.f / absmax;
    int32_t total = 0;
    for (int64_t i = 0; i < kPanelBlock; ++i) {
      // Adding 1.5 * 2^23 rounds to an integer, to nearest even, and leaves it in the low bits.
      const float rounded = v[i] * inverse + 12582912.f;
      int32_t n;
      std::memcpy(&n, &rounded, 4);
      n -= 0x4b400000;
      q[i] = static_cast<int8_t>(n);
      total += n;
    }
    *sum = total;
    return absmax / 127.f;
  }

  static void pack(void* run, const PackTask& p) {
    const int64_t n = p.t_end - p.t_begin, blocks = panel_blocks(p.K);
    char* x = static_cast<char*>(run) + p.t_begin * bytes(p.K);
    char* scales = x + n * panel_k(p.K);
    char* starts = scales + blocks * n * 4;
    for (int64_t k = p.k_begin; k < p.k_end; k += kPanelBlock) {
      const int64_t b = k / kPanelBlock, count = std::min(kPanelBlock, p.K - k);
      for (int64_t j = 0; j < n; ++j) {
        const float* v = p.at(p.t_begin + j, k);
        alignas(64) float padded[kPanelBlock];
        if (count < kPanelBlock) {
          std::memset(padded, 0, sizeof padded);
          std::memcpy(padded, v, static_cast<size_t>(count) * sizeof(float));
          v = padded;
        }
        alignas(64) int8_t q[kPanelBlock];
        int32_t sum;
        const float scale = quantize(v, q, &sum);
        const int32_t start = -128 * sum;
        for (int64_t s = 0; s < panel_steps(p.K, b); ++s) {
          std::memcpy(x + ((k / kPanelStep + s) * n + j) * kPanelStep, q + s * kPanelStep, kPanelStep);
        }
        std::memcpy(scales + (b * n + j) * 4, &scale, 4);
        std::memcpy(starts + (b * n + j) * 4, &start, 4);
      }
    }
  }

 private:
  const char* x_;
  int64_t n_;
  const char *scales_, *starts_;
};

}  // namespace
}  // namespace oar
