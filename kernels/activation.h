// Elementwise kernels. Memory bound.
#pragma once

#include "kernels/kernel.h"

namespace oar {

enum class UnaryOp : int32_t {
  kNeg,
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kSquare,
  kReciprocal,
  kTanh,
  kSigmoid,
  kSilu,
  kRelu,
  kErf,
  kGeluErf,   // x/2 (1 + erf(x / sqrt 2))
  kGeluTanh,  // x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kSin,
  kCos,
  kFloor,
};
// out[t, f] = act(gate[t, f]) * up[t, f]; act is silu, a / (1 + exp(-a)), or kGeluTanh.
// https://arxiv.org/abs/2002.05202
// Of silu there is a kin, as in gpt-oss: g / (1 + exp(-alpha g)) * (u + up_offset) with g = min(gate, limit)
// and u = up within [-limit, limit].
struct SwiGluArgs {
  uint32_t size = sizeof(SwiGluArgs);
  uint32_t version = 1;
  float* out = nullptr;         // [T, F], row stride ldo
  const float* gate = nullptr;  // [T, F], row stride ldg
  const float* up = nullptr;    // [T, F], row stride ldu
  int64_t T = 0, F = 0, ldo = 0, ldg = 0, ldu = 0;
  UnaryOp act = UnaryOp::kSilu;
  // Of silu alone.
  float alpha = 1;  // above 0
  float limit = 0;  // 0: none
  float up_offset = 0;
  OAR_HD bool plain() const { return alpha == 1 && limit == 0 && up_offset == 0; }
};

struct UnaryArgs {
  uint32_t size = sizeof(UnaryArgs);
  uint32_t version = 1;
  float* out = nullptr;  // [n]; may equal x
  const float* x = nullptr;
  int64_t n = 0;
  UnaryOp op = UnaryOp::kNeg;
};

enum class BinaryOp : int32_t { kAdd, kSub, kMul, kDiv, kMax, kMin, kPow };
// out[i, j] = a[i, j] op b[i * b_row, j * b_col]: b_row, b_col in {0, 1} broadcast a row, a column or a
// scalar.
struct BinaryArgs {
  uint32_t size = sizeof(BinaryArgs);
  uint32_t version = 1;
  float* out = nullptr;  // [rows, cols]
  const float* a = nullptr;
  const float* b = nullptr;  // [rows or 1, cols or 1], row-major with its own extent
  int64_t rows = 0, cols = 0;
  int32_t b_row = 1, b_col = 1;
  BinaryOp op = BinaryOp::kAdd;
};

}  // namespace oar
