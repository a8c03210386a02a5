// What our elementwise ops, comparisons, reductions and products are in Paddle (phi/ops/yaml/ops.yaml).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/format.h"
#include "engine/export/paddle_writer.h"

namespace oar::paddle {
namespace {

using Ints = std::vector<int64_t>;

void renamed(NodeWriter& n, const char* name) {
  n.expect_attrs({});
  n.out(0, n.same(name, n.in(0)));
}
void to_bool(NodeWriter& n, const char* name) {
  n.expect_attrs({});
  n.out(0, n.op(name, {n.in(0)}, {}, {DType::kBool, n.in_type(0).dims}));
}

// Operand 1 aligned with operand 0's axes from `axis` on, where a node says so.
ValueIndex second(NodeWriter& n) {
  const ValueIndex y = n.in(1);
  if (!n.attrs().has("axis")) return y;
  const int64_t behind = n.in_type(0).rank() - n.attrs().get_int("axis") - n.in_type(1).rank();
  if (behind <= 0) return y;
  Ints axes(static_cast<size_t>(behind));
  std::iota(axes.begin(), axes.end(), int64_t{n.in_type(1).rank()});
  return n.unsqueeze(y, axes);
}
void arithmetic(NodeWriter& n, const char* name) {
  n.expect_attrs({"axis"});
  ValueIndex y = n.binary(name, n.in(0), second(n));
  for (size_t k = 2; k < n.node().inputs.size(); ++k) y = n.binary(name, y, n.in(k));
  n.out(0, y);
}
void comparison(NodeWriter& n, const char* name) {
  n.expect_attrs({"axis"});
  n.out(0, n.compare(name, n.in(0), second(n)));
}
void remainder(NodeWriter& n) {
  n.expect_attrs({"axis", "fmod"});
  if (n.attrs().get_int("fmod", 0) != 0) return n.fail("a remainder with the sign of the dividend");
  n.out(0, n.binary("remainder", n.in(0), second(n)));
}

ValueIndex times(NodeWriter& n, ValueIndex x, double factor) {
  return n.op("scale", {x, n.number(factor, DType::kF32)}, {}, n.type(x));
}
void negative(NodeWriter& n) { n.out(0, times(n, n.in(0), -1)); }
ValueIndex swish_of(NodeWriter& n) {
  n.expect_attrs({"alpha"});
  const double alpha = n.attrs().get_float("alpha", 1);
  const ValueIndex x = n.in(0);
  if (alpha == 1) return n.same("silu", x);
  return n.binary("multiply", x, n.same("sigmoid", times(n, x, alpha)));
}
void swish(NodeWriter& n) { n.out(0, swish_of(n)); }
void swiglu(NodeWriter& n) { n.out(0, n.binary("multiply", swish_of(n), n.in(1))); }
// Above the threshold it is x itself, where log(1 + exp(x)) differs by less than half an ulp of f64.
void softplus(NodeWriter& n) { n.out(0, n.same("softplus", n.in(0), {{"beta", 1.0}, {"threshold", 40.0}})); }
void gelu(NodeWriter& n) {
  n.expect_attrs({"approximate"});
  n.out(0, n.same("gelu", n.in(0), {{"approximate", n.attrs().get_string("approximate", "none") == "tanh"}}));
}
void leaky_relu(NodeWriter& n) {
  n.expect_attrs({"alpha"});
  n.out(0, n.same("leaky_relu", n.in(0), {{"negative_slope", n.attrs().get_float("alpha", 0.01)}}));
}
void elu(NodeWriter& n) {
  n.expect_attrs({"alpha"});
  n.out(0, n.same("elu", n.in(0), {{"alpha", n.attrs().get_float("alpha", 1)}}));
}
void celu(NodeWriter& n) {
  n.expect_attrs({"alpha"});
  n.out(0, n.same("celu", n.in(0), {{"alpha", n.attrs().get_float("alpha", 1)}}));
}
void selu(NodeWriter& n) {
  n.expect_attrs({"alpha", "gamma"});
  n.out(0, n.same("selu", n.in(0),
                  {{"scale", n.attrs().get_float("gamma", 1.05070102214813232421875)},
                   {"alpha", n.attrs().get_float("alpha", 1.67326319217681884765625)}}));
}
void hard_sigmoid(NodeWriter& n) {
  n.expect_attrs({"alpha", "beta"});
  n.out(0,
        n.same("hardsigmoid", n.in(0),
               {{"slope", n.attrs().get_float("alpha", 0.2)}, {"offset", n.attrs().get_float("beta", 0.5)}}));
}
void thresholded_relu(NodeWriter& n) {
  n.expect_attrs({"alpha"});
  const ValueIndex x = n.in(0);
  const DType d = n.in_type(0).dtype;
  n.out(0, n.select(n.compare("greater_than", x, n.scalar(n.attrs().get_float("alpha", 1), d)), x,
                    n.scalar(0, d)));
}
// prelu(x, alpha): of one slope or one per channel; any other by its definition.
void prelu(NodeWriter& n) {
  n.expect_attrs({});
  const ValueIndex x = n.in(0);
  const Declared slope = n.in_type(1);
  const int rank = n.in_type(0).rank();
  if (count_of(slope.dims) == 1)
    return n.out(0, n.op("prelu", {x, n.in_shaped(1, {1})}, {{"mode", std::string("all")}}, n.type(x)));
  if (rank > 2 && slope.rank() == rank - 1 && count_of(slope.dims) == slope.dims[0])
    return n.out(0, n.op("prelu", {x, n.in_shaped(1, {slope.dims[0]})}, {{"mode", std::string("channel")}},
                         n.type(x)));
  const ValueIndex below = n.compare("less_than", x, n.scalar(0, n.type(x).dtype));
  n.out(0, n.select(below, n.binary("multiply", x, n.in(1)), x));
}
void is_inf(NodeWriter& n) {
  n.expect_attrs({"detect_negative", "detect_positive"});
  if (!n.attrs().get_bool("detect_negative", true) || !n.attrs().get_bool("detect_positive", true))
    return n.fail("infinities of one sign");
  n.out(0, n.op("isinf", {n.in(0)}, {}, {DType::kBool, n.in_type(0).dims}));
}

// Bounds are numbers there; one that is left out is an infinity, or another op where there is none.
void clip(NodeWriter& n) {
  n.expect_attrs({});
  const ValueIndex x = n.in(0);
  const DType d = n.type(x).dtype;
  const auto bound = [&](size_t i, double none) {
    const auto v = n.known_number(i);
    if (!n.has(i)) return n.number(none, d);
    return v && std::abs(*v) < 1LL << 53 ? n.number(*v, d) : n.in(i);
  };
  if (!n.has(1) && !n.has(2)) return n.out(0, n.same("assign", x));
  if (!dtype_is_float(d) && !n.has(1)) return n.out(0, n.binary("minimum", x, n.in(2)));
  if (!dtype_is_float(d) && !n.has(2)) return n.out(0, n.binary("maximum", x, n.in(1)));
  constexpr double kInf = std::numeric_limits<double>::infinity();
  n.out(0, n.op("clip", {x, bound(1, -kInf), bound(2, kInf)}, {}, n.type(x)));
}
void where(NodeWriter& n) {
  n.expect_attrs({});
  n.out(0, n.select(n.in(0), n.in(1), n.in(2)));
}

void cast_to(NodeWriter& n, DType to) {
  n.expect_attrs({"to", "saturate", "round_mode"});
  const bool narrow = to == DType::kE4M3 || to == DType::kE5M2;
  if (narrow && !n.attrs().get_bool("saturate", true))
    n.fail("a cast to 8-bit floats that does not saturate");
  n.out(0, n.cast(n.in(0), to));
}
void cast(NodeWriter& n) {
  if (n.has(1)) return cast_to(n, n.in_type(1).dtype);
  const std::string word = n.attrs().get_string("to");
  const auto to = parse_dtype(word);
  if (!to) return n.fail(cat("attribute 'to' is ", word));
  cast_to(n, *to);
}

// ---- reductions

// Axes by operand or attribute; none of them: all, unless the node says otherwise.
Ints reduced_axes(NodeWriter& n) {
  n.expect_attrs({"axes", "keepdims", "noop_with_empty_axes"});
  Ints axes = n.ints_or_attr(1, "axes").value_or(Ints{});
  if (axes.empty() && !n.attrs().get_bool("noop_with_empty_axes", false)) {
    axes.resize(static_cast<size_t>(n.in_type(0).rank()));
    std::iota(axes.begin(), axes.end(), int64_t{0});
  }
  return axes;
}
bool keeps(NodeWriter& n) { return n.attrs().get_bool("keepdims", true); }
// `inner` of x, reduced, `outer` of that.
void reduction(NodeWriter& n, const char* inner, const char* name, const char* outer) {
  const Ints axes = reduced_axes(n);
  ValueIndex x = n.in(0);
  if (*inner) x = n.same(inner, x);
  x = n.reduce(name, x, axes, keeps(n));
  if (*outer) x = n.same(outer, x);
  n.out(0, x == n.in(0) ? n.same("assign", x) : x);
}
void log_sum_exp(NodeWriter& n) {
  const Ints axes = reduced_axes(n);
  Declared t = n.in_type(0);
  const auto at = positive_axes(axes, t.rank());
  if (!at) return n.fail("axes out of range");
  if (at->empty()) return n.out(0, n.same("assign", n.in(0)));
  for (size_t k = at->size(); k-- > 0;) {
    const auto a = (*at)[k];
    if (keeps(n)) t.dims[static_cast<size_t>(a)] = 1;
  }
  if (!keeps(n)) {
    Ints left;
    for (size_t k = 0; k < t.dims.size(); ++k)
      if (std::find(at->begin(), at->end(), static_cast<int64_t>(k)) == at->end()) left.push_back(t.dims[k]);
    t.dims = left;
  }
  n.out(0, n.op("logsumexp", {n.in(0)}, {{"axis", *at}, {"keepdim", keeps(n)}}, t));
}
void arg(NodeWriter& n, const char* name) {
  n.expect_attrs({"axis", "keepdims", "select_last_index"});
  if (n.attrs().get_bool("select_last_index", false)) return n.fail("the last of equal extremes");
  Declared t = n.in_type(0);
  const auto at = positive_axes({n.attrs().get_int("axis", 0)}, t.rank());
  if (!at) return n.fail("an axis out of range");
  const bool keep = n.attrs().get_bool("keepdims", true);
  if (keep) t.dims[static_cast<size_t>((*at)[0])] = 1;
  else t.dims.erase(t.dims.begin() + (*at)[0]);
  t.dtype = DType::kI64;
  n.out(0,
        n.op(name, {n.in(0), n.number(static_cast<double>((*at)[0]), DType::kI64)}, {{"keepdims", keep}}, t));
}
void cum_sum(NodeWriter& n) {
  n.expect_attrs({"exclusive", "reverse"});
  const auto axis = n.known_number(1);
  if (!axis) return n.fail("an axis that is computed");
  n.out(0, n.op("cumsum", {n.in(0), n.number(*axis, DType::kI32)},
                {{"exclusive", n.attrs().get_bool("exclusive", false)},
                 {"reverse", n.attrs().get_bool("reverse", false)}},
                n.in_type(0)));
}

// An old model's softmax takes everything from `axis` on as one row.
void softmax_of(NodeWriter& n, const char* name) {
  n.expect_attrs({"axis", "flatten"});
  const ValueIndex x = n.in(0);
  const int rank = n.type(x).rank();
  const auto at = positive_axes({n.attrs().get_int("axis", -1)}, std::max(rank, 1));
  if (!at) return n.fail("an axis out of range");
  const int64_t axis = (*at)[0];
  if (n.attrs().get_int("flatten", 0) == 0 || axis == rank - 1)
    return n.out(0, n.same(name, x, {{"axis", axis}}));
  Ints rows(static_cast<size_t>(axis), 0);
  rows.push_back(-1);
  const ValueIndex flat = n.same(name, n.reshape(x, rows), {{"axis", int64_t{-1}}});
  n.out(0, n.reshape_to(flat, n.shape_of(x)));
}

// ---- products

// The extents of a product by NumPy's rule: vectors are a row or a column that vanishes again.
std::optional<Ints> product_dims(const Ints& a, const Ints& b) {
  if (a.empty() || b.empty()) return std::nullopt;
  const auto batch = [](const Ints& d) {
    Ints out;
    for (size_t k = 0; k + 2 < d.size(); ++k) out.push_back(d[k]);
    return out;
  };
  auto dims = broadcast(batch(a), batch(b));
  if (!dims) return dims;
  if (a.size() > 1) dims->push_back(a[a.size() - 2]);
  if (b.size() > 1) dims->push_back(b.back());
  return dims;
}
ValueIndex product(NodeWriter& n, ValueIndex a, ValueIndex b, bool swap_a = false, bool swap_b = false) {
  Ints x = n.type(a).dims, y = n.type(b).dims;
  if (swap_a && x.size() > 1) std::swap(x.back(), x[x.size() - 2]);
  if (swap_b && y.size() > 1) std::swap(y.back(), y[y.size() - 2]);
  const auto dims = product_dims(x, y);
  if (!dims) return n.fail("operands that no product takes"), kAbsent;
  return n.op("matmul", {a, b}, {{"transpose_x", swap_a}, {"transpose_y", swap_b}}, {n.type(a).dtype, *dims});
}
void matmul(NodeWriter& n) {
  n.expect_attrs({});
  n.out(0, product(n, n.in(0), n.in(1)));
}
// As importers write it: one weight and a bias that broadcasts.
void linear(NodeWriter& n) {
  n.expect_attrs({"input_major", "matrix"});
  if (n.node().inputs.size() != 4 || n.has(1)) return n.fail("a layer of several weights or of a residual");
  const ValueIndex y = product(n, n.in(0), n.in(2), false, !n.attrs().get_bool("input_major", false));
  n.out(0, n.has(3) ? n.binary("add", y, n.in(3)) : y);
}
// Letters of the equation name extents.
void einsum(NodeWriter& n) {
  n.expect_attrs({"equation"});
  std::string equation = n.attrs().get_string("equation");
  equation.erase(std::remove(equation.begin(), equation.end(), ' '), equation.end());
  const size_t arrow = equation.find("->");
  if (arrow == std::string::npos || equation.find('.') != std::string::npos)
    return n.fail(cat("equation '", equation, "' (without a result, or with an ellipsis)"));
  std::map<char, int64_t> extent;
  std::vector<ValueIndex> operands;
  size_t at = 0;
  for (size_t k = 0; k < n.node().inputs.size(); ++k) {
    operands.push_back(n.in(k));
    for (const int64_t d : n.in_type(k).dims) {
      if (at >= arrow || equation[at] == ',') return n.fail(cat("equation '", equation, "' of other ranks"));
      int64_t& e = extent.try_emplace(equation[at++], -1).first->second;
      e = std::max(e, d);
    }
    ++at;  // the comma
  }
  Declared t{n.in_type(0).dtype, {}};
  for (size_t k = arrow + 2; k < equation.size(); ++k) t.dims.push_back(extent[equation[k]]);
  // What its gradient needs: lists as long as the operands'.
  const std::vector<Declared> cache(operands.size(), Declared{t.dtype, {}});
  n.out(0, n.emit("einsum", {operands}, {{"equation", equation}}, {{t}, cache, cache})[0][0]);
}

#define OAR_RENAMED(ours, theirs)                   \
  {                                                 \
    ours, [](NodeWriter& n) { renamed(n, theirs); } \
  }
#define OAR_ARITHMETIC(ours, theirs)                   \
  {                                                    \
    ours, [](NodeWriter& n) { arithmetic(n, theirs); } \
  }
#define OAR_COMPARISON(ours, theirs)                   \
  {                                                    \
    ours, [](NodeWriter& n) { comparison(n, theirs); } \
  }
#define OAR_REDUCTION(ours, inner, theirs, outer)                   \
  {                                                                 \
    ours, [](NodeWriter& n) { reduction(n, inner, theirs, outer); } \
  }
constexpr OpWriterEntry kMathWriters[] = {
    OAR_RENAMED("abs", "abs"),
    OAR_RENAMED("acos", "acos"),
    OAR_RENAMED("acosh", "acosh"),
    OAR_ARITHMETIC("add", "add"),
    {"arg_max", [](NodeWriter& n) { arg(n, "argmax"); }},
    {"arg_min", [](NodeWriter& n) { arg(n, "argmin"); }},
    OAR_RENAMED("asin", "asin"),
    OAR_RENAMED("asinh", "asinh"),
    OAR_RENAMED("atan", "atan"),
    OAR_RENAMED("atanh", "atanh"),
    OAR_ARITHMETIC("bitwise_and", "bitwise_and"),
    OAR_RENAMED("bitwise_not", "bitwise_not"),
    OAR_ARITHMETIC("bitwise_or", "bitwise_or"),
    OAR_ARITHMETIC("bitwise_xor", "bitwise_xor"),
    {"cast", cast},
    OAR_RENAMED("ceil", "ceil"),
    {"celu", celu},
    {"clip", clip},
    OAR_RENAMED("cos", "cos"),
    OAR_RENAMED("cosh", "cosh"),
    {"cum_sum", cum_sum},
    OAR_ARITHMETIC("div", "divide"),
    {"einsum", einsum},
    {"elu", elu},
    OAR_COMPARISON("equal", "equal"),
    OAR_RENAMED("erf", "erf"),
    OAR_RENAMED("exp", "exp"),
    OAR_RENAMED("floor", "floor"),
    {"gelu", gelu},
    OAR_COMPARISON("greater", "greater_than"),
    OAR_COMPARISON("greater_equal", "greater_equal"),
    {"hard_sigmoid", hard_sigmoid},
    OAR_RENAMED("hard_swish", "hardswish"),
    OAR_RENAMED("identity", "assign"),
    {"is_inf", is_inf},
    {"is_nan", [](NodeWriter& n) { to_bool(n, "isnan"); }},
    {"leaky_relu", leaky_relu},
    OAR_COMPARISON("less", "less_than"),
    OAR_COMPARISON("less_equal", "less_equal"),
    {"linear", linear},
    OAR_RENAMED("log", "log"),
    {"log_softmax", [](NodeWriter& n) { softmax_of(n, "log_softmax"); }},
    OAR_COMPARISON("logical_and", "logical_and"),
    OAR_RENAMED("logical_not", "logical_not"),
    OAR_COMPARISON("logical_or", "logical_or"),
    OAR_COMPARISON("logical_xor", "logical_xor"),
    {"matmul", matmul},
    OAR_ARITHMETIC("max", "maximum"),
    OAR_ARITHMETIC("min", "minimum"),
    OAR_RENAMED("mish", "mish"),
    {"mod", remainder},
    OAR_ARITHMETIC("mul", "multiply"),
    {"neg", negative},
    OAR_COMPARISON("not_equal", "not_equal"),
    OAR_ARITHMETIC("pow", "elementwise_pow"),
    {"prelu", prelu},
    OAR_RENAMED("reciprocal", "reciprocal"),
    OAR_REDUCTION("reduce_l1", "abs", "sum", ""),
    OAR_REDUCTION("reduce_l2", "square", "sum", "sqrt"),
    OAR_REDUCTION("reduce_log_sum", "", "sum", "log"),
    {"reduce_log_sum_exp", log_sum_exp},
    OAR_REDUCTION("reduce_max", "", "max", ""),
    OAR_REDUCTION("reduce_mean", "", "mean", ""),
    OAR_REDUCTION("reduce_min", "", "min", ""),
    OAR_REDUCTION("reduce_prod", "", "prod", ""),
    OAR_REDUCTION("reduce_sum", "", "sum", ""),
    OAR_REDUCTION("reduce_sum_square", "square", "sum", ""),
    OAR_RENAMED("relu", "relu"),
    OAR_RENAMED("round", "round"),
    OAR_RENAMED("rsqrt", "rsqrt"),
    {"selu", selu},
    OAR_RENAMED("sigmoid", "sigmoid"),
    OAR_RENAMED("sign", "sign"),
    {"silu", swish},
    OAR_RENAMED("sin", "sin"),
    OAR_RENAMED("sinh", "sinh"),
    {"softmax", [](NodeWriter& n) { softmax_of(n, "softmax"); }},
    {"softplus", softplus},
    OAR_RENAMED("softsign", "softsign"),
    OAR_RENAMED("sqrt", "sqrt"),
    OAR_RENAMED("square", "square"),
    OAR_ARITHMETIC("sub", "subtract"),
    {"swiglu", swiglu},
    OAR_RENAMED("tan", "tan"),
    OAR_RENAMED("tanh", "tanh"),
    {"thresholded_relu", thresholded_relu},
    {"where", where},
};
#undef OAR_RENAMED
#undef OAR_ARITHMETIC
#undef OAR_COMPARISON
#undef OAR_REDUCTION

}  // namespace

std::span<const OpWriterEntry> math_writers() { return kMathWriters; }

}  // namespace oar::paddle
