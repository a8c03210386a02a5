// segment_attention and its way back (ops.h): exact attention within each segment, whose rows lie together,
// by dense products of a few heads at a time. What lies between segments is never computed.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

// Bytes of one matrix of scores, of as many heads as fit; at least one.
constexpr int64_t kScoreBytes = int64_t{16} << 20;

struct Heads {
  int64_t T = 0, H = 0, K = 0, D = 0;
  double scale = 1, softcap = 0;
  int64_t window = 0;
  bool causal = true;
  const int32_t* positions = nullptr;
  int64_t group() const { return H / K; }
};

struct SegmentRun {
  int64_t begin = 0, rows = 0;
};

Result<Heads> read_heads(const EvalContext& ctx) {
  Heads h;
  Tensor t[5];
  h.window = ctx.attrs().get_int("window"), h.causal = ctx.attrs().get_bool("causal", true);
  const bool counts = h.causal || h.window > 0;  // whether positions matter
  for (size_t k = 0; k < 5; ++k) {
    if (k != 3 || counts) { OAR_ASSIGN(t[k], ctx.tensor(k)); }
  }
  if (t[0].shape().rank() != 3 || t[1].shape().rank() != 3 || !(t[1].shape() == t[2].shape()))
    return invalid_argument("q, k and v have three axes");
  h.T = t[0].shape()[0], h.H = t[0].shape()[1], h.D = t[0].shape()[2], h.K = t[1].shape()[1];
  const Shape rows{h.T};
  for (size_t k = 0; k < 3; ++k)
    if (!(t[k].format() == Format::f32())) return invalid_argument("q, k and v must be f32");
  for (size_t k = counts ? 3 : 4; k < 5; ++k)
    if (!(t[k].format() == Format::i32()) || !(t[k].shape() == rows))
      return invalid_argument("positions and segments are i32 (T)");
  if (h.K < 1 || h.H % h.K != 0 || t[1].shape()[0] != h.T || t[1].shape()[2] != h.D)
    return invalid_argument("heads of q and k do not match");
  h.scale = ctx.attrs().get_float("scale"), h.softcap = ctx.attrs().get_float("softcap");
  h.positions = ctx.options().sizing || !counts ? nullptr : t[3].values<int32_t>().data();
  return h;
}

// Where each segment lies; INVALID_ARGUMENT where one comes twice.
Result<std::vector<SegmentRun>> segment_runs(const EvalContext& ctx, int64_t T) {
  std::vector<SegmentRun> out;
  if (ctx.options().sizing) return std::vector<SegmentRun>{{0, T}};  // the most that there may be
  OAR_ASSIGN(const Tensor segments, ctx.tensor(4));
  const auto id = segments.values<int32_t>();
  std::vector<int32_t> seen;
  for (int64_t t = 0; t < T; ++t) {
    const int32_t now = id[static_cast<size_t>(t)];
    if (t > 0 && now == id[static_cast<size_t>(t - 1)]) {
      ++out.back().rows;
      continue;
    }
    seen.push_back(now);
    out.push_back({t, 1});
  }
  std::sort(seen.begin(), seen.end());
  if (std::adjacent_find(seen.begin(), seen.end()) != seen.end())
    return invalid_argument("the rows of a segment must lie together");
  return out;
}

// Products of heads [h0, h1) of one segment: a (n, K) by b (K, m), each head's at its own place.
struct HeadProduct {
  const float* a = nullptr;
  int64_t lda = 0,
          step_a = 0;  // from row to row, and to head; below 0: a begins with the first of these heads
  const float* b = nullptr;
  int64_t b_row = 0, b_col = 0, step_b = 0;
  int64_t group_b = 1;  // heads that share one b
  int64_t M = 0, N = 0, K = 0;
};
Status multiply(const KernelContext& ctx, const HeadProduct& p, int64_t h0, int64_t h1, float* out) {
  tensor::Products all;
  all.M = p.M, all.N = p.N, all.K = p.K;
  all.a = p.a, all.b = p.b, all.out = out;
  all.lda = p.lda, all.b_row = p.b_row, all.b_col = p.b_col;
  for (int64_t h = h0; h < h1; ++h) {
    all.at_a.push_back((p.step_a > 0 ? h : h - h0) * std::abs(p.step_a));
    all.at_b.push_back(h / p.group_b * p.step_b);
  }
  return tensor::packed_products(ctx, all);
}

