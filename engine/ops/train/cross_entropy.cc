// linear_cross_entropy: the head of a language model and its loss, block by block (ops.h).
#include <algorithm>
#include <cstring>

#include "engine/graph/derived.h"
#include "engine/ops/define/definitions.h"
#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"
#include "kernels/narrow.h"
#include "kernels/softmax_grad.h"

namespace oar::train {
namespace {

struct Head {
  double scale = 1, softcap = 0;
  int64_t V = 0, E = 0;
};

Result<std::vector<TensorType>> loss_infer(const Graph& g, std::span<const ValueId> in, const Attrs&) {
  if (in.size() != 4 && in.size() != 5)
    return invalid_argument("takes hidden, head, targets, weight and a bias or none");
  const TensorType hidden = g.value(in[0]).type, head = g.value(in[1]).type;
  if (hidden.shape.size() != 2 || head.shape.size() != 2 || !(hidden.shape[1] == head.shape[1]))
    return invalid_argument("hidden (T, E) and head (V, E) do not fit");
  return std::vector<TensorType>{{Format::f32(), {}},
                                 {Format::i32(), {}},
                                 {Format::i32(), {}},
                                 {Format::f32(), hidden.shape},
                                 {Format::f32(), {head.shape[0]}},
                                 {Format::f32(), head.shape}};
}

// d_bias += sums of g (R, V) over rows, in their order.
void add_bias_gradient(const EvalContext& ctx, const float* g, int64_t R, const Head& h, float* d_bias) {
  ctx.parallel(h.V, static_cast<double>(R), [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < R; ++r)
      for (int64_t v = begin; v < end; ++v) d_bias[v] += g[r * h.V + v];
  });
}

// The ways back through the head, of blocks of rows. `narrow`: by products of bf16.
struct HeadBack {
  const Head& h;
  bool narrow = false;
  int64_t slice = 0;  // of the vocabulary
  Tensor rounded;     // narrow: the block's gradients
  Tensor pairs;       // narrow: the head as its product reads it
  Tensor turned;      // the gradients of a slice, transposed; narrow: packed for that
  Tensor packed;      // else: the block's rows as the product reads them

  Status prepare(const KernelContext& ctx, const Tensor& head, int64_t block, bool of_head) {
    slice = std::min<int64_t>(h.V, 2048);
    if (narrow) {
      OAR_ASSIGN(rounded, ctx.allocate({block, h.V}, DType::kBF16));
      OAR_ASSIGN(pairs, pack_pairs(ctx, head));
    }
    if (!of_head) return ok_status();
    if (narrow) {
      OAR_ASSIGN(turned, ctx.allocate({pair_count(block, slice)}, DType::kI32));
      return ok_status();
    }
    OAR_ASSIGN(turned, ctx.allocate({slice, block}, DType::kF32));
    const int64_t floats = packed_filter_floats(h.E, 1, 1, block, ctx.backend().filter_panel());
    OAR_ASSIGN(packed, ctx.allocate({floats}, DType::kF32));
    return ok_status();
  }

  // dx (R, E) = g (R, V) . head, slice by slice: the head as its product reads it is never there as a whole.
  Status of_rows(const KernelContext& ctx, const float* g, int64_t R, const Tensor& head, float* dx) {
    for (int64_t v = 0; v < h.V && !narrow; v += slice)
      OAR_RETURN_IF_ERROR(product_back(ctx, g == nullptr ? g : g + v, R,
                                       head.slice(v, std::min(h.V, v + slice)), dx, h.V, v > 0));
    if (!narrow) return ok_status();
    if (ctx.options().sizing) return ok_status();
    NarrowArgs a;
    a.bf16 = true, a.x = g, a.out = rounded.mutable_data(), a.rows = R, a.n = h.V;
    OAR_RETURN_IF_ERROR(tensor::run_kernel(ctx, tensor::f32_kernel(ctx.backend(), KernelFamily::kNarrow), &a,
                                           0.2 * static_cast<double>(R) * static_cast<double>(h.V)));
    return narrow_product(ctx, elements<bf16>(rounded), R, pairs, head.shape(), {dx});
  }

