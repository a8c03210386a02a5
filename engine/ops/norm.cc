// Softmax and the normalizations over the last axes, defined in primitives.
//
//   rms_norm(x, w) {axis, epsilon}                https://arxiv.org/abs/1910.07467
//   layer_norm(x, w or none, b or none) {...}     https://arxiv.org/abs/1607.06450
//
// Both normalize over the axes from `axis` on (the last unless told); w and b broadcast to these. A node of
// an ordinary model may have two more results of layer_norm: mean and inverse deviation.
#include "kernels/norm.h"

#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/util.h"
#include "kernels/conv.h"
#include "kernels/rope.h"

namespace oar {
namespace {

// softmax(x) {axis, flatten}: the kernel has rows.
Lowered softmax_lower(LowerContext& ctx) {
  const Known x = ctx.known(0);
  if (!x.f32()) return not_lowered();
  const auto axis = checked_axis(ctx.node.attrs.get_int("axis", -1), x.rank());
  const bool flat = ctx.node.attrs.get_bool("flatten");
  if (!axis.ok() || (!flat && *axis != x.rank() - 1)) return not_lowered();
  return lower_like(ctx, 0, KernelFamily::kSoftmax, SoftmaxArgs{}, 1, 1,
                    [first = *axis](SoftmaxArgs& a, const Operand* in, const Operand* out) {
                      a.out = out[0].as<float>();
                      a.x = in[0].as<const float>();
                      a.rows = a.n = 1;
                      for (int k = 0; k < in[0].rank; ++k) (k < first ? a.rows : a.n) *= in[0].dims[k];
                    });
}

double epsilon_of(const Attrs& attrs) { return attrs.get_float("epsilon", 1e-5); }

// x / sqrt(mean(x^2) + epsilon) w + b, with `centered` x - mean(x) for x.
std::vector<Val> define_norm(Builder& b, std::span<const Val> in, const Attrs& attrs, bool centered) {
  const DimVector shape = b.shape(in[0]);
  const auto rank = static_cast<int64_t>(shape.size());
  const int64_t axis = attrs.get_int("axis", -1), tail = axis < 0 ? -axis : rank - axis;
  Val x = in[0];
  std::vector<int64_t> dims(static_cast<size_t>(rank - tail), 0);
  if (tail > 1) {  // one axis of them, until it is normalized
    dims.push_back(-1);
    x = b.op("reshape", {x}, {{"shape", dims}});
    dims.pop_back();
    for (int64_t k = rank - tail; k < rank; ++k) dims.push_back(shape[static_cast<size_t>(k)].const_value());
  }
  if (centered) x = b.op("sub", {x, reduce_last(b, "reduce_mean", x)});
  const Val mean = reduce_last(b, "reduce_mean", b.op("square", {x}));
  Val y = b.op("mul", {x, b.op("rsqrt", {b.op("add", {mean, b.scalar(epsilon_of(attrs))})})});
  if (tail > 1) y = b.op("reshape", {y}, {{"shape", dims}});
  if (in.size() > 1 && in[1]) y = b.op("mul", {y, in[1]});
  if (in.size() > 2 && in[2]) y = b.op("add", {y, in[2]});
  return {y};
}
std::vector<Val> rms_norm(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  return define_norm(b, in, attrs, false);
}
std::vector<Val> layer_norm(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  return define_norm(b, in, attrs, true);
}

// (rms_norm(x + r, w), x + r)
std::vector<Val> add_rms_norm(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val sum = b.op("add", {in[0], in[1]});
  return {b.op("rms_norm", {sum, in[2]}, attrs), sum};
}

// Weight k has exactly the axes of x from `axis` on. (Values of ordinary models may broadcast to these.)
Status check_weight(const Graph& g, Ids in, size_t k, size_t axis) {
  const DimVector& x = shape_of(g, in[0]);
  OAR_RETURN_IF_ERROR(check_rank(g, in, k, x.size() - axis, k == 2 ? "b" : "w"));
  for (size_t i = axis; i < x.size(); ++i)
    OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[k])[i - axis], x[i], "weight and normalized axes"));
  return ok_status();
}

// Operands from 1 on are weights.
Types norm_infer(const Graph& g, Ids in, const Attrs& attrs) {
  if (!given(in, 0)) return invalid_argument("x is missing");
  const DimVector& x = shape_of(g, in[0]);
  OAR_ASSIGN(const int axis, checked_axis(attrs.get_int("axis", -1), static_cast<int>(x.size())));
  const auto first = static_cast<size_t>(axis);
  for (size_t k = first; first + 1 < x.size() && k < x.size(); ++k) {
    if (!x[k].is_const()) return invalid_argument("of several normalized axes none may be symbolic");
  }
  for (size_t k = 1; k < in.size(); ++k) {
    if (given(in, k)) OAR_RETURN_IF_ERROR(check_weight(g, in, k, first));
  }
  return same_as_first(g, in, attrs);
}

Types rms_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  if (!given(in, 1)) return invalid_argument("w is missing");
  return norm_infer(g, in, attrs);
}

