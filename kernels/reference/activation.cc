// Elementwise kernels, scalar, each element in double.
#include "kernels/activation.h"

#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

constexpr int64_t kElementsPerChunk = 4096;

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double unary(UnaryOp op, double x) {
  constexpr double kSqrtHalf = 0.70710678118654752440;       // 1/sqrt(2)
  constexpr double kSqrtTwoOverPi = 0.79788456080286535588;  // sqrt(2/pi)
  switch (op) {
    case UnaryOp::kNeg: return -x;
    case UnaryOp::kAbs: return std::fabs(x);
    case UnaryOp::kExp: return std::exp(x);
    case UnaryOp::kLog: return std::log(x);
    case UnaryOp::kSqrt: return std::sqrt(x);
    case UnaryOp::kRsqrt: return 1.0 / std::sqrt(x);
    case UnaryOp::kSquare: return x * x;
    case UnaryOp::kReciprocal: return 1.0 / x;
    case UnaryOp::kTanh: return std::tanh(x);
    case UnaryOp::kSigmoid: return sigmoid(x);
    case UnaryOp::kSilu: return x * sigmoid(x);
    case UnaryOp::kRelu: return x > 0 || x != x ? x : 0.0;  // NaN stays NaN
    case UnaryOp::kErf: return std::erf(x);
    case UnaryOp::kGeluErf: return 0.5 * x * (1.0 + std::erf(x * kSqrtHalf));
    case UnaryOp::kGeluTanh: return 0.5 * x * (1.0 + std::tanh(kSqrtTwoOverPi * (x + 0.044715 * x * x * x)));
    case UnaryOp::kSin: return std::sin(x);
    case UnaryOp::kCos: return std::cos(x);
    case UnaryOp::kFloor: return std::floor(x);
  }
  return NAN;
}

// Maximum and minimum let a NaN of either side through, as every array library does.
double binary(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd: return a + b;
    case BinaryOp::kSub: return a - b;
    case BinaryOp::kMul: return a * b;
    case BinaryOp::kDiv: return a / b;
    case BinaryOp::kMax: return a != a || a > b ? a : b;
    case BinaryOp::kMin: return a != a || a < b ? a : b;
    case BinaryOp::kPow: return std::pow(a, b);
  }
  return NAN;
}

void swiglu_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const SwiGluArgs*>(args)->T}};
}

void swiglu_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const SwiGluArgs*>(args);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t f = 0; f < a.F; ++f) {
      double gate = a.gate[t * a.ldg + f], up = a.up[t * a.ldu + f];
      if (a.act == UnaryOp::kSilu && !a.plain()) {
        if (a.limit > 0 && gate > a.limit) gate = a.limit;
        if (a.limit > 0 && std::fabs(up) > a.limit) up = std::copysign(double{a.limit}, up);
        a.out[t * a.ldo + f] = static_cast<float>(gate * sigmoid(a.alpha * gate) * (up + a.up_offset));
      } else {
        a.out[t * a.ldo + f] = static_cast<float>(unary(a.act, gate) * up);
      }
    }
  }
}

void unary_plan(const void* args, int, KernelPlan* out) {
  const int64_t n = static_cast<const UnaryArgs*>(args)->n;
  *out = {1, {(n + kElementsPerChunk - 1) / kElementsPerChunk}};
}

void unary_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const UnaryArgs*>(args);
  for (int64_t i = begin * kElementsPerChunk; i < a.n && i < end * kElementsPerChunk; ++i) {
    a.out[i] = static_cast<float>(unary(a.op, a.x[i]));
  }
}

void binary_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const BinaryArgs*>(args)->rows}};
}

void binary_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const BinaryArgs*>(args);
  const int64_t b_cols = a.b_col != 0 ? a.cols : 1;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) {
      const float b = a.b[i * a.b_row * b_cols + j * a.b_col];
      a.out[i * a.cols + j] = static_cast<float>(binary(a.op, a.a[i * a.cols + j], b));
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kSwiGlu, Isa::kReference, swiglu_plan, swiglu_run},
    {KernelFamily::kUnary, Isa::kReference, unary_plan, unary_run},
    {KernelFamily::kBinary, Isa::kReference, binary_plan, binary_run},
};

}  // namespace

constinit const KernelTable kernels_activation_reference{kEntries};

}  // namespace oar
