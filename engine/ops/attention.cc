// Attention, as models write it and as it is served.
//   attention(q (T, H, D), k (T, K, D), v (T, K, D) or none, positions (T), segments (T), sinks (H) or none)
//   {scale, window, softcap, causal: 1, latent} -> (T, H, D)
//     over packed tokens: row t sees rows of its own segment at positions [pos - window + 1, pos]; without
//     `causal` all of its segment, whose rows lie together, or those less than `window` positions away.
//     `chunked` windows do not slide: a row sees its own of the chunks of `window` positions. Positions may
//     be left out where nothing asks for them. So encoders run it. A head's sink is one more logit of its
//     softmax, whose value is zero. Without v the first `latent` dims of k are values, (T, H, latent) the
//     result. That of language models the serve pass replaces by
//   kv_append(pool, k, v, slots) -> pool'   and   paged_attention(q, pool', block_tables, seq_start,
//   context_len, sinks), or, over a quantized cache (kernels/kv_quant.h), by
//   quant_kv_append(pool, open, sinks, k, v, slots, open_slots, sink_slots) -> pool'   and
//   quant_paged_attention(q, pool', open, sinks, block_tables, open_tables, sink_tables, seq_start,
//   context_len, sinks) whose 16-bit states are written by the same append: who reads pool' reads them after
//   it. Attention with `generated` leaves rows of prompts out (expanded_attention.cc has them).
#include <cmath>
#include <utility>

#include "engine/ops/cache_keys.h"
#include "engine/ops/define/definitions.h"
#include "engine/ops/op_util.h"
#include "kernels/attention.h"
#include "kernels/kv_quant.h"

namespace oar {
namespace {

// Operand k, one number for each head of q.
Status check_sinks(const Graph& g, Ids in, size_t k) {
  if (!given(in, k)) return ok_status();
  OAR_RETURN_IF_ERROR(check_rank(g, in, k, 1, "sinks"));
  return check_same(shape_of(g, in[k])[0], shape_of(g, in[0])[1], "sinks and query heads");
}

Types attention_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 5, 6));
  const bool causal = attrs.get_bool("causal", true);
  if (!given(in, 3) && (causal || attrs.get_int("window") > 0))
    return invalid_argument("a causal mask and a window need positions");
  const char* names[] = {"q", "k", "v"};
  const int64_t latent = attrs.get_int("latent");
  for (size_t k = 0; k < (latent > 0 ? 2 : 3); ++k) OAR_RETURN_IF_ERROR(check_rank(g, in, k, 3, names[k]));
  const DimVector& q = shape_of(g, in[0]);
  const DimVector& k = shape_of(g, in[1]);
  if (latent != 0 && (given(in, 2) || latent < 0 || latent > k[2].const_value()))
    return invalid_argument(cat("values are ", latent, " dims of keys of ", k[2].const_value(),
                                given(in, 2) ? ", and an operand too" : ""));
  if (latent == 0 && !(k == shape_of(g, in[2]))) return invalid_argument("k and v have different shapes");
  OAR_RETURN_IF_ERROR(check_same(q[0], k[0], "rows of q and k"));
  OAR_RETURN_IF_ERROR(check_same(q[2], k[2], "head sizes of q and k"));
  if (!given(in, 4)) return invalid_argument("segments are missing");
  for (size_t row = 3; row < 5; ++row) {
    if (!given(in, row)) continue;
    OAR_RETURN_IF_ERROR(check_rank(g, in, row, 1, row == 3 ? "positions" : "segments"));
    OAR_RETURN_IF_ERROR(check_integer(g, in[row], row == 3 ? "positions" : "segments"));
    OAR_RETURN_IF_ERROR(check_same(q[0], shape_of(g, in[row])[0], "rows of q and what is known of them"));
  }
  if (k[1].const_value() < 1) return invalid_argument("there are no key/value heads");
  if (q[1].const_value() % k[1].const_value() != 0) {
    return invalid_argument(
        cat(q[1].const_value(), " query heads are no multiple of ", k[1].const_value(), " key/value heads"));
  }
  OAR_RETURN_IF_ERROR(check_sinks(g, in, 5));
  return std::vector<TensorType>{f32_type({q[0], q[1], latent > 0 ? Dim(latent) : q[2]})};
}

