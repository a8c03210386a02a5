// linear_cross_entropy: the head of a language model and its loss, block by block (ops.h).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"

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
                                 {Format::f32(), hidden.shape},
                                 {Format::f32(), {head.shape[0]}},
                                 {Format::f32(), head.shape}};
}

struct RowLoss {
  double loss = 0;
  bool hit = false;  // the first of the largest logits is the target's
};

// One row: its loss, and its logits turned into weight * their gradients. NaN stays NaN.
RowLoss row_loss(float* z, const Head& h, int32_t target, double weight) {
  const auto n = static_cast<size_t>(h.V);
  const auto scale = static_cast<float>(h.scale);
  if (h.softcap > 0) {
    for (size_t k = 0; k < n; ++k)
      z[k] = static_cast<float>(h.softcap * std::tanh(static_cast<double>(scale * z[k]) / h.softcap));
  } else if (scale != 1) {
    for (size_t k = 0; k < n; ++k) z[k] *= scale;
  }
  const float top = tensor::max_of(z, h.V);
  const auto wanted = static_cast<size_t>(target);
  const double at = z[wanted];
  const bool hit = z[wanted] == top && std::find(z, z + wanted, top) == z + wanted;
  double sum = 0;
  if (h.softcap > 0) {
    for (size_t k = 0; k < n; ++k) sum += std::exp(static_cast<double>(z[k] - top));
  } else {
    for (size_t k = 0; k < n; ++k) {
      const double e = std::exp(static_cast<double>(z[k] - top));
      z[k] = static_cast<float>(e);
      sum += e;
    }
  }
  const double log_sum = static_cast<double>(top) + std::log(sum), factor = weight * h.scale;
  for (size_t k = 0; k < n; ++k) {
    // The cap's slope is 1 - (z / cap)^2.
    const double slope = h.softcap > 0 ? 1 - (z[k] / h.softcap) * (z[k] / h.softcap) : 1;
    const double e = h.softcap > 0 ? std::exp(static_cast<double>(z[k] - top)) : z[k];
    z[k] = static_cast<float>(factor * slope * (e / sum - (k == wanted ? 1 : 0)));
  }
  return {log_sum - at, hit};
}

// d_bias += sums of g (R, V) over rows, in their order.
void add_bias_gradient(const EvalContext& ctx, const float* g, int64_t R, const Head& h, float* d_bias) {
  ctx.parallel(h.V, static_cast<double>(R), [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < R; ++r)
      for (int64_t v = begin; v < end; ++v) d_bias[v] += g[r * h.V + v];
  });
}

// d_head += g (R, V)^T . x (R, E); g^T in slices of the vocabulary.
Status add_head_gradient(const KernelContext& ctx, const float* g, const float* x, int64_t R, const Head& h,
                         float* d_head, float* packed, float* turned, int64_t slice) {
  const int64_t panel = ctx.backend().filter_panel();
  pack_filters(packed, x, h.E, 1, 1, R, 1, h.E, 0, panel);
  for (int64_t v = 0; v < h.V; v += slice) {
    const int64_t n = std::min(slice, h.V - v);
    ctx.parallel((n + 63) / 64, static_cast<double>(R * 64), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin * 64; c < std::min(n, end * 64); ++c)
        for (int64_t r = 0; r < R; ++r) turned[c * R + r] = g[r * h.V + v + c];
    });
    tensor::PackedProduct p;
    p.rows = n, p.K = R, p.N = h.E;
    p.x = turned, p.w = packed;
    p.residual = p.out = d_head + v * h.E;
    OAR_RETURN_IF_ERROR(tensor::packed_product(ctx, p));
  }
  return ok_status();
}