  // d_head = g^T . x (R, E), or += it, slice by slice.
  Status of_head(const KernelContext& ctx, const float* g, const Tensor& x, int64_t R, float* d_head,
                 bool add) {
    Tensor columns;
    const Shape rows_of_x{R, h.E};
    if (narrow) {
      OAR_ASSIGN(columns, pack_pairs(ctx, Tensor::make(rows_of_x, Format::f32(), x.buffer()).value()));
    } else if (!ctx.options().sizing) {
      pack_filters(mutable_elements<float>(packed), elements<float>(x), h.E, 1, 1, R, 1, h.E, 0,
                   ctx.backend().filter_panel());
    }
    for (int64_t v = 0; v < h.V && !ctx.options().sizing; v += slice) {
      const int64_t n = std::min(slice, h.V - v);
      float* const sum = d_head + v * h.E;
      if (narrow) {
        pack_rows(ctx, pairs_of(turned), elements<bf16>(rounded) + v, h.V, R, n);
        OAR_RETURN_IF_ERROR(
            turned_product(ctx, pairs_of(turned), n, columns, rows_of_x, {sum, false, add ? sum : nullptr}));
        continue;
      }
      turn(ctx, g + v, R, n, mutable_elements<float>(turned), h.V);
      tensor::PackedProduct p;
      p.rows = n, p.K = R, p.N = h.E;
      p.x = elements<float>(turned), p.w = elements<float>(packed);
      p.residual = add ? sum : nullptr, p.out = sum;
      OAR_RETURN_IF_ERROR(tensor::packed_product(ctx, p));
    }
    return ok_status();
  }
};

Result<bool> loss_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor hidden, ctx.tensor(0));
  OAR_ASSIGN(const Tensor head, ctx.tensor(1));
  OAR_ASSIGN(const Tensor targets, ctx.tensor(2));
  OAR_ASSIGN(const Tensor weight, ctx.tensor(3));
  const bool gradients = ctx.wants(3), of_bias = ctx.wants(4) && ctx.has(4), of_head = ctx.wants(5);
  Tensor bias;
  if (ctx.has(4)) { OAR_ASSIGN(bias, ctx.tensor(4)); }
  Head h{ctx.attrs().get_float("scale", 1), ctx.attrs().get_float("softcap"), head.shape()[0],
         head.shape()[1]};
  const int64_t T = hidden.shape()[0];
  const bool bf16s = hidden.format() == Format::bf16();
  if (!bf16s && !(hidden.format() == Format::f32())) return invalid_argument("hidden states are f32 or bf16");
  if (!(targets.shape() == Shape{T}) || !(targets.format() == Format::i32()) || weight.numel() != 1 ||
      !(weight.format() == Format::f32()))
    return invalid_argument("targets are i32 (T), the weight an f32");
  if (bias.defined() && (!(bias.format() == Format::f32()) || !(bias.shape() == Shape{h.V})))
    return invalid_argument("the bias is f32 (V)");
  OAR_ASSIGN(Tensor loss, ctx.allocate({}, DType::kF32));
  OAR_ASSIGN(Tensor hits, ctx.allocate({}, DType::kI32));
  OAR_ASSIGN(Tensor likeliest, ctx.zeros({}, DType::kI32));
  Tensor d_hidden, d_bias, d_head;
  if (of_bias) { OAR_ASSIGN(d_bias, ctx.zeros({h.V}, DType::kF32)); }
  if (gradients) { OAR_ASSIGN(d_hidden, ctx.zeros({T, h.E}, DType::kF32)); }
  if (of_head) { OAR_ASSIGN(d_head, ctx.allocate({h.V, h.E}, DType::kF32)); }
  const int64_t block = logit_rows(T, h.V);
  OAR_ASSIGN(Tensor logits, ctx.allocate({block, h.V}, DType::kF32));
  OAR_ASSIGN(Tensor x, ctx.allocate({block, h.E}, DType::kF32));
  OAR_ASSIGN(Tensor dx, ctx.allocate({gradients ? block : 0, h.E}, DType::kF32));
  HeadBack back{h, bf16s && narrow_kernel(ctx) != nullptr, 0, {}, {}, {}, {}};
  if (gradients) OAR_RETURN_IF_ERROR(back.prepare(ctx, head, block, of_head));
  if (!ctx.options().sizing) {
    std::vector<int64_t> rows;
    const auto wanted = targets.values<int32_t>();
    for (int64_t t = 0; t < T; ++t) {
      const int32_t target = wanted[static_cast<size_t>(t)];
      if (target >= h.V)
        return invalid_argument(cat("target ", target, " is outside the vocabulary of ", h.V));
      if (target >= 0) rows.push_back(t);
    }
    if (of_head && rows.empty()) std::memset(d_head.mutable_data(), 0, d_head.bytes());
    const double w = weight.values<float>()[0];
    double sum = 0;
    int32_t found = 0;
    std::vector<double> losses(static_cast<size_t>(block));
    std::vector<int32_t> hit(losses.size()), target(losses.size());
    CrossEntropyArgs row;
    row.loss = losses.data(), row.hit = hit.data(), row.target = target.data(), row.n = h.V;
    row.factor = static_cast<float>(w), row.scale = static_cast<float>(h.scale);
    row.softcap = static_cast<float>(h.softcap);
    float *const z = mutable_elements<float>(logits), *const xs = mutable_elements<float>(x);
    for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(block)) {
      const auto R = static_cast<int64_t>(std::min(rows.size() - begin, static_cast<size_t>(block)));
      for (int64_t r = 0; r < R; ++r) {
        const int64_t t = rows[begin + static_cast<size_t>(r)];
        target[static_cast<size_t>(r)] = wanted[static_cast<size_t>(t)];
        if (bf16s)
          std::transform(elements<bf16>(hidden) + t * h.E, elements<bf16>(hidden) + (t + 1) * h.E,
                         xs + r * h.E, [](bf16 v) { return to_f32(v); });
        else std::copy_n(elements<float>(hidden) + t * h.E, h.E, xs + r * h.E);
      }
      OAR_RETURN_IF_ERROR(stored_product(ctx, xs, R, head, ctx.prepared<StoredMatrix>(),
                                         bias.defined() ? elements<float>(bias) : nullptr, z));
      if (begin + static_cast<size_t>(R) == rows.size()) {
        const float* const last = z + (R - 1) * h.V;
        *mutable_elements<int32_t>(likeliest) =
            static_cast<int32_t>(std::max_element(last, last + h.V) - last);
      }
      row.z = z, row.rows = R;
      OAR_RETURN_IF_ERROR(tensor::run_kernel(ctx,
                                             tensor::f32_kernel(ctx.backend(), KernelFamily::kCrossEntropy),
                                             &row, 2.0 * static_cast<double>(R) * static_cast<double>(h.V)));
      for (size_t r = 0; r < static_cast<size_t>(R); ++r) sum += losses[r], found += hit[r];
      if (of_bias) add_bias_gradient(ctx, z, R, h, mutable_elements<float>(d_bias));
      if (gradients) {
        float* const to = mutable_elements<float>(dx);
        OAR_RETURN_IF_ERROR(back.of_rows(ctx, z, R, head, to));
        for (int64_t r = 0; r < R; ++r)
          std::memcpy(mutable_elements<float>(d_hidden) + rows[begin + static_cast<size_t>(r)] * h.E,
                      to + r * h.E, static_cast<size_t>(h.E) * sizeof(float));
      }
      if (of_head)
        OAR_RETURN_IF_ERROR(back.of_head(ctx, z, x, R, mutable_elements<float>(d_head), begin > 0));
    }
    *mutable_elements<float>(loss) = static_cast<float>(w * sum);
    *mutable_elements<int32_t>(hits) = found;
  } else {
    OAR_RETURN_IF_ERROR(stored_product(ctx, nullptr, block, head, nullptr, nullptr, nullptr));
    if (gradients) OAR_RETURN_IF_ERROR(back.of_rows(ctx, nullptr, block, head, nullptr));
    if (of_head) OAR_RETURN_IF_ERROR(back.of_head(ctx, nullptr, x, block, nullptr, false));
  }
  ctx.set(0, std::move(loss));
  ctx.set(1, std::move(hits));
  ctx.set(2, std::move(likeliest));
  if (gradients) ctx.set(3, std::move(d_hidden));
  if (of_bias) ctx.set(4, std::move(d_bias));
  if (of_head) ctx.set(5, std::move(d_head));
  return true;
}

