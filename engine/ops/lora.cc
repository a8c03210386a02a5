// lora(y (T, N), x (T, K), index (T), ranks (S), a (S, R, K), b (S, R, n)) {column} -> y with low-rank
// adapters' parts added in place: b[s]^T (a[s] x[t]) to columns [column, column + n) of each row t with
// s = index[t] >= 0. ranks, a and b are states: adapters come and go while programs run
// (passes/adapters.h).
#include "kernels/lora.h"

#include "engine/ops/op_util.h"

namespace oar {
namespace {

Types lora_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 6, 6));
  static constexpr const char* kNames[] = {"y", "x", "index", "ranks", "a", "b"};
  static constexpr size_t kRanks[] = {2, 2, 1, 1, 3, 3};
  for (size_t k = 0; k < 6; ++k) OAR_RETURN_IF_ERROR(check_rank(g, in, k, kRanks[k], kNames[k]));
  OAR_RETURN_IF_ERROR(check_integer(g, in[2], "index"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[3], "ranks"));
  const DimVector &y = shape_of(g, in[0]), &x = shape_of(g, in[1]), &a = shape_of(g, in[4]),
                  &b = shape_of(g, in[5]);
  OAR_RETURN_IF_ERROR(check_same(y[0], x[0], "rows of y and of x"));
  OAR_RETURN_IF_ERROR(check_same(y[0], shape_of(g, in[2])[0], "rows of y and of index"));
  OAR_RETURN_IF_ERROR(check_same(a[2], x[1], "columns of a and of x"));
  OAR_RETURN_IF_ERROR(check_same(a[1], b[1], "ranks of a and of b"));
  OAR_RETURN_IF_ERROR(check_same(a[0], b[0], "slots of a and of b"));
  OAR_RETURN_IF_ERROR(check_same(a[0], shape_of(g, in[3])[0], "slots of a and of ranks"));
  const Format format = type_of(g, in[4]).format;
  if (!(format == Format::f32() || format == Format::bf16()) || !(type_of(g, in[5]).format == format))
    return invalid_argument("a and b must both be f32 or bf16");
  const int64_t column = attrs.get_int("column");
  if (column < 0 || column + b[2].const_value() > y[1].const_value())
    return invalid_argument(cat("column ", column, " and ", b[2].const_value(), " more lie outside y"));
  return std::vector<TensorType>{type_of(g, in[0])};
}

Lowered lora_lower(LowerContext& ctx) {
  LoraArgs args;
  args.format = type_of(ctx.graph, ctx.node.inputs[4]).format;
  const int64_t column = ctx.node.attrs.get_int("column");
  return lower_kernel(ctx, {.family = KernelFamily::kLora, .weight = args.format}, args,
                      [column](LoraArgs& a, const Operand* in, const Operand* out) {
                        a.y = out[0].as<float>() + column;
                        a.x = in[1].as<const float>();
                        a.index = in[2].as<const int32_t>();
                        a.ranks = in[3].as<const int32_t>();
                        a.a = in[4].data;
                        a.b = in[5].data;
                        a.T = in[1].dims[0];
                        a.K = in[1].dims[1];
                        a.R = in[4].dims[1];
                        a.n = in[5].dims[2];
                        a.ldx = in[1].row_stride;
                        a.ldy = out[0].row_stride;
                      });
}

}  // namespace

extern const OpDef op_lora = {
    .name = "lora", .effect = true, .strided_inputs = 0b11, .infer = lora_infer, .lower = lora_lower};

}  // namespace oar
