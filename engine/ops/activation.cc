// Activations, defined in primitives. Formulas as in kernels/activation.h.
#include "kernels/activation.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/util.h"

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

bool by_tanh(const Attrs& attrs) { return attrs.get_string("approximate", "none") == "tanh"; }

// x/2 * (1 + erf(x / sqrt 2)), or {approximate: tanh}
// x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))      https://arxiv.org/abs/1606.08415
std::vector<Val> gelu(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  Val t;
  if (by_tanh(attrs)) {
    const Val cube = b.op("mul", {b.op("mul", {b.op("square", {in[0]}), in[0]}), b.scalar(0.044715)});
    t = b.op("tanh", {b.op("mul", {b.op("add", {in[0], cube}), b.scalar(0.79788456080286536)})});
  } else {
    t = b.op("erf", {b.op("mul", {in[0], b.scalar(0.70710678118654752)})});
  }
  return {b.op("mul", {b.op("mul", {in[0], b.scalar(0.5)}), b.op("add", {t, b.scalar(1)})})};
}

Lowered gelu_lower(LowerContext& ctx) {
  return lower_unary(ctx, by_tanh(ctx.node.attrs) ? UnaryOp::kGeluTanh : UnaryOp::kGeluErf);
}

// swiglu(gate, up) {alpha: 1} = gate * sigmoid(alpha gate) * up
std::vector<Val> swiglu(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const double alpha = attrs.get_float("alpha", 1);
  if (alpha == 1) return {b.op("mul", {b.op("silu", {in[0]}), in[1]})};
  const Val gate = b.op("mul", {in[0], b.op("sigmoid", {b.op("mul", {in[0], b.scalar(alpha)})})});
  return {b.op("mul", {gate, in[1]})};
}

Types swiglu_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  if (!(shape_of(g, in[0]) == shape_of(g, in[1])))
    return invalid_argument("gate and up have different shapes");
  return same_as_first(g, in, attrs);
}

Lowered swiglu_lower(LowerContext& ctx) {
  const Known gate = ctx.known(0), up = ctx.known(1);
  if (!gate.f32() || !up.f32() || !gate.same_shape(up) || ctx.node.attrs.get_float("alpha", 1) != 1)
    return not_lowered();
  // Rows of a graph's matrices may be apart; those of a run are dense.
  if (gate.rank() != 2 && !ctx.in_run()) return not_lowered();
  return lower_like(ctx, 0, KernelFamily::kSwiGlu, SwiGluArgs{}, 0.5, 3,
                    [](SwiGluArgs& a, const Operand* in, const Operand* out) {
                      const auto stride = [](const Operand& o) {
                        return o.rank == 2 ? o.row_stride : o.cols();
                      };
                      a.out = out[0].as<float>();
                      a.gate = in[0].as<const float>();
                      a.up = in[1].as<const float>();
                      a.T = out[0].rows();
                      a.F = out[0].cols();
                      a.ldo = stride(out[0]);
                      a.ldg = stride(in[0]);
                      a.ldu = stride(in[1]);
                    });
}

// Any floats, broadcast; in double, rounded once.
Status swiglu_evaluate(EvalContext& ctx) {
  const double alpha = ctx.attrs().get_float("alpha", 1);
  OAR_ASSIGN(const Tensor gate, ctx.tensor(0));
  OAR_ASSIGN(const Tensor up, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(tensor::check_same_dtype(gate, up));
  OAR_ASSIGN(const auto b, tensor::Broadcast::make({&gate.shape(), &up.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), tensor::dtype_of(gate)));
  const bool done = dispatch_float(tensor::dtype_of(gate), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    tensor::zip_elements<T, T>(ctx, b, gate, up, out, [alpha](double x, double y) {
      return static_cast<C>(x / (1 + std::exp(-alpha * x)) * y);
    });
  });
  if (!done) return tensor::bad_dtype(gate);
  ctx.set(0, std::move(out));
  return ok_status();
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
                              .lower = gelu_lower};
extern const OpDef op_swiglu = {.name = "swiglu",
                                .strided_inputs = 3,
                                .infer = swiglu_infer,
                                .define = swiglu,
                                .pattern = true,
                                .evaluate = swiglu_evaluate,
                                .lower = swiglu_lower};

}  // namespace oar