Result<bool> loss_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor hidden, ctx.tensor(0));
  OAR_ASSIGN(const Tensor head, ctx.tensor(1));
  OAR_ASSIGN(const Tensor targets, ctx.tensor(2));
  OAR_ASSIGN(const Tensor weight, ctx.tensor(3));
  const bool gradients = ctx.wants(2), of_bias = ctx.wants(3), of_head = ctx.wants(4);
  Tensor bias;
  if (ctx.has(4)) { OAR_ASSIGN(bias, ctx.tensor(4)); }
  Head h{ctx.attrs().get_float("scale", 1), ctx.attrs().get_float("softcap"), head.shape()[0],
         head.shape()[1]};
  const int64_t T = hidden.shape()[0];
  if (!(hidden.format() == Format::f32())) return invalid_argument("hidden states are f32");
  if (!(targets.shape() == Shape{T}) || !(targets.format() == Format::i32()) || weight.numel() != 1 ||
      !(weight.format() == Format::f32()))
    return invalid_argument("targets are i32 (T), the weight an f32");
  if (bias.defined() && (!(bias.format() == Format::f32()) || !(bias.shape() == Shape{h.V})))
    return invalid_argument("the bias is f32 (V)");
  OAR_ASSIGN(Tensor loss, ctx.allocate({}, DType::kF32));
  OAR_ASSIGN(Tensor hits, ctx.allocate({}, DType::kI32));
  Tensor d_hidden, d_bias, d_head;
  if (of_bias) { OAR_ASSIGN(d_bias, ctx.zeros({h.V}, DType::kF32)); }
  if (gradients) { OAR_ASSIGN(d_hidden, ctx.zeros({T, h.E}, DType::kF32)); }
  if (of_head) { OAR_ASSIGN(d_head, ctx.zeros({h.V, h.E}, DType::kF32)); }
  const int64_t block = logit_rows(T, h.V);
  const int64_t slice = std::min<int64_t>(h.V, 2048), panel = ctx.backend().filter_panel();
  OAR_ASSIGN(Tensor logits, ctx.allocate({block, h.V}, DType::kF32));
  OAR_ASSIGN(Tensor x, ctx.allocate({block, h.E}, DType::kF32));
  OAR_ASSIGN(Tensor dx, ctx.allocate({gradients ? block : 0, h.E}, DType::kF32));
  OAR_ASSIGN(Tensor packed,
             ctx.allocate({of_head ? packed_filter_floats(h.E, 1, 1, block, panel) : 0}, DType::kF32));
  OAR_ASSIGN(Tensor turned, ctx.allocate({of_head ? slice * block : 0}, DType::kF32));
  if (!ctx.options().sizing) {
    std::vector<int64_t> rows;
    const auto wanted = targets.values<int32_t>();
    for (int64_t t = 0; t < T; ++t) {
      const int32_t target = wanted[static_cast<size_t>(t)];
      if (target >= h.V)
        return invalid_argument(cat("target ", target, " is outside the vocabulary of ", h.V));
      if (target >= 0) rows.push_back(t);
    }
    const double w = weight.values<float>()[0];
    double sum = 0;
    int32_t found = 0;
    std::vector<RowLoss> losses(static_cast<size_t>(block));
    const float* const from = elements<float>(hidden);
    float *const z = mutable_elements<float>(logits), *const xs = mutable_elements<float>(x);
    for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(block)) {
      const auto R = static_cast<int64_t>(std::min(rows.size() - begin, static_cast<size_t>(block)));
      for (int64_t r = 0; r < R; ++r)
        std::memcpy(xs + r * h.E, from + rows[begin + static_cast<size_t>(r)] * h.E,
                    static_cast<size_t>(h.E) * sizeof(float));
      OAR_RETURN_IF_ERROR(stored_product(ctx, xs, R, head, ctx.prepared<StoredMatrix>(),
                                         bias.defined() ? elements<float>(bias) : nullptr, z));
      ctx.parallel(R, 12.0 * static_cast<double>(h.V), [&](int64_t r0, int64_t r1) {
        for (int64_t r = r0; r < r1; ++r)
          losses[static_cast<size_t>(r)] =
              row_loss(z + r * h.V, h, wanted[static_cast<size_t>(rows[begin + static_cast<size_t>(r)])], w);
      });
      for (int64_t r = 0; r < R; ++r) {
        sum += losses[static_cast<size_t>(r)].loss;
        found += losses[static_cast<size_t>(r)].hit;
      }
      if (of_bias) add_bias_gradient(ctx, z, R, h, mutable_elements<float>(d_bias));
      if (gradients) {
        float* const back = mutable_elements<float>(dx);
        OAR_RETURN_IF_ERROR(product_back(ctx, z, R, head, back));
        for (int64_t r = 0; r < R; ++r)
          std::memcpy(mutable_elements<float>(d_hidden) + rows[begin + static_cast<size_t>(r)] * h.E,
                      back + r * h.E, static_cast<size_t>(h.E) * sizeof(float));
      }
      if (of_head)
        OAR_RETURN_IF_ERROR(add_head_gradient(ctx, z, xs, R, h, mutable_elements<float>(d_head),
                                              mutable_elements<float>(packed),
                                              mutable_elements<float>(turned), slice));
    }
    *mutable_elements<float>(loss) = static_cast<float>(w * sum);
    *mutable_elements<int32_t>(hits) = found;
  } else {
    OAR_RETURN_IF_ERROR(product_back(ctx, nullptr, gradients ? block : 0, head, nullptr));
  }
  ctx.set(0, std::move(loss));
  ctx.set(1, std::move(hits));
  if (gradients) ctx.set(2, std::move(d_hidden));
  if (of_bias) ctx.set(3, std::move(d_bias));
  if (of_head) ctx.set(4, std::move(d_head));
  return true;
}

}  // namespace

