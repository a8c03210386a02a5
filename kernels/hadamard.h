// Grouped Hadamard transform of rows (quant/transforms/hadamard.h has the matrices): each run of `block`
// elements is multiplied by the same orthonormal matrix,
//   forward:  out = H (signs * x) / sqrt(block)        inverse:  out = signs * (H^T x) / sqrt(block)
// Roofline: memory. n log2(block) additions per row stay in the first-level cache for blocks up to 8192; a
// dense core of order K adds n K.
#pragma once

#include "kernels/kernel.h"

namespace oar {

inline constexpr int kMaxHadamardCores = 4;

struct HadamardArgs {
  uint32_t size = sizeof(HadamardArgs);
  uint32_t version = 1;
  float* out = nullptr;          // [rows, n], row stride ldo; may equal x (with ldo = ldx)
  const float* x = nullptr;      // [rows, n], row stride ldx
  const float* signs = nullptr;  // [n] of +-1, or of any factors: signs times scales; null: all +1
  // Dense cores, innermost first: [order, order] of +-1; for the inverse the caller passes them transposed.
  const float* cores[kMaxHadamardCores] = {};
  int64_t core_order[kMaxHadamardCores] = {};
  int32_t num_cores = 0;
  int32_t inverse = 0;
  int64_t rows = 0, n = 0, ldx = 0, ldo = 0;
  int64_t block = 1;  // divides n; product of the core orders and `power`
  int64_t power = 1;  // the power of two in it
};

}  // namespace oar