// Memory of one block of heads: matrices (heads, n, n) and results (heads, n, D).
struct Scratch {
  int64_t heads = 0;
  Tensor p, d, turned, rows;

  static Result<Scratch> make(const EvalContext& ctx, const Heads& h, int64_t n, bool back) {
    Scratch s;
    s.heads = std::clamp<int64_t>(kScoreBytes / std::max<int64_t>(4 * n * n, 1), 1, h.H);
    OAR_ASSIGN(s.p, ctx.allocate({s.heads, n, n}, DType::kF32));
    OAR_ASSIGN(s.rows, ctx.allocate({s.heads, n, h.D}, DType::kF32));
    if (back) {
      OAR_ASSIGN(s.d, ctx.allocate({s.heads, n, n}, DType::kF32));
      OAR_ASSIGN(s.turned, ctx.allocate({s.heads, n, n}, DType::kF32));
    }
    return s;
  }
};

// What row i of a segment sees of its rows [0, n).
bool sees(const Heads& h, const SegmentRun& r, int64_t i, int64_t j) {
  if (h.positions == nullptr) return true;
  const int64_t back = h.positions[r.begin + i] - h.positions[r.begin + j];
  return (!h.causal || back >= 0) && (h.window <= 0 || std::abs(back) < h.window);
}

// p = softmax(scores) over what each row sees, in place.
void attend_rows(const EvalContext& ctx, const Heads& h, const SegmentRun& r, int64_t heads, float* p) {
  const int64_t n = r.rows;
  ctx.parallel(heads * n, 8.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      float* const s = p + u * n;
      const int64_t i = u % n;
      float top = -INFINITY;
      for (int64_t j = 0; j < n; ++j) {
        if (!sees(h, r, i, j)) continue;
        double x = h.scale * static_cast<double>(s[j]);
        if (h.softcap > 0) x = h.softcap * std::tanh(x / h.softcap);
        s[j] = static_cast<float>(x);
        if (!(s[j] <= top)) top = s[j];  // no number stays
      }
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        s[j] = sees(h, r, i, j) ? std::exp(s[j] - top) : 0;
        sum += static_cast<double>(s[j]);
      }
      const auto inverse = static_cast<float>(1 / sum);
      for (int64_t j = 0; j < n; ++j) s[j] *= inverse;
    }
  });
}

Status scores(const KernelContext& ctx, const Heads& h, const SegmentRun& r, const float* q, const float* k,
              int64_t h0, int64_t h1, float* out) {
  HeadProduct s;
  s.a = q + r.begin * h.H * h.D, s.lda = h.H * h.D, s.step_a = h.D;
  s.b = k + r.begin * h.K * h.D, s.b_row = 1, s.b_col = h.K * h.D, s.step_b = h.D, s.group_b = h.group();
  s.M = s.N = r.rows, s.K = h.D;
  return multiply(ctx, s, h0, h1, out);
}

// to (T, heads, D) += or = from (heads, n, D), heads [h0, h1) of a segment; `group` of them add up to one.
void store_heads(const EvalContext& ctx, const SegmentRun& r, int64_t h0, int64_t h1, int64_t group,
                 int64_t D, int64_t heads, const float* from, float* to) {
  ctx.parallel(r.rows, static_cast<double>((h1 - h0) * D), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t h = h0; h < h1; ++h) {
        const float* const x = from + ((h - h0) * r.rows + i) * D;
        float* const y = to + ((r.begin + i) * heads + h / group) * D;
        for (int64_t d = 0; d < D; ++d) y[d] += x[d];
      }
    }
  });
}