Status attention_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const Shape& q = in[0]->shape;
  const auto T = static_cast<size_t>(q[0]), H = static_cast<size_t>(q[1]), D = static_cast<size_t>(q[2]);
  const auto K = static_cast<size_t>(in[1]->shape[1]), DV = static_cast<size_t>(out[0].shape[2]);
  const HostValue& v = in[2] != nullptr ? *in[2] : *in[1];
  const double scale = attrs.get_float("scale"), cap = attrs.get_float("softcap");
  const int64_t window = attrs.get_int("window");
  const bool causal = attrs.get_bool("causal", true), chunked = window > 0 && attrs.get_bool("chunked");
  for (size_t t = 0; t < T; ++t) {
    for (size_t h = 0; h < H; ++h) {
      const size_t kh = h / (H / K);
      std::vector<double> p(T, 0);
      std::vector<bool> seen(T, false);
      const bool sunk = in.size() > 5 && in[5] != nullptr;
      double most = sunk ? in[5]->f[h] : -INFINITY;
      for (size_t s = 0; s < T; ++s) {
        const int64_t back = in[3] != nullptr ? in[3]->i[t] - in[3]->i[s] : 0;
        if (in[4]->i[s] != in[4]->i[t] || (causal && back < 0) ||
            (window > 0 && (back >= window || (!causal && -back >= window))))
          continue;
        if (chunked && in[3]->i[s] / window != in[3]->i[t] / window) continue;
        double dot = 0;
        for (size_t d = 0; d < D; ++d) dot += in[0]->f[(t * H + h) * D + d] * in[1]->f[(s * K + kh) * D + d];
        dot *= scale;
        p[s] = cap > 0 ? cap * std::tanh(dot / cap) : dot;
        seen[s] = true;
        most = std::max(most, p[s]);
      }
      double sum = sunk ? std::exp(in[5]->f[h] - most) : 0;
      for (size_t s = 0; s < T; ++s) sum += p[s] = seen[s] ? std::exp(p[s] - most) : 0;
      for (size_t d = 0; d < DV; ++d) {
        double acc = 0;
        for (size_t s = 0; s < T; ++s) acc += p[s] * v.f[(s * K + kh) * D + d];
        out[0].f[(t * H + h) * DV + d] = acc / sum;
      }
    }
  }
  return ok_status();
}

Status attention_evaluate(EvalContext& ctx) { return evaluate_as(ctx, attention_infer, attention_reference); }

Lowered segments_lower(LowerContext& ctx) {
  if (ctx.in_run()) return not_lowered();
  const Attrs& attrs = ctx.node.attrs;
  if (attrs.get_bool("causal", true) || attrs.get_float("softcap") > 0 || attrs.get_bool("chunked") ||
      attrs.get_int("latent") > 0 || ctx.given(5))
    return not_lowered();
  SegmentAttentionArgs args;
  args.window = attrs.get_int("window");
  args.scale = static_cast<float>(attrs.get_float("scale"));
  return lower_kernel(ctx, {KernelFamily::kSegmentAttention}, args,
                      [](SegmentAttentionArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.q = in[0].as<const float>();
                        a.k = in[1].as<const float>();
                        a.v = in[2].as<const float>();
                        if (a.window > 0) a.positions = in[3].as<const int32_t>();
                        a.segments = in[4].as<const int32_t>();
                        a.T = in[0].dims[0];
                        a.H = in[0].dims[1];
                        a.K = in[1].dims[1];
                        a.D = in[0].dims[2];
                        a.ldq = in[0].row_stride;
                        a.ldk = in[1].row_stride;
                        a.ldv = in[2].row_stride;
                        a.ldo = out[0].row_stride;
                      });
}

KvShape kv_shape(const Attrs& a) {
  return {static_cast<DType>(a.get_int("kv_type")), static_cast<int32_t>(a.get_int("page_tokens")),
          static_cast<int32_t>(a.get_int("kv_heads")), static_cast<int32_t>(a.get_int("head_dim")),
          static_cast<int32_t>(a.get_int("latent"))};
}

Types append_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 4, 4));
  if (g.value(in[0]).kind != ValueKind::kState) return invalid_argument("the first operand must be a state");
  OAR_RETURN_IF_ERROR(check_integer(g, in[3], "slots"));
  return std::vector<TensorType>{type_of(g, in[0])};
}

KernelKey of_cache(const LowerContext& ctx, KernelKey key) {
  return oar::of_cache(ctx.backend, ctx.node.attrs.get_int("latent") > 0, std::move(key));
}

