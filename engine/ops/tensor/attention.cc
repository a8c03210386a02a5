// What stands beside attention in models of sequences: linear attention, causal convolution with a state, and
// the losses of classification. Attention itself: head_attention.cc.
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

using Vec = std::vector<double>;

// (B, S, heads D) or (B, heads, S, D), always read as the latter.
struct Heads {
  Vec v;
  int64_t B = 0, H = 0, S = 0, D = 0;
  const double* row(int64_t b, int64_t h, int64_t s) const { return v.data() + ((b * H + h) * S + s) * D; }
};

Result<Heads> heads(const Tensor& t, int64_t count) {
  Heads h;
  const int rank = t.shape().rank();
  if (!dtype_is_float(dtype_of(t)) || (rank != 3 && rank != 4))
    return invalid_argument("query, key and value must be floats of 3 or 4 axes");
  h.B = t.shape()[0];
  Vec v = to_doubles(t);
  if (rank == 4) {
    h.H = t.shape()[1], h.S = t.shape()[2], h.D = t.shape()[3], h.v = std::move(v);
    return h;
  }
  if (count < 1 || t.shape()[2] % count != 0)
    return invalid_argument("the number of heads does not divide the width");
  h.H = count, h.S = t.shape()[1], h.D = t.shape()[2] / count;
  h.v.resize(v.size());
  for (int64_t b = 0; b < h.B; ++b)
    for (int64_t s = 0; s < h.S; ++s)
      for (int64_t k = 0; k < h.H; ++k)
        std::copy_n(v.data() + ((b * h.S + s) * h.H + k) * h.D, h.D,
                    h.v.data() + ((b * h.H + k) * h.S + s) * h.D);
  return h;
}

// causal_conv_with_state(x (B, C, L), w (C, 1, K), bias?, past (B, C, K - 1)?) -> y, present
Status causal_conv_with_state(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  if (x.shape().rank() != 3 || w.shape().rank() != 3 || w.shape()[0] != x.shape()[1] || w.shape()[1] != 1 ||
      w.shape()[2] < 1 || !dtype_is_float(dtype_of(x)) || !dtype_is_float(dtype_of(w))) {
    return invalid_argument("x must be (B, C, L), w (C, 1, K)");
  }
  const int64_t B = x.shape()[0], C = x.shape()[1], L = x.shape()[2], K = w.shape()[2], P = K - 1;
  Vec bias(static_cast<size_t>(C), 0), past(static_cast<size_t>(B * C * P), 0);
  for (size_t k : {size_t{2}, size_t{3}}) {
    if (!ctx.has(k)) continue;
    OAR_ASSIGN(const Tensor t, ctx.tensor(k));
    Vec& to = k == 2 ? bias : past;
    if (!dtype_is_float(dtype_of(t)) || t.numel() != static_cast<int64_t>(to.size()))
      return invalid_argument(cat("operand ", k, " does not match"));
    to = to_doubles(t);
  }
  const std::string activation = ctx.attrs().get_string("activation", "none");
  const bool silu = activation == "silu" || activation == "swish";
  if (!silu && activation != "none") return invalid_argument(cat("unknown activation '", activation, "'"));
  const Vec px = to_doubles(x), pw = to_doubles(w);
  Vec y(px.size()), present(past.size());
  for (int64_t r = 0; r < B * C; ++r) {
    auto at = [&](int64_t t) {
      return t < P ? past[static_cast<size_t>(r * P + t)] : px[static_cast<size_t>(r * L + t - P)];
    };
    for (int64_t t = 0; t < L; ++t) {
      double sum = bias[static_cast<size_t>(r % C)];
      for (int64_t k = 0; k < K; ++k) sum += at(t + k) * pw[static_cast<size_t>(r % C * K + k)];
      y[static_cast<size_t>(r * L + t)] = silu ? sum / (1 + std::exp(-sum)) : sum;
    }
    for (int64_t k = 0; k < P; ++k) present[static_cast<size_t>(r * P + k)] = at(L + k);
  }
  ctx.set(0, from_doubles(ctx, x.shape(), dtype_of(x), y));
  ctx.set(1, from_doubles(ctx, {B, C, P}, dtype_of(x), present));
  return ok_status();
}