Result<bool> attention_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Heads h, read_heads(ctx));
  OAR_ASSIGN(const auto runs, segment_runs(ctx, h.T));
  OAR_ASSIGN(const Tensor q, ctx.tensor(0));
  OAR_ASSIGN(const Tensor k, ctx.tensor(1));
  OAR_ASSIGN(const Tensor v, ctx.tensor(2));
  OAR_ASSIGN(Tensor y, ctx.zeros({h.T, h.H, h.D}, DType::kF32));
  for (const SegmentRun& r : runs) {
    OAR_ASSIGN(Scratch s, Scratch::make(ctx, h, r.rows, false));
    float *const p = mutable_elements<float>(s.p), *const rows = mutable_elements<float>(s.rows);
    for (int64_t h0 = 0; h0 < h.H; h0 += s.heads) {
      const int64_t h1 = std::min(h.H, h0 + s.heads), n = r.rows;
      OAR_RETURN_IF_ERROR(scores(ctx, h, r, elements<float>(q), elements<float>(k), h0, h1, p));
      if (!ctx.options().sizing) attend_rows(ctx, h, r, h1 - h0, p);
      HeadProduct o;
      o.a = p, o.lda = n, o.step_a = -n * n;
      o.b = elements<float>(v) + r.begin * h.K * h.D, o.b_row = h.K * h.D, o.b_col = 1, o.step_b = h.D,
      o.group_b = h.group();
      o.M = o.K = n, o.N = h.D;
      OAR_RETURN_IF_ERROR(multiply(ctx, o, h0, h1, rows));
      store_heads(ctx, r, h0, h1, 1, h.D, h.H, rows, mutable_elements<float>(y));
      if (ctx.options().sizing) break;
    }
  }
  ctx.set(0, std::move(y));
  return true;
}

void turn_heads(const EvalContext& ctx, const float* from, int64_t heads, int64_t n, float* to) {
  ctx.parallel(heads * n, static_cast<double>(n), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const float* const m = from + u / n * n * n;
      for (int64_t i = 0; i < n; ++i) to[u * n + i] = m[i * n + u % n];
    }
  });
}

// d, the gradient of p, becomes that of the scores before their scale: p (d - sum p d), times the slope of
// the cap.
void through_softmax(const EvalContext& ctx, const Heads& h, const SegmentRun& r, int64_t heads,
                     const float* p, float* d, const float* capped) {
  const int64_t n = r.rows;
  ctx.parallel(heads * n, 3.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const float* const w = p + u * n;
      float* const g = d + u * n;
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += static_cast<double>(w[j]) * g[j];
      for (int64_t j = 0; j < n; ++j) {
        double slope = h.scale;
        if (capped != nullptr) {
          const double t = std::tanh(h.scale * static_cast<double>(capped[u * n + j]) / h.softcap);
          slope *= 1 - t * t;
        }
        g[j] = w[j] == 0 ? 0 : static_cast<float>(slope * w[j] * (static_cast<double>(g[j]) - sum));
      }
    }
  });
}

