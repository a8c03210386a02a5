// Attention over dense tensors as interchange formats spell it, rotary embedding, and the losses of
// classification. Plain attention of f32 and narrower goes through the products of heads.h, all else is in
// double; language models have kernels of their own (engine/ops/attention.cc).
#include <atomic>
#include <optional>

#include "engine/ops/tensor/heads.h"

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

Status prepend(const Tensor& past, Heads& h) {
  const Shape want({h.B, h.H, past.shape().rank() == 4 ? past.shape()[2] : 0, h.D});
  if (!(past.shape() == want) || !dtype_is_float(dtype_of(past)))
    return invalid_argument("the cache does not match");
  const Vec p = to_doubles(past);
  const int64_t n = past.shape()[2];
  Vec out(static_cast<size_t>(h.B * h.H * (n + h.S) * h.D));
  for (int64_t k = 0; k < h.B * h.H; ++k) {
    std::copy_n(p.data() + k * n * h.D, n * h.D, out.data() + k * (n + h.S) * h.D);
    std::copy_n(h.v.data() + k * h.S * h.D, h.S * h.D, out.data() + (k * (n + h.S) + n) * h.D);
  }
  h.v = std::move(out), h.S += n;
  return ok_status();
}

// The mask as f32 to add, (B, H, S, T) or (1, 1, S, T), -infinity where a key is hidden. Undefined with none;
// nullopt where a row hides every key, which a softmax knows no answer to.
Result<std::optional<Tensor>> additive_mask(const EvalContext& ctx, const Shape& full, bool causal) {
  Tensor mask;
  if (!ctx.has(3) && !causal) return std::optional<Tensor>(mask);
  const int64_t S = full[2], T = full[3];
  Tensor given;
  Shape shape{1, 1, S, T};
  if (ctx.has(3)) {
    OAR_ASSIGN(given, ctx.tensor(3));
    if (dtype_of(given) != DType::kBool) { OAR_ASSIGN(given, as_f32(ctx, given)); }
    if (given.shape().rank() < 1 || given.shape().rank() > 4 || given.shape().cols() != T)
      return std::optional<Tensor>();
    OAR_ASSIGN(const Broadcast fits, Broadcast::make({&full, &given.shape()}));
    if (!(fits.shape() == full)) return std::optional<Tensor>();
    shape = full;
  }
  OAR_ASSIGN(mask, ctx.allocate(shape, DType::kF32));
  float* to = mutable_elements<float>(mask);
  const Shape& own = given.defined() ? given.shape() : shape;
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&shape, &own}));
  std::atomic<bool> hidden{false};
  const int64_t rows = T > 0 ? shape.numel() / T : 0;
  ctx.parallel(rows, 2.0 * static_cast<double>(T), [&](int64_t begin, int64_t end) {
    b.runs(begin * T, end * T, [&](int64_t at, const auto& from, int64_t n, const auto& step) {
      for (int64_t e = 0; e < n; ++e) {
        const int64_t k = from[1] + e * step[1];
        float v = 0;
        if (given.defined() && dtype_of(given) == DType::kBool)
          v = elements<uint8_t>(given)[k] != 0 ? 0 : -INFINITY;
        else if (given.defined()) v = elements<float>(given)[k];
        to[at + e] = v;
      }
    });
    for (int64_t r = begin; r < end; ++r) {
      float* row = to + r * T;
      for (int64_t j = r % S + 1; causal && j < T; ++j) row[j] = -INFINITY;
      if (max_of(row, T) == -INFINITY) hidden.store(true, std::memory_order_relaxed);
    }
  });
  if (hidden) return std::optional<Tensor>();
  return std::optional<Tensor>(std::move(mask));
}

