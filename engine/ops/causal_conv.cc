// Short depthwise convolutions over packed rows, as models write them and as they are served.
//   causal_conv(x (T, C), w (C, L) or (C, 1, L), bias (C) or none, segments (T)) -> (T, C)
//     out[t] = bias + sum over i of w[:, i] x[t - (L - 1) + i], over rows of t's own segment, whose rows lie
//     together in order. So encoders and training run it. That of language models the serve pass replaces by
//   served_causal_conv(borders, rows, border_tables, row_tables, row_slots, seq_start, context_len, x, w,
//   bias) {page_tokens} -> borders', (T, C)
//     whose sequences go on from the rows in front of the step (kernels/causal_conv.h).
// The layer of LFM2 (https://arxiv.org/abs/2511.23404) and, with a kernel of 4, what Mamba and gated delta
// layers have in front of their scans.
#include "kernels/causal_conv.h"

#include "engine/ops/define/definitions.h"
#include "engine/ops/op_util.h"

namespace oar {
namespace {

struct Sizes {
  int64_t C = 0, L = 0;
};
// Of w and the bias behind x, which is operand `first`.
Result<Sizes> check_sizes(const Graph& g, Ids in, size_t first) {
  OAR_RETURN_IF_ERROR(check_rank(g, in, first, 2, "x"));
  if (!given(in, first + 1)) return invalid_argument("w is missing");
  const DimVector& w = shape_of(g, in[first + 1]);
  if ((w.size() != 2 && (w.size() != 3 || !(w[1] == Dim(1)))) || !w[0].is_const() || !w.back().is_const())
    return invalid_argument("w must be (C, L) or (C, 1, L)");
  const Sizes sizes{w[0].const_value(), w.back().const_value()};
  if (sizes.C < 1 || sizes.L < 1) return invalid_argument("w has no numbers");
  OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[first])[1], w[0], "channels of x and w"));
  if (given(in, first + 2)) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, first + 2, 1, "bias"));
    OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[first + 2])[0], w[0], "channels of bias and w"));
  }
  return sizes;
}

Types conv_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 4, 4));
  OAR_RETURN_IF_ERROR(check_sizes(g, in, 0).status());
  OAR_RETURN_IF_ERROR(check_rank(g, in, 3, 1, "segments"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[3], "segments"));
  OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[0])[0], shape_of(g, in[3])[0], "rows of x and segments"));
  return std::vector<TensorType>{f32_type(shape_of(g, in[0]))};
}

// Rows moved behind by j, those of other segments zero, times the j-th column from the last.
std::vector<Val> conv_define(Builder& b, std::span<const Val> in, const Attrs&) {
  using namespace definition;
  if (!b.status().ok()) return {};
  const int64_t C = b.dim(in[1], 0).const_value(), L = b.dim(in[1], -1).const_value();
  const Val w = reshaped(b, real(b, in[1]), {C, L}), segment = real(b, in[3]);
  const auto behind = [&](Val v, int64_t j, Ints pads) {
    return j == 0 ? v : b.op("pad", {v}, {{"pads", std::move(pads)}});
  };
  Val sum;
  for (int64_t j = L - 1; j >= 0; --j) {
    Val x = behind(in[0], j, {j, 0, -j, 0});
    if (j > 0) {
      const Val own = b.op("equal", {segment, behind(segment, j, {j, -j})});
      x = b.op("where", {reshaped(b, own, {-1, 1}), x, b.scalar(0)});
    }
    const Val part = b.op("mul", {x, reshaped(b, cut(b, w, 1, L - 1 - j, L - j), {C})});
    sum = sum ? b.op("add", {sum, part}) : part;
  }
  return {in[2] ? b.op("add", {sum, real(b, in[2])}) : sum};
}

Status conv_reference(HostInputs in, const Attrs&, std::span<HostValue> out) {
  const Shape& x = in[0]->shape;
  const auto T = static_cast<size_t>(x[0]), C = static_cast<size_t>(x[1]);
  const auto L = static_cast<size_t>(in[1]->shape[in[1]->shape.rank() - 1]);
  for (size_t t = 0; t < T; ++t) {
    for (size_t c = 0; c < C; ++c) {
      double sum = in[2] != nullptr ? in[2]->f[c] : 0;
      for (size_t j = 0; j < L && j <= t && in[3]->i[t - j] == in[3]->i[t]; ++j)
        sum += in[1]->f[c * L + L - 1 - j] * in[0]->f[(t - j) * C + c];
      out[0].f[t * C + c] = sum;
    }
  }
  return ok_status();
}

