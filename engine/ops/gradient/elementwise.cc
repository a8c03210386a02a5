// Of numbers one by one. What is broadcast gets the sum of its copies' gradients.
#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"

namespace oar::gradient {
namespace {

// d where the condition holds, else 0.
Val only(Builder& b, Val condition, Val d) { return b.op("where", {condition, d, b.scalar(0)}); }
Val unless(Builder& b, Val condition, Val d) { return b.op("where", {condition, b.scalar(0), d}); }
Vals scaled(const Pullback& p, Val by) { return {p.b.op("mul", {p.d[0], by})}; }
Val square_of(Builder& b, Val v) { return b.op("square", {v}); }
Val one_less(Builder& b, Val v) { return b.op("sub", {b.scalar(1), v}); }

// Of {axis} the second operand is lined up for `way`, and its gradient shaped back.
template <class Way>
Vals along(const Pullback& p, const Way& way) {
  if (!p.attrs.has("axis") || !p.b.status().ok()) return way(p);
  const DimVector own = p.b.shape(p.in[1]);
  const auto dims = lined_up(p.b.shape(p.in[0]).size(), own, p.attrs);
  if (!dims.ok()) return p.b.fail(dims.status()), Vals{};
  const Val in[] = {p.in[0], shaped(p.b, p.in[1], *dims)};
  Vals out = way(Pullback{p.b, in, p.out, p.d, p.wanted, p.attrs});
  if (out.size() > 1 && out[1]) out[1] = shaped(p.b, out[1], own);
  return out;
}

// Of an op whose operands broadcast like NumPy's.
Vals summed(const Pullback& p, Val a, Val b) {
  return {wants(p, 0) ? sum_to(p.b, a, p.in[0]) : Val{}, wants(p, 1) ? sum_to(p.b, b, p.in[1]) : Val{}};
}

Vals add_back(const Pullback& p) { return summed(p, p.d[0], p.d[0]); }
Vals sub_back(const Pullback& p) { return summed(p, p.d[0], p.b.op("neg", {p.d[0]})); }
Vals mul_back(const Pullback& p) {
  return summed(p, p.b.op("mul", {p.d[0], p.in[1]}), p.b.op("mul", {p.d[0], p.in[0]}));
}
// d / b and -d / b y
Vals div_back(const Pullback& p) {
  const Val a = p.b.op("div", {p.d[0], p.in[1]});
  return summed(p, a, p.b.op("neg", {p.b.op("mul", {a, p.out[0]})}));
}
// Of equals the second operand gets all: max(x, 0) has slope 0 at 0.
Vals max_back(const Pullback& p) {
  const Val first = p.b.op("greater", {p.in[0], p.in[1]});
  return summed(p, only(p.b, first, p.d[0]), unless(p.b, first, p.d[0]));
}
Vals min_back(const Pullback& p) {
  const Val first = p.b.op("less", {p.in[0], p.in[1]});
  return summed(p, only(p.b, first, p.d[0]), unless(p.b, first, p.d[0]));
}
// d b a^(b - 1), 0 where b is, and d y log a, 0 where a is not positive
Vals pow_back(const Pullback& p) {
  Builder& b = p.b;
  const Val none = b.scalar(0), power = b.op("pow", {p.in[0], plus(b, p.in[1], -1)});
  const Val base = unless(b, b.op("equal", {p.in[1], none}), b.op("mul", {p.in[1], power}));
  Val exponent;
  if (wants(p, 1)) {
    const Val positive = b.op("greater", {p.in[0], none});
    const Val logarithm = b.op("log", {b.op("where", {positive, p.in[0], b.scalar(1)})});
    exponent = b.op("mul", {p.d[0], only(b, positive, b.op("mul", {p.out[0], logarithm}))});
  }
  return summed(p, b.op("mul", {p.d[0], base}), exponent);
}

}  // namespace

Vals neg(const Pullback& p) { return {p.b.op("neg", {p.d[0]})}; }
Vals abs(const Pullback& p) { return scaled(p, p.b.op("sign", {p.in[0]})); }
Vals exp(const Pullback& p) { return scaled(p, p.out[0]); }
Vals log(const Pullback& p) { return {p.b.op("div", {p.d[0], p.in[0]})}; }
Vals sqrt(const Pullback& p) { return {p.b.op("div", {times(p.b, p.d[0], 0.5), p.out[0]})}; }
// -1/2 y^3
Vals rsqrt(const Pullback& p) {
  return scaled(p, times(p.b, p.b.op("mul", {p.out[0], square_of(p.b, p.out[0])}), -0.5));
}
Vals square(const Pullback& p) { return scaled(p, times(p.b, p.in[0], 2)); }
Vals reciprocal(const Pullback& p) { return scaled(p, p.b.op("neg", {square_of(p.b, p.out[0])})); }
Vals tanh(const Pullback& p) { return scaled(p, one_less(p.b, square_of(p.b, p.out[0]))); }
Vals sigmoid(const Pullback& p) { return scaled(p, p.b.op("mul", {p.out[0], one_less(p.b, p.out[0])})); }
// 2 / sqrt(pi) exp(-x^2)
Vals erf(const Pullback& p) {
  const Val bell = p.b.op("exp", {p.b.op("neg", {square_of(p.b, p.in[0])})});
  return scaled(p, times(p.b, bell, 1.1283791670955126));
}
Vals sin(const Pullback& p) { return scaled(p, p.b.op("cos", {p.in[0]})); }
Vals cos(const Pullback& p) { return scaled(p, p.b.op("neg", {p.b.op("sin", {p.in[0]})})); }
Vals acos(const Pullback& p) { return {p.b.op("neg", {asin(p)[0]})}; }
Vals acosh(const Pullback& p) { return scaled(p, p.b.op("rsqrt", {plus(p.b, square_of(p.b, p.in[0]), -1)})); }
Vals asin(const Pullback& p) { return scaled(p, p.b.op("rsqrt", {one_less(p.b, square_of(p.b, p.in[0]))})); }
Vals asinh(const Pullback& p) { return scaled(p, p.b.op("rsqrt", {plus(p.b, square_of(p.b, p.in[0]), 1)})); }
Vals atan(const Pullback& p) { return {p.b.op("div", {p.d[0], plus(p.b, square_of(p.b, p.in[0]), 1)})}; }
Vals atanh(const Pullback& p) { return {p.b.op("div", {p.d[0], one_less(p.b, square_of(p.b, p.in[0]))})}; }
Vals cosh(const Pullback& p) { return scaled(p, p.b.op("sinh", {p.in[0]})); }
Vals sinh(const Pullback& p) { return scaled(p, p.b.op("cosh", {p.in[0]})); }
Vals tan(const Pullback& p) { return scaled(p, plus(p.b, square_of(p.b, p.out[0]), 1)); }

Vals add(const Pullback& p) { return along(p, add_back); }
Vals sub(const Pullback& p) { return along(p, sub_back); }
Vals mul(const Pullback& p) { return along(p, mul_back); }
Vals div(const Pullback& p) { return along(p, div_back); }
Vals max(const Pullback& p) { return along(p, max_back); }
Vals min(const Pullback& p) { return along(p, min_back); }
Vals pow(const Pullback& p) { return along(p, pow_back); }

// clip(x, low, high): who decides what a result is gets its gradient; bounds pass x.
Vals clip(const Pullback& p) {
  Builder& b = p.b;
  Vals out{p.d[0], {}, {}};
  const char* const beyond[] = {"", "less", "greater"};
  for (size_t k = 1; k < 3; ++k) {
    if (!given(p.in, k)) continue;
    const Val held = b.op(beyond[k], {p.in[0], p.in[k]});
    out[0] = unless(b, held, out[0]);
    if (wants(p, k)) out[k] = sum_to(b, only(b, held, p.d[0]), p.in[k]);
  }
  out.resize(p.in.size());
  return out;
}
Vals prelu(const Pullback& p) {
  Builder& b = p.b;
  Val slope = p.in[1];
  if (!b.status().ok()) return {};
  // One slope per channel of (N, C, ...) may be spelled without the axes behind it.
  const DimVector x = b.shape(p.in[0]);
  if (b.shape(slope).size() == 1 && x.size() > 2 && b.shape(slope)[0] == x[1] && !(x[1] == x.back())) {
    DimVector column(x.size() - 1, Dim(1));
    column[0] = x[1];
    slope = shaped(b, slope, column);
  }
  const Val below = b.op("less", {p.in[0], b.scalar(0)});
  const Val own = b.op("where", {below, b.op("mul", {p.d[0], slope}), p.d[0]});
  const Val by_slope = sum_to(b, only(b, below, b.op("mul", {p.d[0], p.in[0]})), slope);
  return {own, b.status().ok() ? shaped(b, by_slope, b.shape(p.in[1])) : Val{}};
}
Vals shrink(const Pullback& p) {
  const Val far = p.b.op("greater", {p.b.op("abs", {p.in[0]}), p.b.scalar(p.attrs.get_float("lambd", 0.5))});
  return {only(p.b, far, p.d[0])};
}
Vals thresholded_relu(const Pullback& p) {
  const Val above = p.b.op("greater", {p.in[0], p.b.scalar(p.attrs.get_float("alpha", 1))});
  return {only(p.b, above, p.d[0])};
}
Vals where(const Pullback& p) {
  return {{},
          wants(p, 1) ? sum_to(p.b, only(p.b, p.in[0], p.d[0]), p.in[1]) : Val{},
          wants(p, 2) ? sum_to(p.b, unless(p.b, p.in[0], p.d[0]), p.in[2]) : Val{}};
}

}  // namespace oar::gradient