// Attention with nothing but a mask. False where more is asked for.
Result<bool> through_heads(EvalContext& ctx) {
  Tensor in[3];
  const Attrs& a = ctx.attrs();
  for (size_t i = 0; i < 3; ++i) {
    OAR_ASSIGN(in[i], ctx.tensor(i));
    const DType t = dtype_of(in[i]);
    if (t != dtype_of(in[0]) || (t != DType::kF32 && t != DType::kF16 && t != DType::kBF16)) return false;
    if (in[i].shape().rank() != in[0].shape().rank()) return false;
  }
  for (size_t i = 4; i < 7; ++i) {
    if (ctx.has(i)) return false;
  }
  const int rank = in[0].shape().rank();
  if (ctx.wants(1) || (rank != 3 && rank != 4) || a.get_float("softcap", 0) > 0 ||
      a.get_int("left_window_size", -1) >= 0 || a.get_int("right_window_size", -1) >= 0) {
    return false;
  }
  struct Side {
    int64_t B = 0, H = 0, S = 0, D = 0, row = 0;  // row: from one token to the next
  };
  const auto side = [&](const Tensor& t, const char* count) {
    const Shape& s = t.shape();
    if (rank == 4) return Side{s[0], s[1], s[2], s[3], s[3]};
    const int64_t heads = a.get_int(count);
    if (heads < 1 || s[2] % heads != 0) return Side{};
    return Side{s[0], heads, s[1], s[2] / heads, s[2]};
  };
  const Side q = side(in[0], "q_num_heads"), k = side(in[1], "kv_num_heads"), v = side(in[2], "kv_num_heads");
  if (k.B != q.B || v.B != q.B || k.H != v.H || k.S != v.S || k.D != q.D || k.H < 1 || q.H < 1 ||
      q.H % k.H != 0 || k.S == 0) {
    return false;  // told below
  }
  const Shape full({q.B, q.H, q.S, k.S});
  const bool causal = a.get_int("is_causal") != 0;
  OAR_ASSIGN(const std::optional<Tensor> mask, additive_mask(ctx, full, causal));
  if (!mask) return false;
  const DType dtype = dtype_of(in[0]);
  for (Tensor& t : in) { OAR_ASSIGN(t, as_f32(ctx, t)); }
  OAR_ASSIGN(const Shape shape, checked_shape(rank == 3 ? std::vector<int64_t>{q.B, q.S, q.H * v.D}
                                                        : std::vector<int64_t>{q.B, q.H, q.S, v.D}));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  HeadShape s;
  s.S = q.S, s.T = k.S, s.D = q.D, s.DV = v.D;
  s.q_row = q.row, s.k_row = k.row, s.v_row = v.row, s.out_row = rank == 3 ? q.H * v.D : v.D;
  s.mask_row = k.S;
  s.scale = static_cast<float>(a.has("scale") && a.get_float("scale") != 0
                                   ? a.get_float("scale")
                                   : 1 / std::sqrt(static_cast<double>(q.D)));
  if (y.numel() > 0) {
    OAR_RETURN_IF_ERROR(attend_heads(ctx, s, q.B * q.H, [&](int64_t u) {
      const int64_t b = u / q.H, h = u % q.H, group = h / (q.H / k.H);
      const auto first = [&](const Side& o, int64_t head) {
        return rank == 3 ? b * o.S * o.row + head * o.D : (b * o.H + head) * o.S * o.D;
      };
      Head one;
      one.q = elements<float>(in[0]) + first(q, h), one.k = elements<float>(in[1]) + first(k, group);
      one.v = elements<float>(in[2]) + first(v, group);
      one.out = mutable_elements<float>(y) + (rank == 3 ? (b * q.S * q.H + h) * v.D : u * q.S * v.D);
      if (mask->defined())
        one.mask = elements<float>(*mask) + (mask->numel() == q.S * k.S ? 0 : u * q.S * k.S);
      return one;
    }));
  }
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return true;
}