Lowered append_lower(LowerContext& ctx) {
  KvAppendArgs args;
  args.shape = kv_shape(ctx.node.attrs);
  return lower_kernel(ctx, of_cache(ctx, {KernelFamily::kKvAppend, Format::of(args.shape.type)}), args,
                      [](KvAppendArgs& a, const Operand* in, const Operand*) {
                        a.pool = in[0].data;
                        a.k = in[1].as<const float>();
                        if (a.shape.latent == 0) a.v = in[2].as<const float>();
                        a.slots = in[3].as<const int32_t>();
                        a.T = in[1].dims[0];
                        a.ldk = in[1].row_stride;
                        a.ldv = in[2].row_stride;
                      });
}

// The type of what attention over pages makes of q.
std::vector<TensorType> over_pages(const Graph& g, ValueId q, const Attrs& attrs) {
  const DimVector& shape = shape_of(g, q);
  const int64_t latent = attrs.get_int("latent");
  return {f32_type({shape[0], shape[1], latent > 0 ? Dim(latent) : shape[2]})};
}

Types paged_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 5, 6));
  OAR_RETURN_IF_ERROR(check_sinks(g, in, 5));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 3, "q"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 2, 2, "block_tables"));
  for (size_t k = 2; k < 5; ++k)
    OAR_RETURN_IF_ERROR(check_integer(g, in[k], "block tables, seq_start and context_len"));
  return over_pages(g, in[0], attrs);
}

Lowered paged_lower(LowerContext& ctx) {
  const Attrs& attrs = ctx.node.attrs;
  PagedAttentionArgs args;
  args.shape = kv_shape(attrs);
  args.scale = static_cast<float>(attrs.get_float("scale"));
  args.softcap = static_cast<float>(attrs.get_float("softcap"));
  args.window = attrs.get_int("window");
  args.chunked = attrs.get_bool("chunked") ? 1 : 0;
  constexpr size_t sinks = 5;
  if (!ctx.is_f32_operand(sinks)) return not_lowered();
  OAR_ASSIGN(args.sink_logits, ctx.f32_operand(sinks));
  const bool computed = ctx.given(sinks) && args.sink_logits == nullptr;
  return lower_kernel(ctx, of_cache(ctx, {KernelFamily::kPagedAttention, Format::of(args.shape.type)}), args,
                      [generated = attrs.get_bool("generated"), computed](
                          PagedAttentionArgs& a, const Operand* in, const Operand* out) {
                        if (computed) a.sink_logits = in[sinks].as<const float>();
                        a.out = out[0].as<float>();
                        a.q = in[0].as<const float>();
                        a.pool = in[1].data;
                        a.block_tables = in[2].as<const int32_t>();
                        a.seq_start = in[3].as<const int32_t>();
                        a.context_len = in[4].as<const int32_t>();
                        a.T = generated ? in[0].prompts_from : in[0].dims[0];
                        a.H = in[0].dims[1];
                        a.ldq = in[0].row_stride;
                        a.ldo = out[0].row_stride;
                        a.B = in[2].dims[0];
                        a.max_blocks = in[2].dims[1];
                      });
}

QuantKvShape quant_kv_shape(const Attrs& a) {
  return {static_cast<KvCode>(a.get_int("key_code")),     static_cast<KvCode>(a.get_int("value_code")),
          static_cast<int32_t>(a.get_int("page_tokens")), static_cast<int32_t>(a.get_int("kv_heads")),
          static_cast<int32_t>(a.get_int("head_dim")),    static_cast<int32_t>(a.get_int("latent"))};
}

KernelKey quant_kv_key(KernelFamily family, const QuantKvShape& shape) {
  return oar::quant_kv_key(family, shape.keys, shape.values);
}

Types quant_append_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 8, 8));
  for (size_t k = 0; k < 3; ++k) {
    if (g.value(in[k]).kind != ValueKind::kState) return invalid_argument("the pools must be states");
  }
  for (size_t k = 5; k < 8; ++k) OAR_RETURN_IF_ERROR(check_integer(g, in[k], "slots"));
  return std::vector<TensorType>{type_of(g, in[0])};
}

