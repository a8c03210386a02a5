// Attention over a latent whose rows of prompts take the expanded form (kernels/expanded_attention.h), beside
// those of generated tokens, which other ops have computed in the absorbed one.
//   expanded_attention(q (T, H, nope + rope), absorbed (T, H, value), pool, open, sinks, block_tables,
//   open_tables, sink_tables, seq_start, context_len, keys of each head (nope, rank)..., values of each head
//   (value, rank)...) {scale, and as paged_attention or quant_paged_attention} -> (T, H, value)
//     rows of prompts from q, others as they are in `absorbed`. Models write it with their keys (T, 1, rank +
//     rope) in place of the pool and without what follows; the serve pass gives it the pages of the
//     attention with those keys. Of pages that are not quantized there are no open ones and no sinks.
//   generated_rows(seq_start (B + 1), q) -> (B + 1)
//     seq_start as those see it who compute rows of generated tokens alone: others are of no sequence.
#include <algorithm>

#include "engine/ops/op_util.h"
#include "engine/ops/weights.h"
#include "kernels/expanded_attention.h"
#include "kernels/strided_copy.h"

namespace oar {
namespace {

constexpr size_t kPool = 2, kTables = 5, kSequences = 8, kFirstHead = 10;  // operands

Types infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 3, "q"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 3, "absorbed"));
  const DimVector &q = shape_of(g, in[0]), &absorbed = shape_of(g, in[1]);
  const auto H = static_cast<size_t>(q[1].const_value());
  if (in.size() != kFirstHead + 2 * H || !given(in, kPool) || !(absorbed[1] == q[1]))
    return invalid_argument("takes q, absorbed, a cache and two matrices for each head");
  for (size_t k = kFirstHead; k < in.size(); ++k) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, k, 2, "a head's matrix"));
    if (!(shape_of(g, in[k]) == shape_of(g, in[k < kFirstHead + H ? kFirstHead : kFirstHead + H])))
      return invalid_argument("matrices of heads have different shapes");
  }
  const DimVector& values = shape_of(g, in[kFirstHead + H]);
  OAR_RETURN_IF_ERROR(check_same(values[0], absorbed[2], "rows of a head's values and columns of absorbed"));
  return std::vector<TensorType>{f32_type({q[0], q[1], values[0]})};
}

// One side of all heads, prepared for its kernel.
struct Heads {
  std::vector<MatmulSegment> segments;
  ExpandedProduct product;
};
Result<bool> prepare(LowerContext& ctx, size_t first, size_t count, Heads& heads, uint64_t& bytes) {
  for (size_t k = first; k < first + count; ++k) {
    const Format own = compute_format(ctx, k, ctx.node.attrs.get_string("format"));
    if (k > first && !(own == heads.product.format)) return internal_error("heads have different formats");
    heads.product.format = own;
    heads.product.kernel = ctx.backend.find_kernel({KernelFamily::kMatmul, own});
    if (heads.product.kernel == nullptr) return false;
    OAR_ASSIGN(const StoredWeight* w, matmul_weight(ctx, k, own));
    bytes += w->bytes;
    heads.segments.push_back({w->data(), nullptr, ctx.weight_shape(k)[0], 0});
  }
  return true;
}

class PromptsOp final : public LoweredOp {
 public:
  PromptsOp(const ExpandedAttentionArgs& args, Heads keys, Heads values)
      : keys_(std::move(keys)), values_(std::move(values)), args_(args) {
    kernel_ = *args_.product;
    kernel_.name = "expanded_attention";
    kernel_.plan = expanded_attention_plan;
    kernel_.run = expanded_attention_run;
    kernel_.weights = nullptr;
    args_.keys = keys_.product, args_.values = values_.product;
    args_.keys.heads = keys_.segments.data(), args_.values.heads = values_.segments.data();
    args_.inner_scratch = expanded_inner_scratch(args_);
  }
  const Kernel* kernel() const override { return &kernel_; }
  size_t args_bytes() const override { return sizeof(ExpandedAttentionArgs); }
  void fill(void* args, const Operand* in, const Operand* out) const override {
    auto& a = *new (args) ExpandedAttentionArgs(args_);
    a.out = out[0].as<float>();
    a.q = in[0].as<const float>();
    a.T = in[0].dims[0];
    a.first = in[0].prompts_from;
    a.ldq = in[0].row_stride;
    a.ldo = out[0].row_stride;
    PagedAttentionArgs& c = a.pages.common;
    c.pool = in[kPool].data;
    a.pages.open = in[kPool + 1].data;
    a.pages.sinks = in[kPool + 2].data;
    c.block_tables = in[kTables].as<const int32_t>();
    c.max_blocks = in[kTables].dims[1];
    a.pages.open_tables = in[kTables + 1].as<const int32_t>();
    a.pages.open_max_blocks = in[kTables + 1].dims[1];
    a.pages.sink_tables = in[kTables + 2].as<const int32_t>();
    a.pages.sink_max_blocks = in[kTables + 2].dims[1];
    c.seq_start = in[kSequences].as<const int32_t>();
    c.context_len = in[kSequences + 1].as<const int32_t>();
    c.B = in[kTables].dims[0];
  }