// dense_attention(q, k, v, mask?, past_k?, past_v?, kv_lengths?)
// -> y, present_k, present_v, scores (of the stage that qk_matmul_output_mode names)
Status dense_attention(EvalContext& ctx) {
  OAR_ASSIGN(const bool done, through_heads(ctx));
  if (done) return ok_status();
  OAR_ASSIGN(const Tensor tq, ctx.tensor(0));
  OAR_ASSIGN(const Tensor tk, ctx.tensor(1));
  OAR_ASSIGN(const Tensor tv, ctx.tensor(2));
  const Attrs& a = ctx.attrs();
  OAR_ASSIGN(const Heads q, heads(tq, a.get_int("q_num_heads")));
  OAR_ASSIGN(Heads k, heads(tk, a.get_int("kv_num_heads")));
  OAR_ASSIGN(Heads v, heads(tv, a.get_int("kv_num_heads")));
  if (k.B != q.B || v.B != q.B || k.H != v.H || k.S != v.S || k.D != q.D || k.H == 0 || q.H % k.H != 0)
    return invalid_argument("query, key and value do not match");
  int64_t past = 0;
  if (ctx.has(4) != ctx.has(5)) return invalid_argument("past key and value come together");
  if (ctx.has(4)) {
    OAR_ASSIGN(const Tensor pk, ctx.tensor(4));
    OAR_ASSIGN(const Tensor pv, ctx.tensor(5));
    past = -k.S;
    OAR_RETURN_IF_ERROR(prepend(pk, k));
    OAR_RETURN_IF_ERROR(prepend(pv, v));
    past += k.S;
    if (k.S != v.S) return invalid_argument("past key and value differ in length");
  }
  const int64_t B = q.B, H = q.H, S = q.S, L = k.S;
  std::vector<int64_t> lengths;
  if (ctx.has(6)) {
    OAR_ASSIGN(lengths, ctx.ints(6));
    if (static_cast<int64_t>(lengths.size()) != B)
      return invalid_argument("one length per batch entry is needed");
  }
  const Shape full({B, H, S, L});
  OAR_RETURN_IF_ERROR(ctx.check_size(full, DType::kF64));
  Vec bias;
  if (ctx.has(3)) {
    OAR_ASSIGN(const Tensor mask, ctx.tensor(3));
    OAR_RETURN_IF_ERROR(check_number(mask));
    Vec m = to_doubles(mask);
    if (dtype_of(mask) == DType::kBool) {
      for (double& e : m) e = e != 0 ? 0 : -INFINITY;
    }
    // A mask shorter than the keys hides the rest.
    const int64_t own = mask.shape().cols();
    std::vector<int64_t> dims = dims_of(mask.shape());
    if (dims.empty() || dims.size() > 4) return invalid_argument("the mask has too many axes");
    if (own < L) {
      Vec wide;
      for (size_t r = 0; own > 0 && r < m.size() / static_cast<size_t>(own); ++r) {
        wide.insert(wide.end(), m.begin() + static_cast<int64_t>(r) * own,
                    m.begin() + static_cast<int64_t>(r + 1) * own);
        wide.insert(wide.end(), static_cast<size_t>(L - own), -INFINITY);
      }
      m = std::move(wide), dims.back() = L;
    }
    const Shape ms(dims);
    OAR_ASSIGN(const Broadcast b, Broadcast::make({&full, &ms}));
    if (!(b.shape() == full)) return invalid_argument("the mask does not broadcast to the scores");
    bias.resize(static_cast<size_t>(full.numel()));
    b.runs(0, b.numel(), [&](int64_t at, const auto& from, int64_t n, const auto& step) {
      for (int64_t e = 0; e < n; ++e)
        bias[static_cast<size_t>(at + e)] = m[static_cast<size_t>(from[1] + e * step[1])];
    });
  }
  const double scale = a.has("scale") && a.get_float("scale") != 0 ? a.get_float("scale")
                                                                   : 1 / std::sqrt(static_cast<double>(q.D));
  const double softcap = a.get_float("softcap", 0);
  const bool causal = a.get_int("is_causal") != 0;
  const int64_t mode = a.get_int("qk_matmul_output_mode"), left = a.get_int("left_window_size", -1),
                right = a.get_int("right_window_size", -1);
  // Which stage is asked for: 0 the product, 1 after the cap... in the order of the definition: product,
  // bias, cap, softmax.
  Vec scores(ctx.wants(3) ? static_cast<size_t>(full.numel()) : 0),
      y(static_cast<size_t>(B * H * S * v.D), 0);
  ctx.parallel(B * H * S, static_cast<double>(L * (q.D + v.D)), [&](int64_t begin, int64_t end) {
    Vec s(static_cast<size_t>(L));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t b = r / (H * S), h = r / S % H, i = r % S, kv = h / (H / k.H);
      const int64_t offset = !lengths.empty() && !ctx.has(4) ? lengths[static_cast<size_t>(b)] - S : past;
      auto keep = [&](int64_t stage) {
        if (!scores.empty() && mode == stage) std::copy(s.begin(), s.end(), scores.begin() + r * L);
      };
      for (int64_t j = 0; j < L; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < q.D; ++d) dot += q.row(b, h, i)[d] * k.row(b, kv, j)[d];
        s[static_cast<size_t>(j)] = dot * scale;
      }
      keep(0);
      if (softcap > 0) {
        for (double& e : s) e = softcap * std::tanh(e / softcap);
      }
      keep(1);
      double top = -INFINITY, sum = 0;
      for (int64_t j = 0; j < L; ++j) {
        double& e = s[static_cast<size_t>(j)];
        if (!bias.empty()) e += bias[static_cast<size_t>(r * L + j)];
        const int64_t ahead = j - (i + offset);
        if ((causal && ahead > 0) || (right >= 0 && ahead > right) || (left >= 0 && -ahead > left))
          e = -INFINITY;
        if (!lengths.empty() && j >= lengths[static_cast<size_t>(b)]) e = -INFINITY;
        top = std::max(top, e);
      }
      keep(2);
      // A row that may attend nothing attends nothing.
      for (double& e : s) e = std::isinf(top) && top < 0 ? 0 : std::exp(e - top), sum += e;
      for (double& e : s) e = sum > 0 ? e / sum : e;
      keep(3);
      double* out = y.data() + (tq.shape().rank() == 3 ? ((b * S + i) * H + h) * v.D : r * v.D);
      for (int64_t j = 0; j < L; ++j) {
        if (s[static_cast<size_t>(j)] == 0) continue;
        for (int64_t d = 0; d < v.D; ++d) out[d] += s[static_cast<size_t>(j)] * v.row(b, kv, j)[d];
      }
    }
  });
  const Shape ys = tq.shape().rank() == 3 ? Shape({B, S, H * v.D}) : Shape({B, H, S, v.D});
  ctx.set(0, from_doubles(ctx, ys, dtype_of(tq), y));
  if (ctx.wants(1)) ctx.set(1, from_doubles(ctx, {B, k.H, L, k.D}, dtype_of(tk), k.v));
  if (ctx.wants(2)) ctx.set(2, from_doubles(ctx, {B, v.H, L, v.D}, dtype_of(tv), v.v));
  if (ctx.wants(3)) ctx.set(3, from_doubles(ctx, full, dtype_of(tq), scores));
  return ok_status();
}

