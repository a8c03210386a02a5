// Activations, defined in primitives. Formulas as in kernels/activation.h and kernels/conv.h (Epilogue).
#include "kernels/activation.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/util.h"
#include "kernels/conv.h"

namespace oar {
namespace {

// max(x, 0)
std::vector<Val> relu(Builder& b, std::span<const Val> in, const Attrs&) {
  return {b.op("max", {in[0], b.scalar(0)})};
}

// {alpha: 1} x * sigmoid(alpha x), https://arxiv.org/abs/1710.05941
std::vector<Val> silu(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const double alpha = attrs.get_float("alpha", 1);
  const Val x = alpha == 1 ? in[0] : b.op("mul", {in[0], b.scalar(alpha)});
  return {b.op("mul", {in[0], b.op("sigmoid", {x})})};
}
Lowered silu_lower(LowerContext& ctx) {
  if (ctx.node.attrs.get_float("alpha", 1) != 1) return not_lowered();
  return lower_unary(ctx, UnaryOp::kSilu);
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

UnaryOp gelu_op(const Attrs& attrs) { return by_tanh(attrs) ? UnaryOp::kGeluTanh : UnaryOp::kGeluErf; }
Lowered gelu_lower(LowerContext& ctx) { return lower_unary(ctx, gelu_op(ctx.node.attrs)); }
Result<bool> gelu_by_kernel(KernelContext& ctx) { return tensor::unary_by_kernel(ctx, gelu_op(ctx.attrs())); }

bool gate_by_gelu(const Attrs& attrs) { return attrs.get_string("act", "silu") == "gelu_tanh"; }

// swiglu(gate, up) {alpha: 1} = gate * sigmoid(alpha gate) * up, or {act: gelu_tanh} = gelu(gate) * up.
// {limit: 0, up_offset: 0}: where limit > 0 of min(gate, limit) and of up within [-limit, limit]; up_offset
// is added to up. https://arxiv.org/abs/2508.10925 (gpt-oss: alpha 1.702, limit 7, offset 1)
struct Gate {
  double alpha, limit, offset;
  bool plain() const { return limit <= 0 && offset == 0; }
};
Gate gate_of(const Attrs& attrs) {
  return {attrs.get_float("alpha", 1), attrs.get_float("limit"), attrs.get_float("up_offset")};
}
std::vector<Val> swiglu(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  if (gate_by_gelu(attrs)) {
    const Val gate = b.op("gelu", {in[0]}, {{"approximate", std::string("tanh")}});
    return {b.op("mul", {gate, in[1]})};
  }
  const Gate how = gate_of(attrs);
  Val gate = in[0], up = in[1];
  if (how.limit > 0) {
    const Val most = b.scalar(how.limit);
    gate = b.op("min", {gate, most});
    up = b.op("max", {b.op("min", {up, most}), b.scalar(-how.limit)});
  }
  if (how.offset != 0) up = b.op("add", {up, b.scalar(how.offset)});
  return {b.op("mul", {b.op("silu", {gate}, how.alpha == 1 ? Attrs{} : Attrs{{"alpha", how.alpha}}), up})};
}

Types swiglu_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  if (!(shape_of(g, in[0]) == shape_of(g, in[1])))
    return invalid_argument("gate and up have different shapes");
  if (gate_by_gelu(attrs) && !gate_of(attrs).plain())
    return invalid_argument("limit and up_offset are of a gate of silu");
  return same_as_first(g, in, attrs);
}

Lowered swiglu_lower(LowerContext& ctx) {
  const Known gate = ctx.known(0), up = ctx.known(1);
  const Gate how = gate_of(ctx.node.attrs);
  if (!gate.f32() || !up.f32() || !gate.same_shape(up) || !(how.alpha > 0)) return not_lowered();
  // Rows of a graph's matrices may be apart; those of a run are dense.
  if (gate.rank() != 2 && !ctx.in_run()) return not_lowered();
  SwiGluArgs args;
  if (gate_by_gelu(ctx.node.attrs)) {
    args.act = UnaryOp::kGeluTanh;
  } else {
    args.alpha = static_cast<float>(how.alpha);
    args.limit = static_cast<float>(std::max(how.limit, 0.0));
    args.up_offset = static_cast<float>(how.offset);
  }
  return lower_like(
      ctx, 0, KernelFamily::kSwiGlu, args, 0.5, 3, [](SwiGluArgs& a, const Operand* in, const Operand* out) {
        const auto stride = [](const Operand& o) { return o.rank == 2 ? o.row_stride : o.cols(); };
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

// ---- in pieces: what lies above 0 and what lies below

Val times(Builder& b, Val x, double factor) { return b.op("mul", {x, b.scalar(factor)}); }
Val above(Builder& b, Val x) { return b.op("max", {x, b.scalar(0)}); }
Val below(Builder& b, Val x) { return b.op("min", {x, b.scalar(0)}); }
// exp(min(x, 0)) - 1: beyond 0 nobody asks, and it would overflow
Val exp_less_one(Builder& b, Val x) { return b.op("sub", {b.op("exp", {below(b, x)}), b.scalar(1)}); }

// {alpha: 0.01} x, or alpha x below 0
double leak(const Attrs& attrs) { return attrs.get_float("alpha", 0.01); }
std::vector<Val> leaky_relu(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  return {b.op("add", {above(b, in[0]), times(b, below(b, in[0]), leak(attrs))})};
}

// {alpha: 1} x, or alpha (exp(x) - 1) below 0, https://arxiv.org/abs/1511.07289
std::vector<Val> elu(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  return {b.op("add", {above(b, in[0]), times(b, exp_less_one(b, in[0]), attrs.get_float("alpha", 1))})};
}

// {alpha: 1} the same of x / alpha, https://arxiv.org/abs/1704.07483
std::vector<Val> celu(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const double alpha = attrs.get_float("alpha", 1);
  // max(0, x) + min(0, alpha (exp(x / alpha) - 1)), whatever the sign of alpha
  const Val bend = b.op("sub", {b.op("exp", {times(b, in[0], 1 / alpha)}), b.scalar(1)});
  return {b.op("add", {above(b, in[0]), below(b, times(b, bend, alpha))})};
}

// {alpha, gamma} gamma elu(x), https://arxiv.org/abs/1706.02515, as ONNX rounds them
constexpr double kSeluAlpha = 1.67326319217681884765625, kSeluGamma = 1.05070102214813232421875;
std::vector<Val> selu(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val x = b.op("elu", {in[0]}, {{"alpha", attrs.get_float("alpha", kSeluAlpha)}});
  return {times(b, x, attrs.get_float("gamma", kSeluGamma))};
}

// {alpha: 0.2, beta: 0.5} alpha x + beta within [0, 1]
struct Line {
  double alpha, beta;
};
Line line_of(const Attrs& attrs, double slope) {
  return {attrs.get_float("alpha", slope), attrs.get_float("beta", 0.5)};
}
std::vector<Val> hard_sigmoid(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Line l = line_of(attrs, 0.2);
  const Val line = b.op("add", {times(b, in[0], l.alpha), b.scalar(l.beta)});
  return {b.op("min", {above(b, line), b.scalar(1)})};
}
// {alpha: 1/6, beta: 0.5} x hard_sigmoid(x), https://arxiv.org/abs/1905.02244
std::vector<Val> hard_swish(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Line l = line_of(attrs, 1.0 / 6);
  const Val gate = b.op("hard_sigmoid", {in[0]}, {{"alpha", l.alpha}, {"beta", l.beta}});
  return {b.op("mul", {in[0], gate})};
}

// log(1 + exp(x)), of which no exp overflows
std::vector<Val> softplus(Builder& b, std::span<const Val> in, const Attrs&) {
  const Val small = b.op("exp", {b.op("neg", {b.op("abs", {in[0]})})});
  return {b.op("add", {above(b, in[0]), b.op("log", {b.op("add", {small, b.scalar(1)})})})};
}
// x / (1 + |x|)
std::vector<Val> softsign(Builder& b, std::span<const Val> in, const Attrs&) {
  return {b.op("div", {in[0], b.op("add", {b.op("abs", {in[0]}), b.scalar(1)})})};
}
// x tanh(softplus(x)), https://arxiv.org/abs/1908.08681
std::vector<Val> mish(Builder& b, std::span<const Val> in, const Attrs&) {
  return {b.op("mul", {in[0], b.op("tanh", {b.op("softplus", {in[0]})})})};
}

// Of an epilogue kind: its line, and what calls its kernel.
template <Epilogue kKind>
Line epilogue_line(const Attrs& attrs) {
  if (kKind == Epilogue::kLeakyRelu) return {leak(attrs), 0};
  if (kKind == Epilogue::kElu) return {attrs.get_float("alpha", 1), 1};
  return line_of(attrs, kKind == Epilogue::kHardSigmoid ? 0.2 : 1.0 / 6);
}
Line selu_line(const Attrs& attrs) {
  const double gamma = attrs.get_float("gamma", kSeluGamma);
  return {gamma * attrs.get_float("alpha", kSeluAlpha), gamma};
}
Lowered selu_lower(LowerContext& ctx) {
  const Line line = selu_line(ctx.node.attrs);
  return tensor::lower_activate(ctx, Epilogue::kElu, line.alpha, line.beta);
}
Result<bool> selu_by_kernel(KernelContext& ctx) {
  const Line line = selu_line(ctx.attrs());
  return tensor::activate_by_kernel(ctx, Epilogue::kElu, line.alpha, line.beta);
}
template <Epilogue kKind>
Lowered epilogue_lower(LowerContext& ctx) {
  const Line line = epilogue_line<kKind>(ctx.node.attrs);
  return tensor::lower_activate(ctx, kKind, line.alpha, line.beta);
}
template <Epilogue kKind>
Result<bool> epilogue_by_kernel(KernelContext& ctx) {
  const Line line = epilogue_line<kKind>(ctx.attrs());
  return tensor::activate_by_kernel(ctx, kKind, line.alpha, line.beta);
}

// Any floats, broadcast; in double, rounded once.
Status swiglu_evaluate(EvalContext& ctx) {
  const Gate how = gate_of(ctx.attrs());
  const bool gelu = gate_by_gelu(ctx.attrs());
  OAR_ASSIGN(const Tensor gate, ctx.tensor(0));
  OAR_ASSIGN(const Tensor up, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(tensor::check_same_dtype(gate, up));
  OAR_ASSIGN(const auto b, tensor::Broadcast::make({&gate.shape(), &up.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), tensor::dtype_of(gate)));
  const bool done = dispatch_float(tensor::dtype_of(gate), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    tensor::zip_elements<T, T>(ctx, b, gate, up, out, [how, gelu](double x, double y) {
      if (how.limit > 0) {
        x = x > how.limit ? how.limit : x;
        y = std::abs(y) > how.limit ? std::copysign(how.limit, y) : y;
      }
      // gelu's tanh form is x sigmoid(2 z)
      const double z = gelu ? 2 * 0.79788456080286536 * (x + 0.044715 * x * x * x) : how.alpha * x;
      return static_cast<C>(x / (1 + std::exp(-z)) * (y + how.offset));
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
                              .by_kernels = tensor::unary_by_kernel<UnaryOp::kRelu>,
                              .lower = lower_unary<UnaryOp::kRelu>};
extern const OpDef op_silu = {.name = "silu",
                              .infer = same_as_first,
                              .define = silu,
                              .pattern = true,
                              .evaluate = tensor::silu,
                              .by_kernels = tensor::silu_by_kernels,
                              .lower = silu_lower};
extern const OpDef op_gelu = {.name = "gelu",
                              .infer = same_as_first,
                              .define = gelu,
                              .pattern = true,
                              .evaluate = tensor::gelu,
                              .by_kernels = gelu_by_kernel,
                              .lower = gelu_lower};
extern const OpDef op_swiglu = {.name = "swiglu",
                                .strided_inputs = 3,
                                .infer = swiglu_infer,
                                .define = swiglu,
                                .pattern = true,
                                .evaluate = swiglu_evaluate,
                                .lower = swiglu_lower};

#define OAR_ACTIVATION(op, ...)  \
  extern const OpDef op_##op = { \
      .name = #op, .infer = same_as_first, .define = op, .evaluate = tensor::op __VA_OPT__(, ) __VA_ARGS__}
OAR_ACTIVATION(celu);
#define OAR_EPILOGUE(op, kind) \
  OAR_ACTIVATION(op, .by_kernels = epilogue_by_kernel<kind>, .lower = epilogue_lower<kind>)
OAR_EPILOGUE(hard_sigmoid, Epilogue::kHardSigmoid);
OAR_EPILOGUE(hard_swish, Epilogue::kHardSwish);
OAR_EPILOGUE(leaky_relu, Epilogue::kLeakyRelu);
OAR_EPILOGUE(elu, Epilogue::kElu);
OAR_EPILOGUE(mish, Epilogue::kMish);
OAR_EPILOGUE(softplus, Epilogue::kSoftplus);
OAR_EPILOGUE(softsign, Epilogue::kSoftsign);
#undef OAR_EPILOGUE
OAR_ACTIVATION(selu, .by_kernels = selu_by_kernel, .lower = selu_lower);
#undef OAR_ACTIVATION

}  // namespace oar
