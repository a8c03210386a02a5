// Elementwise kernels for one instruction set; included by elementwise_<isa>.cc.
#pragma once

#include "kernels/activation.h"
#include "kernels/cpu/gelu_simd.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

// --- SwiGLU: chunks are rows, or column ranges of them when there are few wide rows ---

inline constexpr int64_t kSwiGluCols = 2048;  // columns of one unit: 24 KB in and out

OAR_INLINE int64_t swiglu_units(const SwiGluArgs& a) { return a.T * ceil_div(a.F, kSwiGluCols); }
OAR_INLINE int64_t swiglu_per(const SwiGluArgs& a) {
  return rows_per_chunk(swiglu_units(a), (a.F < kSwiGluCols ? a.F : kSwiGluCols) * 12);
}

inline void swiglu_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const SwiGluArgs*>(args);
  *out = {1, {row_chunks(swiglu_units(a), swiglu_per(a))}};
}

inline void swiglu_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const SwiGluArgs*>(args);
  const int64_t per = swiglu_per(a), units = swiglu_units(a), pieces = ceil_div(a.F, kSwiGluCols);
  const int64_t last = end * per < units ? end * per : units;
  for (int64_t u = begin * per; u < last; ++u) {
    const int64_t t = u / pieces, f = u % pieces * kSwiGluCols;
    const float *gate = a.gate + t * a.ldg + f, *up = a.up + t * a.ldu + f;
    float* out = a.out + t * a.ldo + f;
    const int64_t cols = a.F - f < kSwiGluCols ? a.F - f : kSwiGluCols;
    if (a.act == UnaryOp::kGeluTanh) {
      for_lanes(cols, [&](int64_t i, int64_t n) {
        store_part(out + i, gelu_tanh(load_part(gate + i, n)) * load_part(up + i, n), n);
      });
    } else if (a.plain()) {
      for_lanes(cols, [&](int64_t i, int64_t n) {
        store_part(out + i, silu(load_part(gate + i, n)) * load_part(up + i, n), n);
      });
    } else {
      // min() and max() return their second operand where one is NaN.
      const Vf limit = set1(a.limit > 0 ? a.limit : INFINITY), alpha = set1(a.alpha);
      for_lanes(cols, [&](int64_t i, int64_t n) {
        const Vf g = min(limit, load_part(gate + i, n));
        const Vf u = max(zero() - limit, min(limit, load_part(up + i, n)));
        store_part(out + i, g / (set1(1.f) + exp(zero() - alpha * g)) * (u + set1(a.up_offset)), n);
      });
    }
  }
}

// --- Unary ---

template <class F>
OAR_INLINE void map(const UnaryArgs& a, int64_t begin, int64_t end, F&& f) {
  for_lanes(end - begin, [&](int64_t i, int64_t n) {
    store_part(a.out + begin + i, f(load_part(a.x + begin + i, n)), n);
  });
}
// For the two whose range reduction a vector version would have to repeat from libm.
template <class F>
OAR_INLINE void map_scalar(const UnaryArgs& a, int64_t begin, int64_t end, F&& f) {
  for (int64_t i = begin; i < end; ++i) a.out[i] = f(a.x[i]);
}

OAR_INLINE int64_t unary_per(int64_t n) {
  const int64_t per = rows_per_chunk(n, 2 * sizeof(float));
  return ceil_div(per, 16) * 16;  // whole cache lines
}

inline void unary_plan(const void* args, int, KernelPlan* out) {
  const int64_t n = static_cast<const UnaryArgs*>(args)->n;
  *out = {1, {row_chunks(n, unary_per(n))}};
}