Types layer_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 3));
  return norm_infer(g, in, attrs);
}

Types add_rms_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 3, 3));
  if (shape_of(g, in[0]).empty()) return invalid_argument("x is a scalar");
  OAR_RETURN_IF_ERROR(check_rank(g, in, 2, 1, "w"));
  OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[2])[0], shape_of(g, in[0]).back(), "weight and last axis"));
  if (!(shape_of(g, in[0]) == shape_of(g, in[1])))
    return invalid_argument("x and residual have different shapes");
  return std::vector<TensorType>(2, f32_type(shape_of(g, in[0])));
}

// How many axes are normalized, where a kernel does it: x of f32, weights of exactly these axes, as many
// results as the op has without statistics. Else 0.
int rows_of(const LowerContext& ctx, size_t first_weight) {
  const Known x = ctx.known(0);
  if (!x.f32() || ctx.node.outputs.size() > first_weight) return 0;
  const auto axis = checked_axis(ctx.node.attrs.get_int("axis", -1), x.rank());
  if (!axis.ok()) return 0;
  const int tail = x.rank() - *axis;
  for (size_t k = first_weight; k < ctx.node.inputs.size(); ++k) {
    const Known w = ctx.known(k);
    if (!w.given()) continue;
    if (w.rank() != tail || !ctx.is_f32_operand(k)) return 0;
    for (int i = 0; i < w.rank(); ++i) {
      if (!w.same(i, x, *axis + i)) return 0;
    }
  }
  return tail;
}

// Rows and columns of x, whose last `tail` axes are a row; rows of the first axis may lie apart.
template <class Args>
void fill_rows(Args& a, const Operand& x, const Operand& out, int tail) {
  a.x = x.as<const float>();
  a.out = out.as<float>();
  a.cols = 1;
  for (int k = x.rank - tail; k < x.rank; ++k) a.cols *= x.dims[k];
  a.rows = a.cols > 0 ? x.numel() / a.cols : 0;
  const bool apart = x.rank - tail == 1;
  a.ldx = apart ? x.row_stride : a.cols;
  a.ldo = apart ? out.row_stride : a.cols;
}

// Heads (T, H, D), whose tokens may lie apart: as rope's kernel normalizes them, with nothing to turn.
Lowered heads_lower(LowerContext& ctx) {
  RopeArgs args;
  args.norm_eps = static_cast<float>(epsilon_of(ctx.node.attrs));
  OAR_ASSIGN(args.norm_w, ctx.f32_operand(1));
  return lower_kernel(ctx, {KernelFamily::kRope}, args,
                      [](RopeArgs& a, const Operand* in, const Operand* out) {
                        a.positions = in[0].as<const int32_t>();  // read and, with nothing to turn, not used
                        if (a.norm_w == nullptr) a.norm_w = in[1].as<const float>();
                        fill_heads(a, in[0], out[0]);
                      });
}

Lowered rms_lower(LowerContext& ctx) {
  const int tail = rows_of(ctx, 1);
  if (tail == 0 || !ctx.given(1)) return not_lowered();
  if (!ctx.in_run() && tail == 1 && ctx.known(0).rank() == 3) return heads_lower(ctx);
  RmsNormArgs args;
  args.eps = static_cast<float>(epsilon_of(ctx.node.attrs));
  OAR_ASSIGN(args.w, ctx.f32_operand(1));
  return lower_like(ctx, 0, KernelFamily::kRmsNorm, args, 0.3, 0,
                    [tail](RmsNormArgs& a, const Operand* in, const Operand* out) {
                      fill_rows(a, in[0], out[0], tail);
                      if (a.w == nullptr) a.w = in[1].as<const float>();
                    });
}

Lowered layer_lower(LowerContext& ctx) {
  const int tail = rows_of(ctx, 1);
  if (tail == 0) return not_lowered();
  LayerNormArgs args;
  args.eps = static_cast<float>(epsilon_of(ctx.node.attrs));
  OAR_ASSIGN(args.w, ctx.f32_operand(1));
  OAR_ASSIGN(args.b, ctx.f32_operand(2));
  const bool weighted = ctx.given(1), biased = ctx.given(2);
  return lower_like(ctx, 0, KernelFamily::kLayerNorm, args, 0.3, 0,
                    [=](LayerNormArgs& a, const Operand* in, const Operand* out) {
                      fill_rows(a, in[0], out[0], tail);
                      if (weighted && a.w == nullptr) a.w = in[1].as<const float>();
                      if (biased && a.b == nullptr) a.b = in[2].as<const float>();
                    });
}

Lowered add_rms_lower(LowerContext& ctx) {
  if (rows_of(ctx, 2) == 0) return not_lowered();
  RmsNormArgs args;
  args.eps = static_cast<float>(epsilon_of(ctx.node.attrs));
  OAR_ASSIGN(args.w, ctx.f32_operand(2));
  return lower_kernel(ctx, {KernelFamily::kRmsNorm}, args,
                      [](RmsNormArgs& a, const Operand* in, const Operand* out) {
                        fill_rows(a, in[0], out[0], 1);
                        a.sum_out = out[1].as<float>();
                        a.residual = in[1].as<const float>();
                        if (a.w == nullptr) a.w = in[2].as<const float>();
                      });
}