Status conv_evaluate(EvalContext& ctx) { return evaluate_as(ctx, conv_infer, conv_reference); }

Result<StateFloats> conv_state(const Graph& g, Ids in, const Attrs&) {
  OAR_ASSIGN(const Sizes sizes, check_sizes(g, in, 0));
  return StateFloats{std::max<int64_t>(1, (sizes.L - 1) * sizes.C), sizes.C};
}

Types served_conv_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_state_operands(g, in, attrs));
  OAR_RETURN_IF_ERROR(check_operands(in, kStateOperands + 3, kStateOperands + 3));
  OAR_ASSIGN(const Sizes sizes, check_sizes(g, in, kStateOperands));
  if (sizes.L - 1 > attrs.get_int("page_tokens"))
    return invalid_argument(cat("a kernel of ", sizes.L, " rows sees beyond a page of ",
                                attrs.get_int("page_tokens"), " tokens; make pages larger"));
  return std::vector<TensorType>{type_of(g, in[0]), f32_type(shape_of(g, in[kStateOperands]))};
}

// w as [L][C].
Result<StoredWeight> taps(const WeightStore& weights, const Tensor& w, Sizes sizes) {
  OAR_ASSIGN(const Tensor from, to_f32(w));
  OAR_ASSIGN(Tensor to, Tensor::allocate({sizes.L, sizes.C}, Format::f32()));
  const auto source = from.values<float>();
  const auto target = to.mutable_values<float>();
  for (int64_t c = 0; c < sizes.C; ++c)
    for (int64_t i = 0; i < sizes.L; ++i)
      target[static_cast<size_t>(i * sizes.C + c)] = source[static_cast<size_t>(c * sizes.L + i)];
  return weights.place(to, true);
}

Lowered served_conv_lower(LowerContext& ctx) {
  constexpr size_t x = kStateOperands, w = x + 1, bias = x + 2;
  if (!ctx.is_weight(w) || !ctx.is_f32_operand(x) || !ctx.is_f32_operand(bias)) return not_lowered();
  const Shape shape = ctx.weight_shape(w);
  const Sizes sizes{shape[0], shape[shape.rank() - 1]};
  CausalConvArgs args;
  args.C = sizes.C;
  args.L = sizes.L;
  args.state.page_tokens = static_cast<int32_t>(ctx.node.attrs.get_int("page_tokens"));
  OAR_ASSIGN(const StoredWeight* stored,
             ctx.weight(w, "taps", [&](const Tensor& t) { return taps(ctx.weights, t, sizes); }));
  args.w = static_cast<const float*>(stored->data());
  OAR_ASSIGN(args.bias, ctx.f32_operand(bias));
  return lower_kernel(ctx, {KernelFamily::kCausalConv}, args,
                      [](CausalConvArgs& a, const Operand* in, const Operand* out) {
                        if (a.bias == nullptr) a.bias = in[bias].as<const float>();
                        fill_state(a.state, in);
                        a.out = out[1].as<float>();
                        a.x = in[kStateOperands].as<const float>();
                        a.T = in[kStateOperands].dims[0];
                        a.ldx = in[kStateOperands].row_stride;
                        a.ldo = out[1].row_stride;
                      });
}

}  // namespace

extern const OpDef op_causal_conv = {.name = "causal_conv",
                                     .infer = conv_infer,
                                     .define = conv_define,
                                     .costly_definition = true,
                                     .evaluate = conv_evaluate,
                                     .state = conv_state,
                                     .served = "served_causal_conv"};
extern const OpDef op_served_causal_conv = {.name = "served_causal_conv",
                                            .effect = true,
                                            .strided_inputs = 1u << kStateOperands,
                                            .infer = served_conv_infer,
                                            .lower = served_conv_lower};

}  // namespace oar
