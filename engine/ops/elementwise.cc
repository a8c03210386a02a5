// Elementwise primitives. Binary ones broadcast like NumPy: shapes are aligned at the last axis and extents
// of 1 repeat.
#include <cmath>
#include <optional>

#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "kernels/activation.h"

namespace oar {
namespace {

// ---- unary

template <UnaryOp kOp>
constexpr OpDef unary(const char* name, Status (*evaluate)(EvalContext&), decltype(OpDef::vjp) vjp) {
  OpDef d{};
  d.name = name;
  d.vjp = vjp;
  d.piecewise_constant = vjp == nullptr;
  d.infer = same_as_first;
  d.evaluate = evaluate;
  d.by_kernels = tensor::unary_by_kernel<kOp>;
  d.lower = lower_unary<kOp>;
  return d;
}

// ---- binary

Types binary_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  if (!given(in, 0) || !given(in, 1)) return invalid_argument("both operands are needed");
  const DimVector& first = shape_of(g, in[0]);
  OAR_ASSIGN(const DimVector second, lined_up(first.size(), shape_of(g, in[1]), attrs));
  OAR_ASSIGN(DimVector shape, broadcast(first, second));
  return std::vector<TensorType>{f32_type(std::move(shape))};
}

// How operand `b` repeats in a result shaped like `a`: over axes [0, split), over the others, as the kernel
// has it. Nothing where it is neither whole nor repeated in each part, or a is not shaped like the result.
struct Repeats {
  int split = 0;
  bool b_row = true, b_col = true;
};
std::optional<Repeats> repeats_of(const Known& a, const Known& b) {
  if (b.rank() > a.rank()) return std::nullopt;
  Repeats r{std::max(a.rank() - 1, 0)};
  int parts = 0;
  for (int k = 0, j = b.rank() - a.rank(); k < a.rank(); ++k, ++j) {
    const bool one = j < 0 || b.is(j, 1);
    if (!one && !b.same(j, a, k)) return std::nullopt;
    if (a.is(k, 1) || (parts > 0 && one != r.b_col)) continue;  // as the axis before
    if (parts == 2) return std::nullopt;
    if (parts == 0) r.b_row = !one;
    else r.split = k;
    r.b_col = !one;
    ++parts;
  }
  return r;
}

// One operand shaped like the result, the other repeated along rows, columns or neither; anything else is
// evaluate()'s.
template <BinaryOp kOp>
Lowered binary_lower(LowerContext& ctx) {
  constexpr bool kCommutes = kOp != BinaryOp::kSub && kOp != BinaryOp::kDiv && kOp != BinaryOp::kPow;
  if (ctx.node.inputs.size() != 2 || !ctx.given(0) || !ctx.given(1) || ctx.node.attrs.has("axis"))
    return not_lowered();
  // An integer exponent, or a square, has a way of its own.
  if (kOp == BinaryOp::kPow && ctx.in_run()) return not_lowered();
  size_t whole = 0;
  auto repeats = repeats_of(ctx.known(0), ctx.known(1));
  if (!repeats && kCommutes) repeats = repeats_of(ctx.known(1), ctx.known(0)), whole = 1;
  const size_t other = 1 - whole;
  if (!repeats || !ctx.known(whole).f32()) return not_lowered();
  if (!ctx.known(other).f32() && (ctx.in_run() || !ctx.is_f32_operand(other))) return not_lowered();
  BinaryArgs args;
  args.op = kOp;
  args.b_row = repeats->b_row ? 1 : 0;
  args.b_col = repeats->b_col ? 1 : 0;
  OAR_ASSIGN(args.a, ctx.f32_operand(whole));
  OAR_ASSIGN(args.b, ctx.f32_operand(other));
  const uint32_t over = ctx.known(0).same_shape(ctx.known(1)) ? 3 : 1u << whole;
  return lower_like(ctx, whole, KernelFamily::kBinary, args, 0.2, over,
                    [=, split = repeats->split](BinaryArgs& a, const Operand* in, const Operand* out) {
                      a.out = out[0].as<float>();
                      if (a.a == nullptr) a.a = in[whole].as<const float>();
                      if (a.b == nullptr) a.b = in[other].as<const float>();
                      a.rows = a.cols = 1;
                      for (int k = 0; k < out[0].rank; ++k) (k < split ? a.rows : a.cols) *= out[0].dims[k];
                    });
}

template <BinaryOp kOp>
constexpr OpDef binary(const char* name, Status (*evaluate)(EvalContext&), decltype(OpDef::vjp) vjp,
                       decltype(OpDef::fold_inplace) fold = nullptr) {
  OpDef d{};
  d.name = name;
  d.vjp = vjp;
  d.infer = binary_infer;
  d.evaluate = evaluate;
  if (kOp != BinaryOp::kPow) d.by_kernels = tensor::binary_by_kernel<kOp>;
  d.lower = binary_lower<kOp>;
  d.fold_inplace = fold;
  return d;
}

// Columns of a weight scaled by a vector, as norms fold into the layers behind them.
Result<bool> mul_fold_inplace(Tensor& x, std::span<const Tensor> rest, const Attrs&, ThreadPool& pool) {
  const Shape& shape = x.shape();
  if (shape.rank() != 2 || rest[0].shape().rank() != 1 || rest[0].shape()[0] != shape[1]) return false;
  const int64_t cols = shape[1];
  float* values = x.mutable_values<float>().data();
  const float* factor = rest[0].values<float>().data();
  pool.parallel_for(shape[0], std::max<int64_t>(1, 65536 / std::max<int64_t>(cols, 1)),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t r = begin; r < end; ++r) {
                        for (int64_t c = 0; c < cols; ++c) values[r * cols + c] *= factor[c];
                      }
                    });
  return true;
}

}  // namespace

