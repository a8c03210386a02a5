// Elementwise ops, comparisons, reductions and products of Paddle (phi/ops/yaml/ops.yaml).
#include <cmath>
#include <limits>

#include "engine/import/paddle_node.h"

namespace oar::paddle {
namespace {

// y aligned to x's axes from `axis` on, as a ProgramDesc's elementwise ops may ask.
Val aligned(Node& n, Val y) {
  const int64_t axis = n.get_int("axis", -1);
  if (axis < 0) return y;
  const int x_rank = n.rank(0), y_rank = n.rank(1);
  const int64_t behind = x_rank - axis - y_rank;
  if (behind <= 0 || y_rank == 0) return y;
  if (axis + y_rank > x_rank) {
    n.fail(invalid_argument(
        cat("attribute 'axis' is ", axis, " for operands of rank ", x_rank, " and ", y_rank)));
    return y;
  }
  std::vector<int64_t> axes;
  for (int64_t k = 0; k < behind; ++k) axes.push_back(y_rank + k);
  return n.unsqueeze(y, axes);
}

template <const char* kOp>
void binary(Node& n) {
  n.out(0, n.w().op(kOp, {n.in(0), aligned(n, n.in(1))}));
}
template <const char* kOp>
void unary(Node& n) {
  n.out(0, n.w().op(kOp, {n.in(0)}));
}
#define OAR_BINARY(op)               \
  constexpr char kName_##op[] = #op; \
  void op(Node& n) { binary<kName_##op>(n); }
#define OAR_UNARY(op)                \
  constexpr char kName_##op[] = #op; \
  void op(Node& n) { unary<kName_##op>(n); }

OAR_BINARY(add)
OAR_BINARY(sub)
OAR_BINARY(mul)
OAR_BINARY(div)
OAR_BINARY(max)
OAR_BINARY(min)
OAR_BINARY(equal)
OAR_BINARY(not_equal)
OAR_BINARY(greater)
OAR_BINARY(greater_equal)
OAR_BINARY(less)
OAR_BINARY(less_equal)
OAR_UNARY(abs)
OAR_UNARY(acos)
OAR_UNARY(acosh)
OAR_UNARY(asin)
OAR_UNARY(asinh)
OAR_UNARY(atan)
OAR_UNARY(atanh)
OAR_UNARY(ceil)
OAR_UNARY(cos)
OAR_UNARY(cosh)
OAR_UNARY(erf)
OAR_UNARY(exp)
OAR_UNARY(floor)
OAR_UNARY(is_nan)
OAR_UNARY(is_inf)
OAR_UNARY(log)
OAR_UNARY(mish)
OAR_UNARY(neg)
OAR_UNARY(reciprocal)
OAR_UNARY(relu)
OAR_UNARY(round)
OAR_UNARY(rsqrt)
OAR_UNARY(sigmoid)
OAR_UNARY(sign)
OAR_UNARY(sin)
OAR_UNARY(sinh)
OAR_UNARY(softsign)
OAR_UNARY(sqrt)
OAR_UNARY(square)
OAR_UNARY(tan)
OAR_UNARY(tanh)

void identity(Node& n) {
  n.ignore_in(1);  // assign_out's destination
  n.out(0, n.in(0));
}
void is_finite(Node& n) {
  const Val bad = n.w().op("logical_or", {n.w().op("is_nan", {n.in(0)}), n.w().op("is_inf", {n.in(0)})});
  n.out(0, n.w().op("logical_not", {bad}));
}

// Bits of integers, logic of booleans.
void bits(Node& n, const char* integer, const char* boolean, bool one) {
  const char* op = n.dtype(0) == DType::kBool ? boolean : integer;
  n.out(0, one ? n.w().op(op, {n.in(0)}) : n.w().op(op, {n.in(0), n.in(1)}));
}
void bitwise_and(Node& n) { bits(n, "bitwise_and", "logical_and", false); }
void bitwise_or(Node& n) { bits(n, "bitwise_or", "logical_or", false); }
void bitwise_xor(Node& n) { bits(n, "bitwise_xor", "logical_xor", false); }
void bitwise_not(Node& n) { bits(n, "bitwise_not", "logical_not", true); }

// Any number counts as true unless it is zero.
Val truth(Node& n, size_t i) { return n.dtype(i) == DType::kBool ? n.in(i) : n.cast(n.in(i), DType::kBool); }
void logical_and(Node& n) { n.out(0, n.w().op("logical_and", {truth(n, 0), truth(n, 1)})); }
void logical_or(Node& n) { n.out(0, n.w().op("logical_or", {truth(n, 0), truth(n, 1)})); }
void logical_xor(Node& n) { n.out(0, n.w().op("logical_xor", {truth(n, 0), truth(n, 1)})); }
void logical_not(Node& n) { n.out(0, n.w().op("logical_not", {truth(n, 0)})); }

Val modulo(Node& n, Val x, Val y) {
  if (!dtype_is_float(n.dtype(0))) return n.w().op("mod", {x, y});
  // The sign of the divisor: x - floor(x / y) * y.
  return n.w().op("sub", {x, n.w().op("mul", {n.w().op("floor", {n.w().op("div", {x, y})}), y})});
}
void remainder(Node& n) { n.out(0, modulo(n, n.in(0), aligned(n, n.in(1)))); }
void floor_divide(Node& n) {
  const Val x = n.in(0), y = aligned(n, n.in(1));
  if (dtype_is_float(n.dtype(0))) return n.out(0, n.w().op("floor", {n.w().op("div", {x, y})}));
  n.out(0, n.w().op("div", {n.w().op("sub", {x, n.w().op("mod", {x, y})}), y}));
}
void elementwise_pow(Node& n) { n.out(0, n.w().op("pow", {n.in(0), aligned(n, n.in(1))})); }
void pow_scalar(Node& n) { n.out(0, n.w().op("pow", {n.in(0), n.scalar_in(1, "factor|y", 1, n.dtype(0))})); }

// x * scale + bias, or (x + bias) * scale.
void scale(Node& n) {
  const DType dtype = n.dtype(0);
  const double bias = n.get_float("bias", 0);
  const auto known = n.known_scalar(1, "scale", 1);
  Val x = n.in(0);
  auto times = [&] {
    if (!known || *known != 1) x = n.w().op("mul", {x, n.scalar_in(1, "scale", 1, dtype)});
  };
  if (n.get_bool("bias_after_scale", true)) times();
  if (bias != 0) x = n.w().op("add", {x, n.number(bias, dtype)});
  if (!n.get_bool("bias_after_scale", true)) times();
  n.out(0, x);
}

void add_n(Node& n) {
  const std::vector<Val> x = n.list(0);
  if (x.empty()) return n.fail(invalid_argument("a sum of nothing"));
  Val sum = x[0];
  for (size_t k = 1; k < x.size(); ++k) sum = n.w().op("add", {sum, x[k]});
  n.out(0, sum);
}

void clip(Node& n) {
  const DType dtype = n.dtype(0);
  n.out(0, n.w().op("clip", {n.in(0), n.scalar_in(1, "min", 0, dtype), n.scalar_in(2, "max", 0, dtype)}));
}
void relu6(Node& n) {
  const DType dtype = n.dtype(0);
  n.out(0, n.w().op("clip", {n.in(0), n.number(0, dtype), n.number(n.get_float("threshold", 6), dtype)}));
}
void hardsigmoid(Node& n) {
  n.out(0, n.w().op("hard_sigmoid", {n.in(0)},
                    {{"alpha", n.get_float("slope", 0.2)}, {"beta", n.get_float("offset", 0.5)}}));
}
void hardswish(Node& n) {
  if (n.get_float("threshold", 6) != 6 || n.get_float("scale", 6) != 6 || n.get_float("offset", 3) != 3) {
    const DType d = n.dtype(0);
    const Val gate = n.w().op("clip", {n.w().op("add", {n.in(0), n.number(n.get_float("offset", 3), d)}),
                                       n.number(0, d), n.number(n.get_float("threshold", 6), d)});
    return n.out(0,
                 n.w().op("div", {n.w().op("mul", {n.in(0), gate}), n.number(n.get_float("scale", 6), d)}));
  }
  n.out(0, n.w().op("hard_swish", {n.in(0)}));
}
void swish(Node& n) { n.out(0, n.w().op("silu", {n.in(0)}, {{"alpha", n.get_float("beta", 1)}})); }
void silu(Node& n) { n.out(0, n.w().op("silu", {n.in(0)})); }
void swiglu(Node& n) {
  Val a = n.in(0), b = n.in(1);
  if (!b) {
    const auto halves = n.w().ops("split", {a, {}}, 2, {{"axis", int64_t{-1}}});
    a = halves[0], b = halves[1];
  }
  n.out(0, n.w().op("swiglu", {a, b}));
}
void gelu(Node& n) {
  n.out(0, n.w().op("gelu", {n.in(0)},
                    {{"approximate", std::string(n.get_bool("approximate", false) ? "tanh" : "none")}}));
}
void leaky_relu(Node& n) {
  n.out(0, n.w().op("leaky_relu", {n.in(0)}, {{"alpha", n.get_float("negative_slope|alpha", 0.02)}}));
}
void celu(Node& n) { n.out(0, n.w().op("celu", {n.in(0)}, {{"alpha", n.get_float("alpha", 1)}})); }
void selu(Node& n) {
  n.out(0, n.w().op("selu", {n.in(0)},
                    {{"alpha", n.get_float("alpha", 1.67326319217681884765625)},
                     {"gamma", n.get_float("scale", 1.05070102214813232421875)}}));
}
void elu(Node& n) { n.out(0, n.w().op("elu", {n.in(0)}, {{"alpha", n.get_float("alpha", 1)}})); }
void softplus(Node& n) {
  // log(1 + exp(beta x)) / beta, x itself where beta x exceeds the threshold.
  const DType d = n.dtype(0);
  const double beta = n.get_float("beta", 1);
  const Val bx = n.w().op("mul", {n.in(0), n.number(beta, d)});
  const Val soft = n.w().op("div", {n.w().op("softplus", {bx}), n.number(beta, d)});
  n.out(0, n.w().op("where",
                    {n.w().op("greater", {bx, n.number(n.get_float("threshold", 20), d)}), n.in(0), soft}));
}
void prelu(Node& n) {
  Val alpha = n.in(1);
  const std::string mode = n.get_string("mode", "all");
  const int rank = n.rank(0);
  if (mode == "all") alpha = n.reshape(alpha, {});
  const std::string format = n.get_string("data_format", "NCHW");
  if (mode == "channel" && format != "NHWC") {
    std::vector<int64_t> shape(static_cast<size_t>(std::max(rank - 1, 1)), 1);
    shape[0] = -1;
    alpha = n.reshape(alpha, shape);
  }
  n.out(0, n.w().op("prelu", {n.in(0), alpha}));
}

// ---- reductions

// Attributes of PIR (axis operand, keepdim) and of a ProgramDesc (dim, keep_dim, reduce_all).
Val reduced(Node& n, const char* op, Val x, size_t axis_operand, bool has_axes = true) {
  const bool all = !has_axes || n.get_bool("reduce_all", false);
  if (all) n.ignore("axis|dim"), n.ignore_in(axis_operand);
  const Val axes = all ? n.w().ints({}) : n.ints_in(axis_operand, "axis|dim");
  return n.as_declared(0, n.w().op(op, {x, axes}, {{"keepdims", n.get_int("keepdim|keep_dim", 0)}}));
}
void sum(Node& n) {
  const DType in = n.dtype(0);
  const DType to = n.get_dtype("dtype|out_dtype", in == DType::kBool || in == DType::kI32 ? DType::kI64 : in);
  n.out(0, reduced(n, "reduce_sum", to == in ? n.in(0) : n.cast(n.in(0), to), 1));
}
void mean(Node& n) { n.out(0, reduced(n, "reduce_mean", n.in(0), 1)); }
void mean_all(Node& n) { n.out(0, reduced(n, "reduce_mean", n.in(0), 1, false)); }
void reduce_max(Node& n) { n.out(0, reduced(n, "reduce_max", n.in(0), 1)); }
void reduce_min(Node& n) { n.out(0, reduced(n, "reduce_min", n.in(0), 1)); }
void prod(Node& n) { n.out(0, reduced(n, "reduce_prod", n.in(0), 1)); }
void logsumexp(Node& n) { n.out(0, reduced(n, "reduce_log_sum_exp", n.in(0), 1)); }
// Of booleans, as integers.
void all_of(Node& n, const char* op) {
  n.out(0, n.cast(reduced(n, op, n.cast(n.in(0), DType::kI32), 1), DType::kBool));
}
void all(Node& n) { all_of(n, "reduce_min"); }
void any(Node& n) { all_of(n, "reduce_max"); }

void p_norm(Node& n) {
  const double p = n.get_float("porder", 2);
  const bool flat = n.get_bool("asvector", false);
  const DType d = n.dtype(0);
  const Attrs keep{{"keepdims", n.get_int("keepdim", 0)}};
  const int64_t axis = n.get_int("axis", -1);
  const Val axes = n.w().ints(flat ? std::vector<int64_t>{} : std::vector<int64_t>{axis});
  auto reduce = [&](const char* op, Val x) { return n.w().op(op, {x, axes}, keep); };
  const Val magnitude = n.w().op("abs", {n.in(0)});
  Val y;
  if (p == 2) y = reduce("reduce_l2", n.in(0));
  else if (p == 1) y = reduce("reduce_l1", n.in(0));
  else if (std::isinf(p)) y = reduce(p > 0 ? "reduce_max" : "reduce_min", magnitude);
  else if (p == 0) y = reduce("reduce_sum", n.cast(n.w().op("not_equal", {n.in(0), n.number(0, d)}), d));
  else
    y = n.w().op("pow",
                 {reduce("reduce_sum", n.w().op("pow", {magnitude, n.number(p, d)})), n.number(1 / p, d)});
  n.out(0, n.as_declared(0, y));
}

void arg(Node& n, const char* op) {
  Val x = n.in(0);
  int64_t axis = 0;
  const auto known = n.known_scalar(1, "axis", -1);
  if (!known) return n.fail(unimplemented("an axis that is computed"));
  axis = static_cast<int64_t>(*known);
  const bool flat = n.get_bool("flatten", false);
  if (flat) x = n.reshape(x, {-1}), axis = 0;
  Val y = n.w().op(op, {x}, {{"axis", axis}, {"keepdims", n.get_int("keepdims", 0)}});
  const DType to = n.get_dtype("dtype", DType::kI64);
  if (to != DType::kI64) y = n.cast(y, to);
  n.out(0, n.as_declared(0, y));
}
void argmax(Node& n) { arg(n, "arg_max"); }
void argmin(Node& n) { arg(n, "arg_min"); }

void cumsum(Node& n) {
  Val x = n.in(0);
  const bool flat = n.get_bool("flatten", false);
  if (flat) x = n.reshape(x, {-1});
  if (flat) n.ignore("axis"), n.ignore_in(1);
  const Val axis = flat ? n.w().int_scalar(0) : n.scalar_in(1, "axis", -1, DType::kI64);
  n.out(0, n.w().op("cum_sum", {x, axis},
                    {{"exclusive", n.get_int("exclusive", 0)}, {"reverse", n.get_int("reverse", 0)}}));
}

void softmax(Node& n) {
  n.out(0, n.w().op("softmax", {n.in(0)}, {{"axis", n.get_int("axis", -1)}, {"flatten", int64_t{0}}}));
}
void log_softmax(Node& n) {
  n.out(0, n.w().op("log_softmax", {n.in(0)}, {{"axis", n.get_int("axis", -1)}, {"flatten", int64_t{0}}}));
}

// ---- Fourier transforms: a complex tensor is one of f32 with a last axis of (real, imaginary)

bool is_complex(Node& n, size_t i) { return n.in_type(i) && n.in_type(i)->dtype.starts_with("complex"); }
// fft_r2c(x; axes, normalization, forward, onesided): of the last axis first, which may be one-sided.
void fft_r2c(Node& n) {
  const int rank = n.rank(0);
  std::vector<int64_t> axes = n.get_ints("axes");
  if (axes.empty() || !n.get_bool("forward", true))
    return n.fail(unimplemented("an inverse transform, or one without axes"));
  Val y = n.unsqueeze(n.in(0), {rank}), count;
  for (size_t k = axes.size(); k-- > 0;) {
    const int64_t axis = axes[k] < 0 ? axes[k] + rank : axes[k];
    const bool onesided = k + 1 == axes.size() && n.get_bool("onesided", true);
    const Val extent = n.cast(n.shape_of(n.in(0), axis, axis + 1), n.dtype(0));
    count = count ? n.w().op("mul", {count, extent}) : extent;
    y = n.w().op("dft", {y, {}, n.w().int_scalar(axis)},
                 {{"inverse", int64_t{0}}, {"onesided", int64_t{onesided}}});
  }
  const std::string norm = n.get_string("normalization", "backward");
  if (norm == "ortho") y = n.w().op("div", {y, n.w().op("sqrt", {count})});
  else if (norm == "forward") y = n.w().op("div", {y, count});
  n.out(0, y);
}
void part(Node& n, int64_t which) {
  if (!is_complex(n, 0)) return n.out(0, n.in(0));
  n.out(0, n.squeeze(n.slice(n.in(0), -1, which, which + 1), {-1}));
}
void real(Node& n) { part(n, 0); }
void imag(Node& n) { part(n, 1); }
void magnitude(Node& n) {
  if (!is_complex(n, 0)) return abs(n);
  n.out(0, n.w().op("reduce_l2", {n.in(0), n.w().ints({-1})}, {{"keepdims", int64_t{0}}}));
}

// ---- products

Val swapped(Node& n, size_t i, bool swap) {
  const int rank = swap ? n.rank(i) : 0;
  if (rank < 2) return n.in(i);
  std::vector<int64_t> perm;
  for (int k = 0; k < rank; ++k) perm.push_back(k);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return n.transpose(n.in(i), perm);
}
void matmul(Node& n) {
  Val y = n.w().op("matmul", {swapped(n, 0, n.get_bool("transpose_x|trans_x|transpose_X", false)),
                              swapped(n, 1, n.get_bool("transpose_y|trans_y|transpose_Y", false))});
  const double alpha = n.get_float("alpha", 1);  // of the first generation's matmul
  if (alpha != 1) y = n.w().op("mul", {y, n.number(alpha, n.dtype(0))});
  n.out(0, n.as_declared(0, y));
}
void bmm(Node& n) { n.out(0, n.w().op("matmul", {n.in(0), n.in(1)})); }
// mul: x and y flattened to matrices at x_num_col_dims and y_num_col_dims.
void legacy_mul(Node& n) {
  const int64_t xc = n.get_int("x_num_col_dims", 1), yc = n.get_int("y_num_col_dims", 1);
  const int x_rank = n.rank(0), y_rank = n.rank(1);
  Val x = n.in(0), y = n.in(1);
  const Val head = n.shape_of(x, 0, xc), tail = n.shape_of(y, yc);
  if (x_rank != 2) x = n.w().op("flatten", {x}, {{"axis", xc}});
  if (y_rank != 2) y = n.w().op("flatten", {y}, {{"axis", yc}});
  Val out = n.w().op("matmul", {x, y});
  if (x_rank != 2 || y_rank != 2) out = n.w().op("reshape", {out, n.concat({head, tail})});
  n.out(0, out);
}
void addmm(Node& n) {
  const double alpha = n.get_float("alpha", 1), beta = n.get_float("beta", 1);
  Val y = n.w().op("linear", {n.in(1), {}, n.in(2), alpha == 1 && beta == 1 ? n.in(0) : Val{}},
                   {{"input_major", int64_t{1}}, {"matrix", int64_t{1}}});
  if (alpha != 1) y = n.w().op("mul", {y, n.number(alpha, n.dtype(1))});
  if ((alpha != 1 || beta != 1) && beta != 0)
    y = n.w().op("add", {y, beta == 1 ? n.in(0) : n.w().op("mul", {n.in(0), n.number(beta, n.dtype(0))})});
  n.out(0, y);
}
void einsum(Node& n) { n.out(0, n.w().op("einsum", n.list(0), {{"equation", n.get_string("equation")}})); }

constexpr OpEntry kMathOps[] = {
    {"abs", magnitude},
    {"acos", acos},
    {"acosh", acosh},
    {"add", add},
    {"add_n", add_n},
    {"addmm", addmm},
    {"all", all},
    {"any", any},
    {"argmax", argmax},
    {"argmin", argmin},
    {"asin", asin},
    {"asinh", asinh},
    {"assign", identity},
    {"assign_out", identity},
    {"atan", atan},
    {"atanh", atanh},
    {"bitwise_and", bitwise_and},
    {"bitwise_not", bitwise_not},
    {"bitwise_or", bitwise_or},
    {"bitwise_xor", bitwise_xor},
    {"bmm", bmm},
    {"ceil", ceil},
    {"celu", celu},
    {"clip", clip},
    {"cos", cos},
    {"cosh", cosh},
    {"cumsum", cumsum},
    {"divide", div},
    {"einsum", einsum},
    {"elementwise_pow", elementwise_pow},
    {"elu", elu},
    {"equal", equal},
    {"erf", erf},
    {"exp", exp},
    {"fft_r2c", fft_r2c},
    {"floor", floor},
    {"floor_divide", floor_divide},
    {"gelu", gelu},
    {"greater_equal", greater_equal},
    {"greater_than", greater},
    {"hardsigmoid", hardsigmoid},
    {"hardswish", hardswish},
    {"imag", imag},
    {"isfinite", is_finite},
    {"isinf", is_inf},
    {"isnan", is_nan},
    {"leaky_relu", leaky_relu},
    {"legacy_mul", legacy_mul},
    {"less_equal", less_equal},
    {"less_than", less},
    {"log", log},
    {"log_softmax", log_softmax},
    {"logical_and", logical_and},
    {"logical_not", logical_not},
    {"logical_or", logical_or},
    {"logical_xor", logical_xor},
    {"logsumexp", logsumexp},
    {"matmul", matmul},
    {"max", reduce_max},
    {"maximum", max},
    {"mean", mean},
    {"mean_all", mean_all},
    {"min", reduce_min},
    {"minimum", min},
    {"mish", mish},
    {"multiply", mul},
    {"negative", neg},
    {"not_equal", not_equal},
    {"p_norm", p_norm},
    {"pow", pow_scalar},
    {"prelu", prelu},
    {"prod", prod},
    {"real", real},
    {"reciprocal", reciprocal},
    {"relu", relu},
    {"relu6", relu6},
    {"remainder", remainder},
    {"round", round},
    {"rsqrt", rsqrt},
    {"scale", scale},
    {"selu", selu},
    {"share_data", identity},
    {"sigmoid", sigmoid},
    {"sign", sign},
    {"silu", silu},
    {"sin", sin},
    {"sinh", sinh},
    {"softmax", softmax},
    {"softplus", softplus},
    {"softsign", softsign},
    {"sqrt", sqrt},
    {"square", square},
    {"subtract", sub},
    {"sum", sum},
    {"swiglu", swiglu},
    {"swish", swish},
    {"tan", tan},
    {"tanh", tanh},
};

}  // namespace

std::span<const OpEntry> math_ops() { return kMathOps; }

}  // namespace oar::paddle