// linear_attention(q, k, v (B, T, heads D), state (B, K, Dk, Dv)?, decay?, beta?) -> y, state: a matrix state
// per head, decayed (gated), corrected towards v (delta), written with k v^T and read with q.
// https://arxiv.org/abs/2412.06464
Status linear_attention(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor tq, ctx.tensor(0));
  OAR_ASSIGN(const Tensor tk, ctx.tensor(1));
  OAR_ASSIGN(const Tensor tv, ctx.tensor(2));
  const Attrs& a = ctx.attrs();
  const std::string rule = a.get_string("update_rule", "gated_delta");
  const bool gated = rule == "gated" || rule == "gated_delta",
             delta = rule == "delta" || rule == "gated_delta";
  if (!gated && !delta && rule != "linear") return invalid_argument(cat("unknown update_rule '", rule, "'"));
  if (gated != ctx.has(4) || delta != ctx.has(5))
    return invalid_argument(cat("decay and beta do not go with '", rule, "'"));
  if (tq.shape().rank() != 3 || tk.shape().rank() != 3 || tv.shape().rank() != 3)
    return invalid_argument("query, key and value need 3 axes");
  OAR_ASSIGN(const Heads q, heads(tq, a.get_int("q_num_heads")));
  OAR_ASSIGN(const Heads k, heads(tk, a.get_int("kv_num_heads")));
  OAR_ASSIGN(const Heads v, heads(tv, a.get_int("kv_num_heads")));
  const int64_t B = q.B, T = q.S, K = k.H, D = q.D, M = v.D;
  if (k.B != B || v.B != B || k.S != T || v.S != T || k.D != D || K == 0 || q.H % K != 0)
    return invalid_argument("query, key and value do not match");
  DType state_dtype = dtype_of(tq);
  OAR_ASSIGN(const Shape state_shape, checked_shape(std::vector<int64_t>{B, K, D, M}));
  Vec state(static_cast<size_t>(state_shape.numel()), 0), decay, beta;
  if (ctx.has(3)) {
    OAR_ASSIGN(const Tensor t, ctx.tensor(3));
    if (!(t.shape() == state_shape) || !dtype_is_float(dtype_of(t)))
      return invalid_argument("the state does not match");
    state = to_doubles(t), state_dtype = dtype_of(t);
  }
  auto gate = [&](size_t operand, int64_t wide, Vec& out, int64_t* width) -> Status {
    if (!ctx.has(operand)) return ok_status();
    OAR_ASSIGN(const Tensor t, ctx.tensor(operand));
    *width = t.shape().cols();
    if (t.numel() != B * T * *width || !dtype_is_float(dtype_of(t)) || (*width != K && *width != wide))
      return invalid_argument(cat("operand ", operand, " does not match"));
    out = to_doubles(t);
    return ok_status();
  };
  int64_t decay_width = 0, beta_width = 0;
  OAR_RETURN_IF_ERROR(gate(4, K * D, decay, &decay_width));
  OAR_RETURN_IF_ERROR(gate(5, 1, beta, &beta_width));
  const double scale =
      a.get_float("scale", 0) != 0 ? a.get_float("scale") : 1 / std::sqrt(static_cast<double>(D));
  Vec y(static_cast<size_t>(B * T * q.H * M), 0);
  ctx.parallel(B * K, static_cast<double>(T * D * M) * 3, [&](int64_t begin, int64_t end) {
    Vec write(static_cast<size_t>(M));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t b = r / K, h = r % K;
      double* s = state.data() + r * D * M;
      for (int64_t t = 0; t < T; ++t) {
        const double *kt = k.row(b, h, t), *vt = v.row(b, h, t);
        for (int64_t d = 0; d < D && gated; ++d) {
          const double g = std::exp(
              decay[static_cast<size_t>((b * T + t) * decay_width + (decay_width == K ? h : h * D + d))]);
          for (int64_t m = 0; m < M; ++m) s[d * M + m] *= g;
        }
        std::copy_n(vt, M, write.begin());
        if (delta) {
          const double strength =
              beta[static_cast<size_t>((b * T + t) * beta_width + (beta_width == 1 ? 0 : h))];
          for (int64_t m = 0; m < M; ++m) {
            double held = 0;
            for (int64_t d = 0; d < D; ++d) held += s[d * M + m] * kt[d];
            write[static_cast<size_t>(m)] = strength * (vt[m] - held);
          }
        }
        for (int64_t d = 0; d < D; ++d) {
          for (int64_t m = 0; m < M; ++m) s[d * M + m] += kt[d] * write[static_cast<size_t>(m)];
        }
        for (int64_t g = h * (q.H / K); g < (h + 1) * (q.H / K); ++g) {
          double* out = y.data() + ((b * T + t) * q.H + g) * M;
          for (int64_t d = 0; d < D; ++d) {
            for (int64_t m = 0; m < M; ++m) out[m] += scale * q.row(b, g, t)[d] * s[d * M + m];
          }
        }
      }
    }
  });
  ctx.set(0, from_doubles(ctx, {B, T, q.H * M}, dtype_of(tq), y));
  ctx.set(1, from_doubles(ctx, state_shape, state_dtype, state));
  return ok_status();
}

