// bf16 weights in place, row by row: a lane's loads are 16 bytes, those of a quad 64 side by side.
#pragma once

#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul_tensor.h"

namespace oar::cuda {

// Elements [k, k + 8) of a row of K weights; zeros beyond its end.
template <bool kAligned>
OAR_DEVICE uint4 load_weights(const uint16_t* row, int64_t k, int64_t K) {
  if constexpr (kAligned) {
    return k < K ? load_once(row + k) : make_uint4(0, 0, 0, 0);
  } else {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = k + 2 * i < K ? row[k + 2 * i] : 0,
                     high = k + 2 * i + 1 < K ? row[k + 2 * i + 1] : 0;
      pair[i] = low | high << 16;
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
}

template <bool kAligned>
struct Bf16Rows {
  static constexpr XOrder kOrder = XOrder::kAsItIs;
  static constexpr int kSums = 0;
  static constexpr int kBlocks = 2;  // of a multiprocessor, of few rows
  template <int kLength>
  struct Part {
    uint4 words[2][kLength / 32];

    OAR_DEVICE void load(const ProductRows& p, const ProductMatrix& matrix, int64_t n, int64_t k) {
      const int g = lane() / 4, t = lane() % 4;
      const auto* w = static_cast<const uint16_t*>(matrix.w) + (n + g) * p.K;
      const bool upper = n + g < matrix.n, lower = n + g + 8 < matrix.n;
#pragma unroll
      for (int i = 0; i < kLength / 32; ++i) {
        const int64_t at = k + 32 * i + 8 * t;
        words[0][i] = upper ? load_weights<kAligned>(w, at, p.K) : make_uint4(0, 0, 0, 0);
        words[1][i] = lower ? load_weights<kAligned>(w + 8 * p.K, at, p.K) : make_uint4(0, 0, 0, 0);
      }
    }

    template <class Sums>
    OAR_DEVICE void multiply(float (&acc)[4], int i, uint4 h, uint4 l, const Sums&) const {
      const uint4 a = words[0][i], b = words[1][i];
      mma_bf16(acc, {a.x, b.x, a.y, b.y}, {l.x, l.y});
      mma_bf16(acc, {a.x, b.x, a.y, b.y}, {h.x, h.y});
      mma_bf16(acc, {a.z, b.z, a.w, b.w}, {l.z, l.w});
      mma_bf16(acc, {a.z, b.z, a.w, b.w}, {h.z, h.w});
    }
  };
};

}  // namespace oar::cuda
