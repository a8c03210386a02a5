// Activations, defined in primitives. Formulas as in kernels/activation.h.
#include "kernels/activation.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"

namespace oar {
namespace {

// max(x, 0)
std::vector<Val> relu(Builder& b, std::span<const Val> in, const Attrs&) {
  return {b.op("max", {in[0], b.scalar(0)})};
}

// x * sigmoid(x)
std::vector<Val> silu(Builder& b, std::span<const Val> in, const Attrs&) {
  return {b.op("mul", {in[0], b.op("sigmoid", {in[0]})})};
}

// x/2 * (1 + erf(x / sqrt 2))
std::vector<Val> gelu(Builder& b, std::span<const Val> in, const Attrs&) {
  const Val e = b.op("erf", {b.op("mul", {in[0], b.scalar(0.70710678118654752)})});
  return {b.op("mul", {b.op("mul", {in[0], b.scalar(0.5)}), b.op("add", {e, b.scalar(1)})})};
}

// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))      https://arxiv.org/abs/1606.08415
std::vector<Val> gelu_tanh(Builder& b, std::span<const Val> in, const Attrs&) {
  const Val cube = b.op("mul", {b.op("mul", {b.op("square", {in[0]}), in[0]}), b.scalar(0.044715)});
  const Val t = b.op("tanh", {b.op("mul", {b.op("add", {in[0], cube}), b.scalar(0.79788456080286536)})});
  return {b.op("mul", {b.op("mul", {in[0], b.scalar(0.5)}), b.op("add", {t, b.scalar(1)})})};
}

// silu(gate) * up
std::vector<Val> swiglu(Builder& b, std::span<const Val> in, const Attrs&) {
  return {b.op("mul", {b.op("silu", {in[0]}), in[1]})};
}

Types swiglu_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  if (!(shape_of(g, in[0]) == shape_of(g, in[1])))
    return invalid_argument("gate and up have different shapes");
  return same_as_first(g, in, attrs);
}

Lowered swiglu_lower(LowerContext& ctx) {
  if (shape_of(ctx.graph, ctx.node.inputs[0]).size() != 2) return std::unique_ptr<LoweredOp>();
  return lower_kernel(ctx, KernelFamily::kSwiGlu, Format::f32(), SwiGluArgs{},
                      [](SwiGluArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.gate = in[0].as<const float>();
                        a.up = in[1].as<const float>();
                        a.T = out[0].dims[0];
                        a.F = out[0].dims[1];
                        a.ldo = out[0].row_stride;
                        a.ldg = in[0].row_stride;
                        a.ldu = in[1].row_stride;
                      });
}

}  // namespace

extern const OpDef op_relu = {.name = "relu",
                              .infer = same_as_first,
                              .define = relu,
                              .pattern = true,
                              .evaluate = tensor::relu,
                              .lower = lower_unary<UnaryOp::kRelu>};
extern const OpDef op_silu = {.name = "silu",
                              .infer = same_as_first,
                              .define = silu,
                              .pattern = true,
                              .evaluate = tensor::silu,
                              .lower = lower_unary<UnaryOp::kSilu>};
extern const OpDef op_gelu = {.name = "gelu",
                              .infer = same_as_first,
                              .define = gelu,
                              .pattern = true,
                              .evaluate = tensor::gelu,
                              .lower = lower_unary<UnaryOp::kGeluErf>};
extern const OpDef op_gelu_tanh = {.name = "gelu_tanh",
                                   .infer = same_as_first,
                                   .define = gelu_tanh,
                                   .pattern = true,
                                   .lower = lower_unary<UnaryOp::kGeluTanh>};
extern const OpDef op_swiglu = {.name = "swiglu",
                                .strided_inputs = 3,
                                .infer = swiglu_infer,
                                .define = swiglu,
                                .pattern = true,
                                .lower = swiglu_lower};

}  // namespace oar