// -sum w[t] logp[t] over the targets t, averaged by weight, summed or kept; ignored targets count nothing.
Status losses(EvalContext& ctx, bool softmax) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor target, ctx.tensor(1));
  if (x.shape().rank() < 2 || !dtype_is_float(dtype_of(x)) || !dtype_is_integer(dtype_of(target)))
    return invalid_argument("needs (N, C, ...) of floats and integer targets");
  const int64_t N = x.shape()[0], C = x.shape()[1], inner = extent(x.shape(), 2, x.shape().rank());
  std::vector<int64_t> dims = dims_of(x.shape());
  dims.erase(dims.begin() + 1);
  if (!(target.shape() == Shape(dims))) return invalid_argument("targets do not match the scores");
  Vec weight;
  if (ctx.has(2)) {
    OAR_ASSIGN(const Tensor w, ctx.tensor(2));
    if (w.numel() != C || !dtype_is_float(dtype_of(w)))
      return invalid_argument("one weight per class is needed");
    weight = to_doubles(w);
  }
  Vec logp = to_doubles(x);
  if (softmax) {
    for (int64_t l = 0; l < N * inner; ++l) {
      const int64_t base = l / inner * C * inner + l % inner;
      double top = -INFINITY, sum = 0;
      for (int64_t c = 0; c < C; ++c) top = std::max(top, logp[static_cast<size_t>(base + c * inner)]);
      for (int64_t c = 0; c < C; ++c) sum += std::exp(logp[static_cast<size_t>(base + c * inner)] - top);
      for (int64_t c = 0; c < C; ++c) logp[static_cast<size_t>(base + c * inner)] -= top + std::log(sum);
    }
  }
  const bool ignores = ctx.attrs().has("ignore_index");
  const int64_t ignore = ctx.attrs().get_int("ignore_index");
  Vec loss(static_cast<size_t>(N * inner), 0);
  double sum = 0, total = 0;
  for (int64_t l = 0; l < N * inner; ++l) {
    const int64_t t = element_as_int(target, l);
    if (ignores && t == ignore) continue;
    if (t < 0 || t >= C) return invalid_argument(cat("target ", t, " is outside ", C, " classes"));
    const double w = weight.empty() ? 1 : weight[static_cast<size_t>(t)];
    const double e = -w * logp[static_cast<size_t>((l / inner * C + t) * inner + l % inner)];
    loss[static_cast<size_t>(l)] = e, sum += e, total += w;
  }
  const std::string reduction = ctx.attrs().get_string("reduction", "mean");
  if (reduction == "none") ctx.set(0, from_doubles(ctx, Shape(dims), dtype_of(x), loss));
  else ctx.set(0, from_doubles(ctx, {}, dtype_of(x), {reduction == "sum" ? sum : sum / total}));
  if (softmax) ctx.set(1, from_doubles(ctx, x.shape(), dtype_of(x), logp));
  return ok_status();
}
Status nll_loss(EvalContext& c) { return losses(c, false); }
Status softmax_cross_entropy_loss(EvalContext& c) { return losses(c, true); }

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_DEFINED_OP(causal_conv_with_state, tensor::causal_conv_with_state);
OAR_TENSOR_OP(linear_attention, tensor::linear_attention);
extern const OpDef op_nll_loss = {
    .name = "nll_loss", .infer = loss_infer, .define = definition::nll_loss, .evaluate = tensor::nll_loss};
extern const OpDef op_softmax_cross_entropy_loss = {.name = "softmax_cross_entropy_loss",
                                                    .infer = scored_loss_infer,
                                                    .define = definition::softmax_cross_entropy_loss,
                                                    .evaluate = tensor::softmax_cross_entropy_loss};
}  // namespace oar