Attrs over_columns() { return {{"axes", std::vector<int64_t>{-1}}}; }
Attrs over_rows() { return {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}}; }

// from, from + 1, ... in this shape.
Val count_from(Builder& b, int64_t from, const Shape& shape) {
  auto t = Tensor::allocate(shape, Format::i32());
  if (!t.ok()) return b.fail(t.status()), Val{};
  for (int32_t& v : t->mutable_values<int32_t>()) v = static_cast<int32_t>(from++);
  return b.constant("", std::move(*t));
}
Val is_counted(Builder& b, Val targets) { return b.op("greater_equal", {targets, count_from(b, 0, {1})}); }

// logits (T, V) before their scale, targets (T), weight ()
std::vector<Val> define_loss(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val targets = in[1];
  Val z = b.op("mul", {in[0], b.scalar(attrs.get_float("scale", 1))});
  if (const double cap = attrs.get_float("softcap"); cap > 0)
    z = b.op("mul", {b.op("tanh", {b.op("mul", {z, b.scalar(1 / cap)})}), b.scalar(cap)});
  const Val top = b.op("reduce_max", {z}, over_columns());
  const Val sum = b.op("reduce_sum", {b.op("exp", {b.op("sub", {z, top})})}, over_columns());
  const Val log_sum = b.op("add", {top, b.op("log", {sum})});  // (T, 1)
  if (!b.status().ok()) return {};
  // The logit of the target, by comparison with the vocabulary's numbers.
  const Val of_row = definition::reshaped(b, targets, {-1, 1});
  const Val is_target = b.op("equal", {of_row, count_from(b, 0, {1, b.dim(z, 1).const_value()})});
  const Val at = b.op("reduce_sum", {b.op("where", {is_target, z, b.scalar(0)})}, over_columns());
  const Val row = definition::reshaped(b, b.op("sub", {log_sum, at}), {-1});
  const Val losses = b.op("where", {is_counted(b, targets), row, b.scalar(0)});
  return {b.op("mul", {b.op("reduce_sum", {losses}, over_rows()), in[2]})};
}