extern const OpDef op_neg = unary<UnaryOp::kNeg>("neg", tensor::neg, gradient::neg);
extern const OpDef op_abs = unary<UnaryOp::kAbs>("abs", tensor::abs, gradient::abs);
extern const OpDef op_exp = unary<UnaryOp::kExp>("exp", tensor::exp, gradient::exp);
extern const OpDef op_log = unary<UnaryOp::kLog>("log", tensor::log, gradient::log);
extern const OpDef op_sqrt = unary<UnaryOp::kSqrt>("sqrt", tensor::sqrt, gradient::sqrt);
extern const OpDef op_rsqrt = unary<UnaryOp::kRsqrt>("rsqrt", tensor::rsqrt, gradient::rsqrt);
extern const OpDef op_square = unary<UnaryOp::kSquare>("square", tensor::square, gradient::square);
extern const OpDef op_reciprocal =
    unary<UnaryOp::kReciprocal>("reciprocal", tensor::reciprocal, gradient::reciprocal);
extern const OpDef op_tanh = unary<UnaryOp::kTanh>("tanh", tensor::tanh, gradient::tanh);
extern const OpDef op_sigmoid = unary<UnaryOp::kSigmoid>("sigmoid", tensor::sigmoid, gradient::sigmoid);
extern const OpDef op_erf = unary<UnaryOp::kErf>("erf", tensor::erf, gradient::erf);
extern const OpDef op_sin = unary<UnaryOp::kSin>("sin", tensor::sin, gradient::sin);
extern const OpDef op_cos = unary<UnaryOp::kCos>("cos", tensor::cos, gradient::cos);
extern const OpDef op_floor = unary<UnaryOp::kFloor>("floor", tensor::floor, nullptr);

extern const OpDef op_add = binary<BinaryOp::kAdd>("add", tensor::add, gradient::add);
extern const OpDef op_sub = binary<BinaryOp::kSub>("sub", tensor::sub, gradient::sub);
extern const OpDef op_mul = binary<BinaryOp::kMul>("mul", tensor::mul, gradient::mul, mul_fold_inplace);
extern const OpDef op_div = binary<BinaryOp::kDiv>("div", tensor::div, gradient::div);
extern const OpDef op_max = binary<BinaryOp::kMax>("max", tensor::max, gradient::max);
extern const OpDef op_min = binary<BinaryOp::kMin>("min", tensor::min, gradient::min);
extern const OpDef op_pow = binary<BinaryOp::kPow>("pow", tensor::pow, gradient::pow);

}  // namespace oar
