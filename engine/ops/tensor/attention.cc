// What stands beside attention in models of sequences: rotary embedding, linear attention, causal convolution
// with a state, and the losses of classification. Attention itself: head_attention.cc.
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

// Pairs of a head's first `dim` elements are turned, the others stay.
struct Rotation {
  int64_t B = 0, H = 0, S = 0, D = 0, dim = 0;
  bool interleaved = false, heads_last = false;
  std::vector<int64_t> at;  // row of the angles, by token
};
template <class T>
void rotate(const EvalContext& ctx, const Rotation& r, const T* x, const T* cosines, const T* sines, T* y) {
  const int64_t half = r.dim / 2;
  ctx.parallel(r.B * r.S, 2.0 * static_cast<double>(r.H * r.D), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T *c = cosines + r.at[static_cast<size_t>(t)] * half, *s = sines + (c - cosines);
      for (int64_t h = 0; h < r.H; ++h) {
        const int64_t from = (r.heads_last ? t * r.H + h : (t / r.S * r.H + h) * r.S + t % r.S) * r.D;
        const T* in = x + from;
        T* out = y + from;
        for (int64_t d = 0; d < half; ++d) {
          const int64_t p = r.interleaved ? 2 * d : d, q = r.interleaved ? 2 * d + 1 : d + half;
          out[p] = in[p] * c[d] - in[q] * s[d];
          out[q] = in[q] * c[d] + in[p] * s[d];
        }
        std::copy(in + r.dim, in + r.D, out + r.dim);
      }
    }
  });
}

// rotary_embedding(x, cos, sin, positions?) {interleaved, num_heads, rotary_embedding_dim}: one position
// alone is that of the first token; without num_heads a head is as wide as its angles. rotary_embedding_dim 0
// is the whole head, -1 as much of it as there are angles.
Status rotary_embedding(EvalContext& ctx) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor c, ctx.tensor(1));
  OAR_ASSIGN(Tensor s, ctx.tensor(2));
  const Shape shape = x.shape();
  const DType dtype = dtype_of(x);
  if (!dtype_is_float(dtype) || (shape.rank() != 3 && shape.rank() != 4))
    return invalid_argument("the operand must be floats of 3 or 4 axes");
  if (!dtype_is_float(dtype_of(c)) || !dtype_is_float(dtype_of(s)) || !(c.shape() == s.shape()) ||
      c.shape().rank() < 1)
    return invalid_argument("cos and sin do not match");
  const int64_t half = c.shape().cols();
  Rotation r;
  r.heads_last = shape.rank() == 3, r.interleaved = ctx.attrs().get_int("interleaved") != 0;
  int64_t count = ctx.attrs().get_int("num_heads");
  if (count == 0 && r.heads_last && half > 0) count = shape[2] / (2 * half);
  if (r.heads_last && (count < 1 || shape[2] % count != 0))
    return invalid_argument("the number of heads does not divide the width");
  r.B = shape[0], r.H = r.heads_last ? count : shape[1], r.S = shape[r.heads_last ? 1 : 2];
  r.D = r.heads_last ? shape[2] / count : shape[3];
  r.dim = ctx.attrs().get_int("rotary_embedding_dim");
  if (r.dim == 0) r.dim = r.D;
  if (r.dim == -1) r.dim = 2 * half;
  const int64_t rows = half > 0 ? c.numel() / half : 0, tokens = r.B * r.S;
  if (r.dim < 2 || r.dim % 2 != 0 || r.dim > r.D || half != r.dim / 2 || (!ctx.has(3) && rows != tokens))
    return invalid_argument("cos and sin do not match the operand");
  Tensor p;
  if (ctx.has(3)) { OAR_ASSIGN(p, ctx.tensor(3)); }
  const bool first = p.defined() && p.numel() == 1 && p.shape().rank() < 2;
  if (p.defined() && (!dtype_is_integer(dtype_of(p)) || (p.numel() != tokens && !first)))
    return invalid_argument("one position per token is needed");
  for (int64_t k = 0; k < tokens && !ctx.options().sizing; ++k) {
    const int64_t at = !p.defined() ? k : first ? element_as_int(p, 0) + k % r.S : element_as_int(p, k);
    if (at < 0 || at >= rows) return invalid_argument(cat("position ", at, " is out of range"));
    r.at.push_back(at);
  }
  if (dtype == DType::kF64 && dtype_of(c) == DType::kF64) {
    OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF64));
    rotate(ctx, r, elements<double>(x), elements<double>(c), elements<double>(s),
           mutable_elements<double>(y));
    ctx.set(0, std::move(y));
    return ok_status();
  }
  for (Tensor* t : {&x, &c, &s}) { OAR_ASSIGN(*t, as_f32(ctx, *t)); }
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  rotate(ctx, r, elements<float>(x), elements<float>(c), elements<float>(s), mutable_elements<float>(y));
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return ok_status();
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
OAR_TENSOR_OP(causal_conv_with_state, tensor::causal_conv_with_state);
OAR_TENSOR_OP(linear_attention, tensor::linear_attention);
OAR_TENSOR_OP(nll_loss, tensor::nll_loss);
OAR_TENSOR_OP(rotary_embedding, tensor::rotary_embedding);
OAR_TENSOR_OP(softmax_cross_entropy_loss, tensor::softmax_cross_entropy_loss);
}  // namespace oar