Val define_logits(Builder& b, Val hidden, Val head, Val bias) {
  return b.op("linear", {definition::real(b, hidden), Val{}, head, bias});
}

// The gradient of logits is derived, and what of it comes to the layer's operands follows from it.
std::vector<Val> define_all(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val z = define_logits(b, in[0], in[1], definition::given(in, 4)), targets = in[2];
  if (!b.status().ok()) return {};
  const Val operands[] = {z, targets, in[3]}, one[] = {b.scalar(1)};
  const Val dz = derived_gradient(b, define_loss, operands, attrs, one, 1)[0];
  const Attrs f32{{"to", std::string("f32")}}, i32{{"to", std::string("i32")}};
  const Val best = b.op("arg_max", {z}, {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}});
  const Val hit = b.op("equal", {b.op("cast", {best}, i32), targets});
  const Val hits = b.op("reduce_sum", {b.op("cast", {hit}, f32)}, over_rows());
  // Rows are counted from 1, so that none is the last where none has a target.
  const Val rows = b.op("cast", {count_from(b, 1, {b.dim(z, 0).const_value()})}, f32);
  const Val counted = b.op("where", {is_counted(b, targets), rows, b.scalar(0)});
  const Val is_last =
      b.op("equal", {counted, b.op("max", {b.op("reduce_max", {counted}, over_rows()), b.scalar(1)})});
  const Val last = b.op("where", {is_last, b.op("cast", {best}, f32), b.scalar(0)});
  const std::vector<Val> loss = define_loss(b, operands, attrs);
  if (loss.empty()) return {};
  return {loss[0],
          b.op("cast", {hits}, i32),
          b.op("cast", {b.op("reduce_max", {last}, over_rows())}, i32),
          b.op("linear", {dz, Val{}, in[1], Val{}}, {{"input_major", int64_t{1}}}),
          b.op("reduce_sum", {dz}, over_rows()),
          b.op("matmul", {definition::turned(b, dz, {1, 0}), definition::real(b, in[0])})};
}

}  // namespace

Val cross_entropy_definition(Builder& b, Val hidden, Val head, Val targets, Val weight, const Attrs& attrs,
                             Val bias) {
  const Val in[] = {define_logits(b, hidden, head, bias), targets, weight};
  const std::vector<Val> loss = define_loss(b, in, attrs);
  return loss.empty() ? Val{} : loss[0];
}

const OpDef op_linear_cross_entropy = {.name = "linear_cross_entropy",
                                       .infer = loss_infer,
                                       .define = define_all,
                                       .piecewise_constant = true,
                                       .by_kernels = loss_by_kernels,
                                       .prepare = prepare_stored_matrix<1>};

}  // namespace oar::train