inline void unary_run(const void* args, int, int64_t begin_chunk, int64_t end_chunk, const KernelScratch&) {
  const auto& a = *static_cast<const UnaryArgs*>(args);
  const int64_t per = unary_per(a.n), begin = begin_chunk * per;
  const int64_t end = end_chunk * per < a.n ? end_chunk * per : a.n;
  if (begin >= end) return;
  switch (a.op) {
    case UnaryOp::kNeg: return map(a, begin, end, [](Vf x) { return -x; });
    case UnaryOp::kAbs: return map(a, begin, end, [](Vf x) { return abs(x); });
    case UnaryOp::kExp: return map(a, begin, end, [](Vf x) { return exp(x); });
    case UnaryOp::kLog: return map(a, begin, end, [](Vf x) { return log(x); });
    case UnaryOp::kSqrt: return map(a, begin, end, [](Vf x) { return sqrt(x); });
    case UnaryOp::kRsqrt: return map(a, begin, end, [](Vf x) { return set1(1.f) / sqrt(x); });
    case UnaryOp::kSquare: return map(a, begin, end, [](Vf x) { return x * x; });
    case UnaryOp::kReciprocal: return map(a, begin, end, [](Vf x) { return set1(1.f) / x; });
    case UnaryOp::kTanh: return map(a, begin, end, [](Vf x) { return tanh(x); });
    case UnaryOp::kSigmoid: return map(a, begin, end, [](Vf x) { return sigmoid(x); });
    case UnaryOp::kSilu: return map(a, begin, end, [](Vf x) { return silu(x); });
    case UnaryOp::kRelu: return map(a, begin, end, [](Vf x) { return max(set1(0.f), x); });
    case UnaryOp::kErf: return map(a, begin, end, [](Vf x) { return erf(x); });
    case UnaryOp::kGeluErf: return map(a, begin, end, [](Vf x) { return gelu_erf(x); });
    case UnaryOp::kGeluTanh: return map(a, begin, end, [](Vf x) { return gelu_tanh(x); });
    case UnaryOp::kSin: return map_scalar(a, begin, end, [](float x) { return sinf(x); });
    case UnaryOp::kCos: return map_scalar(a, begin, end, [](float x) { return cosf(x); });
    case UnaryOp::kFloor: return map(a, begin, end, [](Vf x) { return floor(x); });
  }
}

// --- Binary ---

template <class F>
OAR_INLINE void binary_row(const float* a, const float* b, int32_t b_col, float* out, int64_t cols, F&& f) {
  const Vf scalar = set1(b[0]);
  for_lanes(cols, [&](int64_t i, int64_t n) {
    store_part(out + i, f(load_part(a + i, n), b_col != 0 ? load_part(b + i, n) : scalar), n);
  });
}

// Operands that walk together, or meet one number, are one row: chunks are then runs of elements.
OAR_INLINE bool binary_flat(const BinaryArgs& a) { return (a.b_row != 0) == (a.b_col != 0); }
OAR_INLINE int64_t binary_per(const BinaryArgs& a) {
  if (binary_flat(a)) return ceil_div(rows_per_chunk(a.rows * a.cols, 12), kLanes) * kLanes;
  return rows_per_chunk(a.rows, a.cols * 12);
}

inline void binary_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const BinaryArgs*>(args);
  *out = {1, {row_chunks(binary_flat(a) ? a.rows * a.cols : a.rows, binary_per(a))}};
}

inline void binary_part(const BinaryArgs& a, const float* x, const float* b, float* out, int64_t n) {
  switch (a.op) {
    case BinaryOp::kAdd: return binary_row(x, b, a.b_col, out, n, [](Vf p, Vf q) { return p + q; });
    case BinaryOp::kSub: return binary_row(x, b, a.b_col, out, n, [](Vf p, Vf q) { return p - q; });
    case BinaryOp::kMul: return binary_row(x, b, a.b_col, out, n, [](Vf p, Vf q) { return p * q; });
    case BinaryOp::kDiv: return binary_row(x, b, a.b_col, out, n, [](Vf p, Vf q) { return p / q; });
    case BinaryOp::kMax:  // max() gives its second operand on NaN: a NaN in p is put back
      return binary_row(x, b, a.b_col, out, n, [](Vf p, Vf q) { return select(is_nan(p), p, max(p, q)); });
    case BinaryOp::kMin:
      return binary_row(x, b, a.b_col, out, n, [](Vf p, Vf q) { return select(is_nan(p), p, min(p, q)); });
    case BinaryOp::kPow:
      for (int64_t j = 0; j < n; ++j) out[j] = powf(x[j], b[j * a.b_col]);
  }
}

inline void binary_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const BinaryArgs*>(args);
  const int64_t per = binary_per(a), units = binary_flat(a) ? a.rows * a.cols : a.rows;
  const int64_t from = begin * per, last = end * per < units ? end * per : units;
  if (a.cols == 0 || from >= last) return;
  if (binary_flat(a)) return binary_part(a, a.a + from, a.b + from * a.b_col, a.out + from, last - from);
  const int64_t b_cols = a.b_col != 0 ? a.cols : 1;
  for (int64_t r = from; r < last; ++r)
    binary_part(a, a.a + r * a.cols, a.b + r * a.b_row * b_cols, a.out + r * a.cols, a.cols);
}

}  // namespace oar::OAR_SIMD_NAMESPACE
