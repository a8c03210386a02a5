// embedding(table (V, E), ids (T)) -> (T, E): rows of a table in any storage format, decoded. Ids were
// checked against V when the request was validated. attribute `format`: what a table that is an expression is
// stored as; empty: f32.
#include "kernels/embedding.h"
#include "engine/ops/gradient/gradients.h"
#include "engine/ops/weights.h"

namespace oar {
namespace {

Types embedding_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 2, "table"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 1, "ids"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[1], "ids"));
  return std::vector<TensorType>{f32_type({shape_of(g, in[1])[0], shape_of(g, in[0])[1]})};
}

Status embedding_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const int64_t rows = in[0]->shape[0], cols = in[0]->shape[1];
  const double scale = attrs.get_float("scale", 1);
  for (size_t t = 0; t < in[1]->i.size(); ++t) {
    const int64_t id = in[1]->i[t];
    if (id < 0 || id >= rows) return invalid_argument(cat("id ", id, " is outside the vocabulary of ", rows));
    for (int64_t c = 0; c < cols; ++c)
      out[0].f[t * static_cast<size_t>(cols) + static_cast<size_t>(c)] =
          scale * in[0]->f[static_cast<size_t>(id * cols + c)];
  }
  return ok_status();
}

Status embedding_evaluate(EvalContext& ctx) { return evaluate_as(ctx, embedding_infer, embedding_reference); }

Lowered embedding_lower(LowerContext& ctx) {
  if (ctx.in_run()) return not_lowered();
  if (!ctx.is_weight(0)) return not_lowered();
  const auto format = ctx.is_expression(0) ? Format::find(ctx.node.attrs.get_string("format", "f32"))
                                           : std::optional(ctx.weight_format(0));
  OAR_CHECK(format && (!ctx.is_expression(0) || format->info().encode),
            "a pass names a format that can be written");
  if (ctx.backend.find_kernel({KernelFamily::kEmbedding, *format}) == nullptr) { return not_lowered(); }
  OAR_ASSIGN(const StoredWeight* table, weight_rows(ctx, 0, *format));
  const Shape shape = ctx.weight_shape(0);
  EmbeddingArgs args;
  args.format = *format;
  args.V = shape[0];
  args.E = shape[1];
  args.scale = static_cast<float>(ctx.node.attrs.get_float("scale", 1));
  args.table = table->data();
  return lower_kernel(ctx, {KernelFamily::kEmbedding, args.format}, args,
                      [](EmbeddingArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.ids = in[1].as<const int32_t>();
                        a.T = in[1].dims[0];
                      });
}

}  // namespace

extern const OpDef op_embedding = {.name = "embedding",
                                   .infer = embedding_infer,
                                   .vjp = gradient::embedding,
                                   .evaluate = embedding_evaluate,
                                   .lower = embedding_lower,
                                   .weight_expressions = true};

}  // namespace oar