// ---- any floats, in double, rounded once

// Operand k repeated over `tail`; `none` where it is left out.
Result<std::vector<double>> spread(const EvalContext& ctx, size_t k, const Shape& tail, double none) {
  std::vector<double> out(static_cast<size_t>(tail.numel()), none);
  if (!ctx.has(k)) return out;
  OAR_ASSIGN(const Tensor t, ctx.tensor(k));
  if (!dtype_is_float(tensor::dtype_of(t))) return tensor::bad_dtype(t);
  OAR_ASSIGN(const auto b, tensor::Broadcast::make({&tail, &t.shape()}));
  if (!(b.shape() == tail))
    return invalid_argument(cat("operand ", k, " does not broadcast to the normalized axes"));
  const std::vector<double> v = tensor::to_doubles(t);
  b.runs(0, b.numel(), [&](int64_t at, const auto& from, int64_t m, const auto& step) {
    for (int64_t i = 0; i < m; ++i)
      out[static_cast<size_t>(at + i)] = v[static_cast<size_t>(from[1] + i * step[1])];
  });
  return out;
}

Status evaluate_norm(EvalContext& ctx, bool centered) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis", -1), x.shape().rank()));
  const Shape tail(std::span(x.shape().begin() + axis, static_cast<size_t>(x.shape().rank() - axis)));
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), tensor::dtype_of(x)));
  const int64_t n = tail.numel(), rows = n > 0 ? x.numel() / n : 0;
  std::vector<double> scale, bias;
  if (rows > 0) {  // else a hostile file may declare 2^62 columns
    OAR_ASSIGN(scale, spread(ctx, 1, tail, 1));
    OAR_ASSIGN(bias, spread(ctx, 2, tail, 0));
  }
  const double epsilon = epsilon_of(ctx.attrs()), count = static_cast<double>(n);
  std::vector<double> means(static_cast<size_t>(rows), 0), inverses(static_cast<size_t>(rows));
  const bool done = dispatch_float(tensor::dtype_of(x), [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.parallel(rows, 3 * count, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* in = elements<T>(x) + r * n;
        const auto at = [&](int64_t k) { return static_cast<double>(Element<T>::load(in[k])); };
        double mean = 0, square = 0;
        for (int64_t k = 0; k < n && centered; ++k) mean += at(k);
        mean /= count;
        for (int64_t k = 0; k < n; ++k) square += (at(k) - mean) * (at(k) - mean);
        const double inverse = 1 / std::sqrt(square / count + epsilon);
        means[static_cast<size_t>(r)] = mean, inverses[static_cast<size_t>(r)] = inverse;
        for (int64_t k = 0; k < n; ++k) {
          const auto i = static_cast<size_t>(k);
          mutable_elements<T>(y)[r * n + k] = Element<T>::store(
              static_cast<typename Element<T>::Compute>((at(k) - mean) * inverse * scale[i] + bias[i]));
        }
      }
    });
  });
  if (!done) return tensor::bad_dtype(x);
  ctx.set(0, std::move(y));
  if (!ctx.wants(1)) return ok_status();
  std::vector<int64_t> dims = tensor::dims_of(x.shape());
  std::fill(dims.begin() + axis, dims.end(), 1);
  ctx.set(1, tensor::from_doubles(ctx, Shape(dims), DType::kF32, means));
  ctx.set(2, tensor::from_doubles(ctx, Shape(dims), DType::kF32, inverses));
  return ok_status();
}
Status evaluate_rms_norm(EvalContext& ctx) {
  OAR_RETURN_IF_ERROR(ctx.tensor(1).status());
  return evaluate_norm(ctx, false);
}
Status evaluate_layer_norm(EvalContext& ctx) { return evaluate_norm(ctx, true); }

}  // namespace

extern const OpDef op_softmax = {.name = "softmax",
                                 .infer = same_as_first,
                                 .define = definition::softmax,
                                 .pattern = true,
                                 .evaluate = tensor::softmax,
                                 .lower = softmax_lower};
extern const OpDef op_rms_norm = {.name = "rms_norm",
                                  .strided_inputs = 1,
                                  .strided_output = true,
                                  .infer = rms_infer,
                                  .define = rms_norm,
                                  .pattern = true,
                                  .evaluate = evaluate_rms_norm,
                                  .lower = rms_lower};
extern const OpDef op_add_rms_norm = {
    .name = "add_rms_norm", .infer = add_rms_infer, .define = add_rms_norm, .lower = add_rms_lower};
extern const OpDef op_layer_norm = {.name = "layer_norm",
                                    .infer = layer_infer,
                                    .define = layer_norm,
                                    .pattern = true,
                                    .evaluate = evaluate_layer_norm,
                                    .lower = layer_lower};

}  // namespace oar
