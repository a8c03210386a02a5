// Softmax and the normalizations over the last axis, defined in primitives.
#include "kernels/norm.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"

namespace oar {
namespace {

// exp(x - max x) / sum
std::vector<Val> softmax(Builder& b, std::span<const Val> in, const Attrs&) {
  const Val e = b.op("exp", {b.op("sub", {in[0], b.op("reduce_max", {in[0]})})});
  return {b.op("div", {e, b.op("reduce_sum", {e})})};
}

// x / sqrt(mean(x^2) + eps) * w          https://arxiv.org/abs/1910.07467
std::vector<Val> rms_norm(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val mean = b.op("reduce_mean", {b.op("square", {in[0]})});
  const Val r = b.op("rsqrt", {b.op("add", {mean, b.scalar(attrs.get_float("eps"))})});
  return {b.op("mul", {b.op("mul", {in[0], r}), in[1]})};
}

// (rms_norm(x + r, w), x + r)
std::vector<Val> add_rms_norm(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val sum = b.op("add", {in[0], in[1]});
  return {b.op("rms_norm", {sum, in[2]}, attrs), sum};
}

// (x - mean) / sqrt(var + eps) * w + b   https://arxiv.org/abs/1607.06450
std::vector<Val> layer_norm(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val centered = b.op("sub", {in[0], b.op("reduce_mean", {in[0]})});
  const Val var = b.op("reduce_mean", {b.op("square", {centered})});
  const Val r = b.op("rsqrt", {b.op("add", {var, b.scalar(attrs.get_float("eps"))})});
  return {b.op("add", {b.op("mul", {b.op("mul", {centered, r}), in[1]}), in[2]})};
}

Status check_weight(const Graph& g, Ids in, size_t k, const char* what) {
  OAR_RETURN_IF_ERROR(check_rank(g, in, k, 1, what));
  if (shape_of(g, in[0]).empty()) return invalid_argument("x is a scalar");
  return check_same(shape_of(g, in[k])[0], shape_of(g, in[0]).back(), "weight and last axis");
}

Types rms_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  OAR_RETURN_IF_ERROR(check_weight(g, in, 1, "w"));
  return same_as_first(g, in, attrs);
}

Types add_rms_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 3, 3));
  OAR_RETURN_IF_ERROR(check_weight(g, in, 2, "w"));
  if (!(shape_of(g, in[0]) == shape_of(g, in[1])))
    return invalid_argument("x and residual have different shapes");
  return std::vector<TensorType>(2, f32_type(shape_of(g, in[0])));
}

Types layer_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 3, 3));
  OAR_RETURN_IF_ERROR(check_weight(g, in, 1, "w"));
  OAR_RETURN_IF_ERROR(check_weight(g, in, 2, "b"));
  return same_as_first(g, in, attrs);
}

bool constant(const LowerContext& ctx, size_t k) {
  return ctx.graph.value(ctx.node.inputs[k]).kind == ValueKind::kConstant;
}

Lowered rms_lower(LowerContext& ctx) {
  if (!constant(ctx, 1)) return std::unique_ptr<LoweredOp>();
  RmsNormArgs args;
  args.eps = static_cast<float>(ctx.node.attrs.get_float("eps"));
  OAR_ASSIGN(args.w, ctx.f32_constant(1));
  return lower_kernel(ctx, KernelFamily::kRmsNorm, Format::f32(), args,
                      [](RmsNormArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.x = in[0].as<const float>();
                        a.rows = in[0].rows();
                        a.cols = in[0].cols();
                        // Rows of a matrix may be apart; rows of more axes are dense.
                        a.ldx = in[0].rank == 2 ? in[0].row_stride : a.cols;
                        a.ldo = a.cols;
                      });
}

Lowered add_rms_lower(LowerContext& ctx) {
  if (!constant(ctx, 2)) return std::unique_ptr<LoweredOp>();
  RmsNormArgs args;
  args.eps = static_cast<float>(ctx.node.attrs.get_float("eps"));
  OAR_ASSIGN(args.w, ctx.f32_constant(2));
  return lower_kernel(ctx, KernelFamily::kRmsNorm, Format::f32(), args,
                      [](RmsNormArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.sum_out = out[1].as<float>();
                        a.x = in[0].as<const float>();
                        a.residual = in[1].as<const float>();
                        a.rows = in[0].rows();
                        a.cols = a.ldx = a.ldo = in[0].cols();
                      });
}

Lowered layer_lower(LowerContext& ctx) {
  if (!constant(ctx, 1) || !constant(ctx, 2)) return std::unique_ptr<LoweredOp>();
  LayerNormArgs args;
  args.eps = static_cast<float>(ctx.node.attrs.get_float("eps"));
  OAR_ASSIGN(args.w, ctx.f32_constant(1));
  OAR_ASSIGN(args.b, ctx.f32_constant(2));
  return lower_kernel(ctx, KernelFamily::kLayerNorm, Format::f32(), args,
                      [](LayerNormArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.x = in[0].as<const float>();
                        a.rows = in[0].rows();
                        a.cols = a.ldx = a.ldo = in[0].cols();
                      });
}

}  // namespace

extern const OpDef op_softmax = {.name = "softmax",
                                 .infer = same_as_first,
                                 .define = softmax,
                                 .pattern = true,
                                 .evaluate = tensor::softmax};
extern const OpDef op_rms_norm = {
    .name = "rms_norm", .infer = rms_infer, .define = rms_norm, .pattern = true, .lower = rms_lower};
extern const OpDef op_add_rms_norm = {
    .name = "add_rms_norm", .infer = add_rms_infer, .define = add_rms_norm, .lower = add_rms_lower};
extern const OpDef op_layer_norm = {
    .name = "layer_norm", .infer = layer_infer, .define = layer_norm, .pattern = true, .lower = layer_lower};

}  // namespace oar