Result<bool> attention_back_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Heads h, read_heads(ctx));
  OAR_ASSIGN(const auto runs, segment_runs(ctx, h.T));
  OAR_ASSIGN(const Tensor q, ctx.tensor(0));
  OAR_ASSIGN(const Tensor k, ctx.tensor(1));
  OAR_ASSIGN(const Tensor v, ctx.tensor(2));
  OAR_ASSIGN(const Tensor dy, ctx.tensor(5));
  if (!(dy.shape() == q.shape()) || !(dy.format() == Format::f32()))
    return invalid_argument("dy is shaped like q");
  OAR_ASSIGN(Tensor dq, ctx.zeros(q.shape(), DType::kF32));
  OAR_ASSIGN(Tensor dk, ctx.zeros(k.shape(), DType::kF32));
  OAR_ASSIGN(Tensor dv, ctx.zeros(v.shape(), DType::kF32));
  const int64_t row_q = h.H * h.D, row_k = h.K * h.D, G = h.group();
  for (const SegmentRun& r : runs) {
    OAR_ASSIGN(Scratch s, Scratch::make(ctx, h, r.rows, true));
    float *const p = mutable_elements<float>(s.p), *const d = mutable_elements<float>(s.d);
    float *const turned = mutable_elements<float>(s.turned), *const rows = mutable_elements<float>(s.rows);
    const int64_t n = r.rows;
    const auto rows_of = [&](const Tensor& t, int64_t row) { return elements<float>(t) + r.begin * row; };
    for (int64_t h0 = 0; h0 < h.H; h0 += s.heads) {
      const int64_t h1 = std::min(h.H, h0 + s.heads);
      OAR_RETURN_IF_ERROR(scores(ctx, h, r, elements<float>(q), elements<float>(k), h0, h1, p));
      if (!ctx.options().sizing) attend_rows(ctx, h, r, h1 - h0, p);
      // dv = p^T dy
      if (!ctx.options().sizing) turn_heads(ctx, p, h1 - h0, n, turned);
      HeadProduct o;
      o.a = turned, o.lda = n, o.step_a = -n * n;
      o.b = rows_of(dy, row_q), o.b_row = row_q, o.b_col = 1, o.step_b = h.D;
      o.M = o.K = n, o.N = h.D;
      OAR_RETURN_IF_ERROR(multiply(ctx, o, h0, h1, rows));
      store_heads(ctx, r, h0, h1, G, h.D, h.K, rows, mutable_elements<float>(dv));
      // d = dy v^T, and through the softmax
      HeadProduct e;
      e.a = rows_of(dy, row_q), e.lda = row_q, e.step_a = h.D;
      e.b = rows_of(v, row_k), e.b_row = 1, e.b_col = row_k, e.step_b = h.D, e.group_b = G;
      e.M = e.N = n, e.K = h.D;
      OAR_RETURN_IF_ERROR(multiply(ctx, e, h0, h1, d));
      if (h.softcap > 0)
        OAR_RETURN_IF_ERROR(scores(ctx, h, r, elements<float>(q), elements<float>(k), h0, h1, turned));
      if (!ctx.options().sizing) through_softmax(ctx, h, r, h1 - h0, p, d, h.softcap > 0 ? turned : nullptr);
      // dq = d k
      HeadProduct a;
      a.a = d, a.lda = n, a.step_a = -n * n;
      a.b = rows_of(k, row_k), a.b_row = row_k, a.b_col = 1, a.step_b = h.D, a.group_b = G;
      a.M = a.K = n, a.N = h.D;
      OAR_RETURN_IF_ERROR(multiply(ctx, a, h0, h1, rows));
      store_heads(ctx, r, h0, h1, 1, h.D, h.H, rows, mutable_elements<float>(dq));
      // dk = d^T q
      if (!ctx.options().sizing) turn_heads(ctx, d, h1 - h0, n, turned);
      o.b = rows_of(q, row_q);
      OAR_RETURN_IF_ERROR(multiply(ctx, o, h0, h1, rows));
      store_heads(ctx, r, h0, h1, G, h.D, h.K, rows, mutable_elements<float>(dk));
      if (ctx.options().sizing) break;
    }
  }
  ctx.set(0, std::move(dq));
  ctx.set(1, std::move(dk));
  ctx.set(2, std::move(dv));
  return true;
}

Result<std::vector<TensorType>> back_types(const Graph& g, std::span<const ValueId> in, const Attrs&) {
  return std::vector<TensorType>{g.value(in[0]).type, g.value(in[1]).type, g.value(in[2]).type};
}

std::vector<Val> attention_vjp(const Pullback& p) {
  std::vector<Val> in(p.in.begin(), p.in.end());
  in.push_back(p.d[0]);
  std::vector<Val> out = emit(p.b, op_segment_attention_back, in, p.attrs);
  out.resize(p.in.size());
  return out;
}

Result<std::vector<TensorType>> q_type(const Graph& g, std::span<const ValueId> in, const Attrs&) {
  return std::vector<TensorType>{g.value(in[0]).type};
}

}  // namespace

const OpDef op_segment_attention = {
    .name = "segment_attention", .infer = q_type, .vjp = attention_vjp, .by_kernels = attention_by_kernels};
const OpDef op_segment_attention_back = {
    .name = "segment_attention_back", .infer = back_types, .by_kernels = attention_back_by_kernels};

}  // namespace oar::train