Lowered quant_append_lower(LowerContext& ctx) {
  QuantKvAppendArgs args;
  args.shape = quant_kv_shape(ctx.node.attrs);
  return lower_kernel(ctx, of_cache(ctx, quant_kv_key(KernelFamily::kQuantKvAppend, args.shape)), args,
                      [](QuantKvAppendArgs& a, const Operand* in, const Operand*) {
                        a.pool = in[0].data;
                        a.open = in[1].data;
                        a.sinks = in[2].data;
                        a.k = in[3].as<const float>();
                        if (a.shape.latent == 0) a.v = in[4].as<const float>();
                        a.slots = in[5].as<const int32_t>();
                        a.open_slots = in[6].as<const int32_t>();
                        a.sink_slots = in[7].as<const int32_t>();
                        a.T = in[3].dims[0];
                        a.ldk = in[3].row_stride;
                        a.ldv = in[4].row_stride;
                      });
}

Types quant_paged_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 9, 10));
  OAR_RETURN_IF_ERROR(check_sinks(g, in, 9));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 3, "q"));
  for (size_t k = 4; k < 7; ++k) OAR_RETURN_IF_ERROR(check_rank(g, in, k, 2, "block tables"));
  for (size_t k = 4; k < 9; ++k)
    OAR_RETURN_IF_ERROR(check_integer(g, in[k], "block tables, seq_start and context_len"));
  return over_pages(g, in[0], attrs);
}

Lowered quant_paged_lower(LowerContext& ctx) {
  const Attrs& attrs = ctx.node.attrs;
  QuantPagedAttentionArgs args;
  args.shape = quant_kv_shape(attrs);
  args.common.shape = open_kv_shape(args.shape);
  args.common.scale = static_cast<float>(attrs.get_float("scale"));
  args.common.softcap = static_cast<float>(attrs.get_float("softcap"));
  args.common.window = attrs.get_int("window");
  args.common.chunked = attrs.get_bool("chunked") ? 1 : 0;
  constexpr size_t sinks = 9;
  if (!ctx.is_f32_operand(sinks)) return not_lowered();
  OAR_ASSIGN(args.common.sink_logits, ctx.f32_operand(sinks));
  const bool computed = ctx.given(sinks) && args.common.sink_logits == nullptr;
  return lower_kernel(ctx, of_cache(ctx, quant_kv_key(KernelFamily::kQuantPagedAttention, args.shape)), args,
                      [generated = attrs.get_bool("generated"), computed](
                          QuantPagedAttentionArgs& a, const Operand* in, const Operand* out) {
                        PagedAttentionArgs& c = a.common;
                        if (computed) c.sink_logits = in[sinks].as<const float>();
                        c.out = out[0].as<float>();
                        c.q = in[0].as<const float>();
                        c.pool = in[1].data;
                        a.open = in[2].data;
                        a.sinks = in[3].data;
                        c.block_tables = in[4].as<const int32_t>();
                        a.open_tables = in[5].as<const int32_t>();
                        a.sink_tables = in[6].as<const int32_t>();
                        c.seq_start = in[7].as<const int32_t>();
                        c.context_len = in[8].as<const int32_t>();
                        c.T = generated ? in[0].prompts_from : in[0].dims[0];
                        c.H = in[0].dims[1];
                        c.ldq = in[0].row_stride;
                        c.ldo = out[0].row_stride;
                        c.B = in[4].dims[0];
                        c.max_blocks = in[4].dims[1];
                        a.open_max_blocks = in[5].dims[1];
                        a.sink_max_blocks = in[6].dims[1];
                      });
}

}  // namespace

extern const OpDef op_attention = {.name = "attention",
                                   .strided_inputs = 0b111,
                                   .infer = attention_infer,
                                   .define = definition::attention,
                                   .costly_definition = true,
                                   .evaluate = attention_evaluate,
                                   .lower = segments_lower};
extern const OpDef op_kv_append = {
    .name = "kv_append", .effect = true, .strided_inputs = 6, .infer = append_infer, .lower = append_lower};
extern const OpDef op_paged_attention = {
    .name = "paged_attention", .strided_inputs = 1, .infer = paged_infer, .lower = paged_lower};

extern const OpDef op_quant_kv_append = {.name = "quant_kv_append",
                                         .effect = true,
                                         .strided_inputs = 0b11000,
                                         .infer = quant_append_infer,
                                         .lower = quant_append_lower};
extern const OpDef op_quant_paged_attention = {.name = "quant_paged_attention",
                                               .strided_inputs = 1,
                                               .infer = quant_paged_infer,
                                               .lower = quant_paged_lower};

}  // namespace oar