 private:
  Kernel kernel_;
  Heads keys_, values_;
  ExpandedAttentionArgs args_;
};

struct StartArgs {
  int32_t* out = nullptr;
  const int32_t* x = nullptr;
  int64_t n = 0, rows = 0;
};
void starts_plan(const void*, int, KernelPlan* out) { *out = {1, {1}}; }
void starts_run(const void* args, int, int64_t, int64_t, const KernelScratch&) {
  const auto& a = *static_cast<const StartArgs*>(args);
  for (int64_t b = 0; b < a.n; ++b) a.out[b] = static_cast<int32_t>(std::min<int64_t>(a.x[b], a.rows));
}

// A kernel of this file alone: no device has it.
Kernel own_kernel(const char* name, decltype(Kernel::plan) plan, decltype(Kernel::run) run) {
  return {KernelFamily::kGatherRows, Isa::kReference, name, std::nullopt, plan, run};
}
const Kernel kStarts = own_kernel("generated_rows", starts_plan, starts_run);

template <class Args, class Fill>
Lowered by(const Kernel& kernel, Args args, Fill fill) {
  return std::unique_ptr<LoweredOp>(
      std::make_unique<KernelOp<Args, Fill>>(&kernel, std::move(args), std::move(fill)));
}

bool on_processor(const LowerContext& ctx) { return !ctx.in_run() && &ctx.backend.host() == &ctx.backend; }

Lowered lower(LowerContext& ctx) {
  const Node& node = ctx.node;
  const Attrs& attrs = node.attrs;
  // Who computes absorbed rows must leave those of prompts out, and there must be some (Graph::phases).
  if (!on_processor(ctx) || !ctx.given(kTables)) return not_lowered();
  ExpandedAttentionArgs args;
  args.quantized = ctx.given(kPool + 1);
  const auto number = [&](const char* name) { return static_cast<int32_t>(attrs.get_int(name)); };
  const int32_t page = number("page_tokens"), width = number("head_dim"), rank = number("latent");
  PagedAttentionArgs& c = args.pages.common;
  if (args.quantized) {
    const auto code = static_cast<KvCode>(number("key_code"));
    args.pages.shape = {code, code, page, 1, width, rank};
    c.shape = open_kv_shape(args.pages.shape);
  } else {
    c.shape = {static_cast<DType>(number("kv_type")), page, 1, width, rank};
  }
  c.scale = static_cast<float>(attrs.get_float("scale"));
  const DimVector& q = shape_of(ctx.graph, node.inputs[0]);
  const auto H = static_cast<size_t>(q[1].const_value());
  args.H = q[1].const_value();
  args.nope = q[2].const_value() - (width - rank);
  args.value = shape_of(ctx.graph, node.outputs[0])[2].const_value();
  args.product = ctx.backend.find_kernel({KernelFamily::kMatmul, Format::f32()});
  args.exponential = ctx.backend.find_kernel({KernelFamily::kUnary});
  if (args.product == nullptr || args.exponential == nullptr) return not_lowered();
  Heads keys, values;
  uint64_t bytes = 0;
  OAR_ASSIGN(const bool has_keys, prepare(ctx, kFirstHead, H, keys, bytes));
  OAR_ASSIGN(const bool has_values, prepare(ctx, kFirstHead + H, H, values, bytes));
  if (!has_keys || !has_values) return not_lowered();
  // Rows of generated tokens are copied; a few bytes beside what computed them.
  StridedCopyArgs rows;
  rows.rank = 2;
  OAR_ASSIGN(auto op, lower_kernel(ctx, {KernelFamily::kStridedCopy}, rows,
                                   [](StridedCopyArgs& a, const Operand* in, const Operand* out) {
                                     a.out = out[0].data;
                                     a.x = in[1].data;
                                     a.dims[0] = in[1].prompts_from;
                                     a.dims[1] = in[1].dims[1] * in[1].dims[2];
                                     a.x_steps[0] = in[1].row_stride, a.x_steps[1] = 1;
                                     a.out_steps[0] = out[0].row_stride, a.out_steps[1] = 1;
                                   }));
  if (op == nullptr) return not_lowered();
  op->prompts = std::make_unique<PromptsOp>(args, std::move(keys), std::move(values));
  op->prompts->weight_bytes = bytes;
  return op;
}

Types starts_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 2, 2));
  OAR_RETURN_IF_ERROR(check_integer(g, in[0], "seq_start"));
  return std::vector<TensorType>{type_of(g, in[0])};
}

Lowered starts_lower(LowerContext& ctx) {
  if (!on_processor(ctx)) return not_lowered();
  return by(kStarts, StartArgs{}, [](StartArgs& a, const Operand* in, const Operand* out) {
    a.out = out[0].as<int32_t>();
    a.x = in[0].as<const int32_t>();
    a.n = in[0].dims[0];
    a.rows = in[1].prompts_from;
  });
}

}  // namespace

extern const OpDef op_expanded_attention = {
    .name = "expanded_attention", .infer = infer, .lower = lower, .weight_expressions = true};
extern const OpDef op_generated_rows = {
    .name = "generated_rows", .infer = starts_infer, .lower = starts_lower};

}  // namespace oar