// rotary_embedding(x, cos, sin, positions?) {interleaved, num_heads, rotary_embedding_dim}: one position
// alone is that of the first token; without num_heads a head is as wide as its angles.
Status rotary_embedding(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor tc, ctx.tensor(1));
  OAR_ASSIGN(const Tensor ts, ctx.tensor(2));
  int64_t count = ctx.attrs().get_int("num_heads");
  if (count == 0 && x.shape().rank() == 3 && tc.shape().rank() > 0 && tc.shape().cols() > 0)
    count = x.shape()[2] / (2 * tc.shape().cols());
  OAR_ASSIGN(Heads h, heads(x, count));
  if (!dtype_is_float(dtype_of(tc)) || !dtype_is_float(dtype_of(ts)) || !(tc.shape() == ts.shape()))
    return invalid_argument("cos and sin do not match");
  const Vec c = to_doubles(tc), s = to_doubles(ts);
  int64_t dim = ctx.attrs().get_int("rotary_embedding_dim");
  if (dim == 0) dim = h.D;
  const int64_t half = dim / 2;
  const bool interleaved = ctx.attrs().get_int("interleaved") != 0;
  std::vector<int64_t> positions;
  if (ctx.has(3)) {
    OAR_ASSIGN(const Tensor p, ctx.tensor(3));
    const bool first = p.numel() == 1 && p.shape().rank() < 2;
    if (!dtype_is_integer(dtype_of(p)) || (p.numel() != h.B * h.S && !first))
      return invalid_argument("one position per token is needed");
    for (int64_t k = 0; k < h.B * h.S; ++k)
      positions.push_back(first ? element_as_int(p, 0) + k % h.S : element_as_int(p, k));
  }
  const int64_t rows = half > 0 ? tc.numel() / half : 0;
  if (dim < 2 || dim % 2 != 0 || dim > h.D || tc.shape().cols() != half ||
      (positions.empty() && rows != h.B * h.S))
    return invalid_argument("cos and sin do not match the operand");
  Vec y(static_cast<size_t>(x.numel()));
  for (int64_t b = 0; b < h.B; ++b)
    for (int64_t k = 0; k < h.H; ++k)
      for (int64_t t = 0; t < h.S; ++t) {
        const double* in = h.row(b, k, t);
        double* out = y.data() + (x.shape().rank() == 3 ? ((b * h.S + t) * h.H + k) * h.D
                                                        : ((b * h.H + k) * h.S + t) * h.D);
        const int64_t at = positions.empty() ? b * h.S + t : positions[static_cast<size_t>(b * h.S + t)];
        if (at < 0 || at >= rows) return invalid_argument(cat("position ", at, " is out of range"));
        std::copy_n(in, h.D, out);
        for (int64_t d = 0; d < half; ++d) {
          const int64_t p = interleaved ? 2 * d : d, r = interleaved ? 2 * d + 1 : d + half;
          const double co = c[static_cast<size_t>(at * half + d)], si = s[static_cast<size_t>(at * half + d)];
          out[p] = in[p] * co - in[r] * si;
          out[r] = in[r] * co + in[p] * si;
        }
      }
  ctx.set(0, from_doubles(ctx, x.shape(), dtype_of(x), y));
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
OAR_TENSOR_OP(dense_attention, tensor::dense_attention);
OAR_TENSOR_OP(linear_attention, tensor::linear_attention);
OAR_TENSOR_OP(nll_loss, tensor::nll_loss);
OAR_TENSOR_OP(rotary_embedding, tensor::rotary_embedding);
OAR_TENSOR_OP(softmax_cross_entropy_loss, tensor::softmax_cross_entropy_loss);
}  // namespace oar