Val cross_entropy_definition(Builder& b, Val hidden, Val head, Val targets, Val weight, const Attrs& attrs,
                             Val bias) {
  Val z = b.op("linear", {hidden, Val{}, head, bias});
  z = b.op("mul", {z, b.scalar(attrs.get_float("scale", 1))});
  if (const double cap = attrs.get_float("softcap"); cap > 0)
    z = b.op("mul", {b.op("tanh", {b.op("mul", {z, b.scalar(1 / cap)})}), b.scalar(cap)});
  const Attrs rows{{"axes", std::vector<int64_t>{-1}}};
  const Val top = b.op("reduce_max", {z}, rows);
  const Val log_sum =
      b.op("add",
           {top, b.op("log", {b.op("reduce_sum", {b.op("exp", {b.op("sub", {z, top})})}, rows)})});  // (T, 1)
  // The logit of the target, by comparison with the vocabulary's numbers.
  const int64_t V = b.dim(head, 0).const_value();
  auto numbers = Tensor::allocate({1, V}, Format::i32());
  if (!numbers.ok()) return b.fail(numbers.status()), Val{};
  for (int64_t k = 0; k < V; ++k)
    numbers->mutable_values<int32_t>()[static_cast<size_t>(k)] = static_cast<int32_t>(k);
  auto none = Tensor::zeros({1, 1}, Format::i32());
  if (!none.ok()) return b.fail(none.status()), Val{};
  const Val of_row = b.op("reshape", {targets}, {{"shape", std::vector<int64_t>{-1, 1}}});
  const Val is_target = b.op("equal", {of_row, b.constant("", std::move(*numbers))});
  const Val at = b.op("reduce_sum", {b.op("where", {is_target, z, b.scalar(0)})}, rows);
  const Val counts = b.op("greater_equal", {of_row, b.constant("", std::move(*none))});
  const Val losses = b.op("where", {counts, b.op("sub", {log_sum, at}), b.scalar(0)});
  return b.op("mul",
              {b.op("reduce_sum", {losses}, {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", int64_t{0}}}),
               weight});
}

const OpDef op_linear_cross_entropy = {.name = "linear_cross_entropy",
                                       .infer = loss_infer,
                                       .piecewise_constant = true,
                                       .by_kernels = loss_by_kernels,
                                       .prepare = prepare_stored_matrix<1>};

}  // namespace oar::train
