// Functions of one element that several kernels share, so that what is fused gives the bits of what is not.
// No approximation of fast math: each is within a few units in the last place of the reference's double.
#pragma once

#include <cmath>

#include "kernels/activation.h"
#include "kernels/conv.h"
#include "kernels/cuda/device.h"

namespace oar::cuda {

// x / d for d in [1, 2^126], and 0 beyond, within 2 units in the last place; an ordinary division calls a
// function for rare cases.
OAR_DEVICE float quotient(float x, float d) { return __fdividef(x, d); }
OAR_DEVICE float sigmoid(float x) { return quotient(1.f, 1.f + expf(-x)); }
// exp(x - y) of softmaxes, x <= y; 0 where x is -infinity.
OAR_DEVICE float softmax_shrink(float x, float y) { return exp2f((x - y) * 1.4426950408889634f); }
OAR_DEVICE float silu(float x) { return quotient(x, 1.f + expf(-x)); }

// x/2 (1 + erf(x / sqrt 2)) without the cancellation on the left.
OAR_DEVICE float gelu_erf(float x) {
  constexpr float kSqrtHalf = 0.70710678118654752f;
  return 0.5f * x * erfcf(-x * kSqrtHalf);
}

// x/2 (1 + tanh u) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
OAR_DEVICE float gelu_tanh(float x) {
  constexpr float kTwoSqrtTwoOverPi = 1.5957691216057308f;
  return quotient(x, 1.f + expf(-kTwoSqrtTwoOverPi * (x + 0.044715f * x * x * x)));
}

// act(gate) * up of SwiGluArgs.
OAR_DEVICE float gated(UnaryOp act, float gate, float up) {
  return (act == UnaryOp::kGeluTanh ? gelu_tanh(gate) : silu(gate)) * up;
}

// The same of what SwiGluArgs asks.
OAR_DEVICE float gated(const SwiGluArgs& a, float gate, float up) {
  if (a.act != UnaryOp::kSilu || a.plain()) return gated(a.act, gate, up);
  if (a.limit > 0.f) {
    gate = gate > a.limit ? a.limit : gate;
    up = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
  }
  return quotient(gate, 1.f + expf(-a.alpha * gate)) * (up + a.up_offset);
}

// NaN stays NaN, as in every array library.
OAR_DEVICE float unary(UnaryOp op, float x) {
  switch (op) {
    case UnaryOp::kNeg: return -x;
    case UnaryOp::kAbs: return fabsf(x);
    case UnaryOp::kExp: return expf(x);
    case UnaryOp::kLog: return logf(x);
    case UnaryOp::kSqrt: return sqrtf(x);
    case UnaryOp::kRsqrt: return 1.f / sqrtf(x);
    case UnaryOp::kSquare: return x * x;
    case UnaryOp::kReciprocal: return 1.f / x;
    case UnaryOp::kTanh: return tanhf(x);
    case UnaryOp::kSigmoid: return sigmoid(x);
    case UnaryOp::kSilu: return silu(x);
    case UnaryOp::kRelu: return x > 0.f || x != x ? x : 0.f;
    case UnaryOp::kErf: return erff(x);
    case UnaryOp::kGeluErf: return gelu_erf(x);
    case UnaryOp::kGeluTanh: return gelu_tanh(x);
    case UnaryOp::kSin:  // unary.cu has a kernel of their own
    case UnaryOp::kCos: break;
    case UnaryOp::kFloor: return floorf(x);
  }
  return NAN;
}

OAR_DEVICE float binary(BinaryOp op, float a, float b) {
  switch (op) {
    case BinaryOp::kAdd: return __fadd_rn(a, b);
    case BinaryOp::kSub: return a - b;
    case BinaryOp::kMul: return __fmul_rn(a, b);
    case BinaryOp::kDiv: return a / b;
    case BinaryOp::kMax: return a != a || a > b ? a : b;
    case BinaryOp::kMin: return a != a || a < b ? a : b;
    case BinaryOp::kPow: return powf(a, b);
  }
  return NAN;
}

// As epilogue_value() of kernels/conv.h.
OAR_DEVICE float epilogue(Epilogue kind, float x, float alpha, float beta) {
  switch (kind) {
    case Epilogue::kNone: return x;
    case Epilogue::kClamp: return x < alpha ? alpha : x > beta ? beta : x;
    case Epilogue::kSigmoid: return sigmoid(x);
    case Epilogue::kSilu: return silu(x);
    case Epilogue::kHardSigmoid: {
      const float y = alpha * x + beta;
      return y < 0.f ? 0.f : y > 1.f ? 1.f : y;
    }
    case Epilogue::kHardSwish: {
      const float y = alpha * x + beta;
      return x * (y < 0.f ? 0.f : y > 1.f ? 1.f : y);
    }
    case Epilogue::kLeakyRelu: return x < 0.f ? alpha * x : x;
    case Epilogue::kTanh: return tanhf(x);
    case Epilogue::kGelu: return gelu_erf(x);
    case Epilogue::kGeluTanh: return gelu_tanh(x);
    case Epilogue::kElu:  // the processor's
    case Epilogue::kSoftplus:
    case Epilogue::kSoftsign:
    case Epilogue::kMish: break;
  }
  return NAN;
}

// Sine and cosine of a rotation: the angle is reduced in double, so positions up to 2^31 keep the accuracy of
// f32. Polynomials on [-pi/4, pi/4] as Cephes has them (https://netlib.org/cephes, sinf.c): below 2^-23.
OAR_DEVICE void sine_cosine(double angle, float* sine, float* cosine) {
  constexpr double kTwoOverPi = 0.63661977236758134308;
  constexpr double kHalfPi = 1.57079632679489661923, kRest = 6.123233995736766036e-17;  // pi / 2 in two
  const double quarters = rint(angle * kTwoOverPi);
  const float r = static_cast<float>(fma(-quarters, kRest, fma(-quarters, kHalfPi, angle)));
  const float z = r * r;
  const float s = r + r * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
  const float c = 1.f - 0.5f * z +
                  z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
  const int quadrant = static_cast<int>(static_cast<int64_t>(quarters) & 3);
  const float u = quadrant % 2 == 0 ? s : c, v = quadrant % 2 == 0 ? c : s;
  *sine = quadrant >= 2 ? -u : u;
  *cosine = quadrant == 1 || quadrant == 2 ? -v : v;
}

}  // namespace oar::cuda
