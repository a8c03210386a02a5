// rope(x (T, heads, D), positions (T), inv_freq (R/2), head norm weight (D) or none): rotary embedding,
// https://arxiv.org/abs/2104.09864, in the layouts kernels/rope.h describes, with an optional RMS norm of
// each head first.
#include "kernels/rope.h"
#include "engine/graph/cut.h"
#include "engine/ops/op_util.h"

namespace oar {
namespace {

Types infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 4, 4));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 3, "x"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 1, "positions"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[1], "positions"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 2, 1, "inv_freq"));
  const DimVector& x = shape_of(g, in[0]);
  OAR_RETURN_IF_ERROR(check_same(x[0], shape_of(g, in[1])[0], "rows of x and positions"));
  if (2 * shape_of(g, in[2])[0].const_value() > x[2].const_value())
    return invalid_argument("rotates more dims than a head has");
  if (given(in, 3))
    OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[3])[0], x[2], "head norm weight and head size"));
  return std::vector<TensorType>{f32_type(x)};
}

std::vector<Val> define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  Val x = in[0];
  if (in[3]) x = b.op("rms_norm", {x, in[3]}, {{"epsilon", attrs.get_float("norm_eps")}});
  const int64_t D = b.dim(x, -1).const_value(), half = b.dim(in[2], 0).const_value(),
                H = b.dim(x, 1).const_value();
  // (T, 1, half)
  const Val pos = b.op("reshape", {b.op("cast", {in[1]}, {{"to", std::string("f64")}})},
                       {{"shape", std::vector<int64_t>{0, 1, 1}}});
  const Val angle = b.op("mul", {pos, in[2]});
  const Val mscale = b.scalar(attrs.get_float("mscale", 1));
  const Val c = b.op("mul", {b.op("cos", {angle}), mscale}), s = b.op("mul", {b.op("sin", {angle}), mscale});
  const auto slice = [&](Val v, int64_t begin, int64_t end) {
    return b.op("slice", {v}, cut_attrs(-1, begin, end));
  };
  const auto rotate = [&](Val u, Val v) {
    return std::pair(b.op("sub", {b.op("mul", {u, c}), b.op("mul", {v, s})}),
                     b.op("add", {b.op("mul", {v, c}), b.op("mul", {u, s})}));
  };
  std::vector<Val> parts;
  if (attrs.get_bool("interleaved")) {
    const std::vector<int64_t> flat{0, H, half}, pairs{0, H, half, 2}, column{0, H, half, 1};
    const Val rotated = b.op("reshape", {slice(x, 0, 2 * half)}, {{"shape", pairs}});
    const auto [u, v] = rotate(b.op("reshape", {slice(rotated, 0, 1)}, {{"shape", flat}}),
                               b.op("reshape", {slice(rotated, 1, 2)}, {{"shape", flat}}));
    const Val joined =
        b.op("concat", {b.op("reshape", {u}, {{"shape", column}}), b.op("reshape", {v}, {{"shape", column}})},
             {{"axis", int64_t{-1}}});
    parts.push_back(b.op("reshape", {joined}, {{"shape", std::vector<int64_t>{0, H, 2 * half}}}));
  } else {
    const auto [u, v] = rotate(slice(x, 0, half), slice(x, half, 2 * half));
    parts = {u, v};
  }
  if (2 * half < D) parts.push_back(slice(x, 2 * half, D));
  return {b.op("concat", parts, {{"axis", int64_t{-1}}})};
}

Lowered lower(LowerContext& ctx) {
  if (!ctx.is_f32_operand(2) || !ctx.is_f32_operand(3)) return not_lowered();
  RopeArgs args;
  args.mscale = static_cast<float>(ctx.node.attrs.get_float("mscale", 1));
  args.interleaved = ctx.node.attrs.get_bool("interleaved");
  args.norm_eps = static_cast<float>(ctx.node.attrs.get_float("norm_eps", 1e-6));
  args.rot_dim = 2 * shape_of(ctx.graph, ctx.node.inputs[2])[0].const_value();
  OAR_ASSIGN(args.inv_freq, ctx.f32_operand(2));
  OAR_ASSIGN(args.norm_w, ctx.f32_operand(3));
  return lower_kernel(ctx, KernelFamily::kRope, Format::f32(), args,
                      [](RopeArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.x = in[0].as<const float>();
                        if (a.inv_freq == nullptr) a.inv_freq = in[2].as<const float>();
                        if (a.norm_w == nullptr) a.norm_w = in[3].as<const float>();
                        a.positions = in[1].as<const int32_t>();
                        a.T = in[0].dims[0];
                        a.heads = in[0].dims[1];
                        a.D = in[0].dims[2];
                        a.ldx = in[0].row_stride;
                        a.ldo = out[0].row_stride;
                      });
}

}  // namespace

extern const OpDef op_rope = {
    .name = "rope", .strided_inputs = 1, .infer = infer, .define = define, .lower = lower};

}  // namespace oar
