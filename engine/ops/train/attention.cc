// segment_attention and its way back (ops.h): exact attention within each segment, whose rows lie together,
// by dense products of a block of rows and a few heads at a time. What lies between segments, or behind what
// a block sees, is never computed.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <span>

#include "engine/graph/derived.h"
#include "engine/ops/define/definitions.h"
#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/attention_blocks.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"
#include "kernels/softmax_grad.h"

namespace oar::train {
namespace {

// Bytes of one matrix of scores, of as many heads as fit; at least one.
constexpr int64_t kScoreBytes = int64_t{16} << 20;

struct SegmentRun {
  int64_t begin = 0, rows = 0;
};

}  // namespace

Result<Heads> read_heads(const EvalContext& ctx, size_t sinks) {
  Heads h;
  Tensor t[5];
  h.window = ctx.attrs().get_int("window"), h.causal = ctx.attrs().get_bool("causal", true);
  h.chunked = h.window > 0 && ctx.attrs().get_bool("chunked");
  if (h.chunked && !h.causal) return unimplemented("chunks of rows that see what is behind them");
  const bool counts = h.causal || h.window > 0;  // whether positions matter
  for (size_t k = 0; k < 5; ++k) {
    if (k != 3 || counts) { OAR_ASSIGN(t[k], ctx.tensor(k)); }
  }
  if (t[0].shape().rank() != 3 || t[1].shape().rank() != 3 || !(t[1].shape() == t[2].shape()))
    return invalid_argument("q, k and v have three axes");
  h.T = t[0].shape()[0], h.H = t[0].shape()[1], h.D = t[0].shape()[2], h.K = t[1].shape()[1];
  const Shape rows{h.T};
  for (size_t k = 0; k < 3; ++k)
    if (!is_float(t[k]) || !(t[k].format() == t[0].format()))
      return invalid_argument("q, k and v must be all f32 or all bf16");
  for (size_t k = counts ? 3 : 4; k < 5; ++k)
    if (!(t[k].format() == Format::i32()) || !(t[k].shape() == rows))
      return invalid_argument("positions and segments are i32 (T)");
  if (h.K < 1 || h.H % h.K != 0 || t[1].shape()[0] != h.T || t[1].shape()[2] != h.D)
    return invalid_argument("heads of q and k do not match");
  h.scale = ctx.attrs().get_float("scale"), h.softcap = ctx.attrs().get_float("softcap");
  h.positions = ctx.options().sizing || !counts ? nullptr : t[3].values<int32_t>().data();
  if (ctx.has(sinks)) {
    OAR_ASSIGN(const Tensor logits, ctx.tensor(sinks));
    if (!(logits.format() == Format::f32()) || !(logits.shape() == Shape{h.H}) || h.scale < 0)
      return invalid_argument("sinks are f32, one for each head of scores whose scale is positive");
    h.sinks = ctx.options().sizing ? nullptr : elements<float>(logits);
  }
  return h;
}

namespace {

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

// A segment's rows in blocks of kRows. Positions ascend, so no row sees with gaps, and later blocks see no
// less.
Status add_blocks(const Heads& h, const SegmentRun& r, std::vector<RowBlock>& out) {
  const auto n = static_cast<int32_t>(r.rows);
  const int32_t* const at = h.positions == nullptr ? nullptr : h.positions + r.begin;
  if (at != nullptr && !std::is_sorted(at, at + n))
    return invalid_argument("positions of a segment must ascend");
  int32_t first = 0, last = at == nullptr ? n : 0;
  const auto too_old = [&](int32_t back, int32_t now) {
    return h.chunked ? back / h.window != now / h.window : now - back >= h.window;
  };
  for (int32_t i = 0; i < n; ++i) {
    while (at != nullptr && h.window > 0 && too_old(at[first], at[i])) ++first;
    while (at != nullptr && last < n && (h.causal ? at[last] <= at[i] : at[last] - at[i] < h.window)) ++last;
    if (i % kRows == 0)
      out.push_back({r.begin + i, 0, r.begin + first / kColumnStep * kColumnStep, 0, {}, {}});
    RowBlock& b = out.back();
    const auto before = static_cast<int32_t>(b.from - r.begin);
    b.first.push_back(first - before), b.last.push_back(last - before);
    ++b.rows, b.cols = last - before;
  }
  return ok_status();
}

}  // namespace

Result<std::vector<SegmentBlocks>> segment_blocks(const EvalContext& ctx, const Heads& h) {
  std::vector<SegmentBlocks> out;
  OAR_ASSIGN(const auto runs, segment_runs(ctx, h.T));
  for (const SegmentRun& r : runs) {
    out.push_back({r.begin, r.rows, {}});
    // While sizing, the most that there may be.
    if (ctx.options().sizing) out.back().blocks.push_back({0, std::min(kRows, h.T), 0, h.T, {}, {}});
    else OAR_RETURN_IF_ERROR(add_blocks(h, r, out.back().blocks));
  }
  return out;
}

void share_with_sink(const Heads& h, int64_t head, float largest, std::span<float> row) {
  double score = h.scale * static_cast<double>(largest);
  if (h.softcap > 0) score = h.softcap * std::tanh(score / h.softcap);
  const double z = score - std::log(static_cast<double>(*std::max_element(row.begin(), row.end())));
  const auto kept = static_cast<float>(1 / (1 + std::exp(static_cast<double>(h.sinks[head]) - z)));
  for (float& weight : row) weight *= kept;
}

namespace {

// Memory of one block of rows, for so many heads: matrices (heads, rows, cols), and results (heads, rows or
// cols, D).
struct Scratch {
  int64_t heads = 0;
  Tensor p, d, turned, rows;

  static Result<Scratch> make(const EvalContext& ctx, const Heads& h, const RowBlock& b, bool back) {
    Scratch s;
    s.heads = std::clamp<int64_t>(kScoreBytes / std::max<int64_t>(4 * b.rows * b.cols, 1), 1, h.H);
    OAR_ASSIGN(s.p, ctx.allocate({s.heads, b.rows, b.cols}, DType::kF32));
    OAR_ASSIGN(s.rows, ctx.allocate({s.heads, back ? std::max(b.rows, b.cols) : b.rows, h.D}, DType::kF32));
    if (back) {
      OAR_ASSIGN(s.d, ctx.allocate({s.heads, b.rows, b.cols}, DType::kF32));
      OAR_ASSIGN(s.turned, ctx.allocate({s.heads, b.cols, b.rows}, DType::kF32));
    }
    return s;
  }
};

template <class Args>
Status run_rows(const KernelContext& ctx, KernelFamily family, const Args& a) {
  if (ctx.options().sizing) return ok_status();
  return tensor::run_kernel(ctx, tensor::f32_kernel(ctx.backend(), family), &a,
                            1.5 * static_cast<double>(a.rows) * static_cast<double>(a.n));
}

// p = softmax(scores) over what each row sees, in place, of heads from h0 on.
Status attend_rows(const KernelContext& ctx, const Heads& h, const RowBlock& b, int64_t h0, int64_t heads,
                   float* p) {
  std::vector<float> top(h.sinks != nullptr ? static_cast<size_t>(heads * b.rows) : 0);
  const auto each_row = [&](const auto& fn) {
    if (top.empty()) return;
    ctx.parallel(static_cast<int64_t>(top.size()), static_cast<double>(b.cols),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t r = begin; r < end; ++r)
                     fn(r, b.seen(p + r * b.cols, r % b.rows), top[static_cast<size_t>(r)]);
                 });
  };
  each_row(
      [](int64_t, std::span<float> row, float& most) { most = *std::max_element(row.begin(), row.end()); });
  auto a = rows_of_scores<SeenSoftmaxArgs>(h, b, heads);
  a.x = p;
  OAR_RETURN_IF_ERROR(run_rows(ctx, KernelFamily::kSeenSoftmax, a));
  each_row(
      [&](int64_t r, std::span<float> row, float most) { share_with_sink(h, h0 + r / b.rows, most, row); });
  return ok_status();
}

// d, the gradient of p, becomes that of the scores before their scale. `raw`: these scores, for the cap's
// slope.
Status through_softmax(const KernelContext& ctx, const Heads& h, const RowBlock& b, int64_t heads,
                       const float* p, float* d, const float* raw) {
  auto a = rows_of_scores<SoftmaxGradArgs>(h, b, heads);
  a.p = p, a.g = d, a.x = raw;
  return run_rows(ctx, KernelFamily::kSoftmaxGrad, a);
}

// Products of a block with q, k, v and dy, whose heads lie side by side.
class BlockProducts {
 public:
  BlockProducts(const KernelContext& ctx, const Heads& h, const RowBlock& b) : ctx_(ctx), h_(h), b_(b) {}

  // out (heads, rows, cols) = x . y^T: x of the block's rows and H heads, y of its columns and K heads.
  Status scores(const Tensor& x, const Tensor& y, int64_t h0, int64_t h1, float* out) const {
    HeadProduct s;
    s.a = row(x, b_.begin, h_.H), s.lda = h_.H * h_.D, s.step_a = h_.D;
    s.b = row(y, b_.from, h_.K), s.b_row = 1, s.b_col = h_.K * h_.D, s.step_b = h_.D, s.group_b = h_.group();
    s.M = b_.rows, s.N = b_.cols, s.K = h_.D;
    return multiply(ctx_, s, h0, h1, out);
  }
  // out (heads, rows, D) = p (heads, rows, cols) . y, of the block's columns and K heads.
  Status of_columns(const float* p, const Tensor& y, int64_t h0, int64_t h1, float* out) const {
    HeadProduct o;
    o.a = p, o.lda = b_.cols, o.step_a = -b_.rows * b_.cols;
    o.b = row(y, b_.from, h_.K), o.b_row = h_.K * h_.D, o.b_col = 1, o.step_b = h_.D, o.group_b = h_.group();
    o.M = b_.rows, o.K = b_.cols, o.N = h_.D;
    return multiply(ctx_, o, h0, h1, out);
  }
  // out (heads, cols, D) = p^T . x, of the block's rows and H heads.
  Status of_rows(const float* p, const Tensor& x, int64_t h0, int64_t h1, float* turned, float* out) const {
    const int64_t size = b_.rows * b_.cols;
    ctx_.parallel(h1 - h0, 0.4 * static_cast<double>(size), [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e)
        turn_columns(p + e * size, b_.rows, b_.cols, 0, b_.cols, turned + e * size);
    });
    HeadProduct o;
    o.a = turned, o.lda = b_.rows, o.step_a = -size;
    o.b = row(x, b_.begin, h_.H), o.b_row = h_.H * h_.D, o.b_col = 1, o.step_b = h_.D;
    o.M = b_.cols, o.K = b_.rows, o.N = h_.D;
    return multiply(ctx_, o, h0, h1, out);
  }
  // to (T, H, D) += (heads, rows, D) at the block's rows; to (T, K, D) += (heads, cols, D) at its columns,
  // where heads that share keys add up.
  void add_rows(const float* from, int64_t h0, int64_t h1, Tensor& to) const {
    add(from, h0, h1, b_.begin, b_.rows, h_.H, 1, to);
  }
  void add_columns(const float* from, int64_t h0, int64_t h1, Tensor& to) const {
    add(from, h0, h1, b_.from, b_.cols, h_.K, h_.group(), to);
  }

 private:
  const float* row(const Tensor& t, int64_t at, int64_t heads) const {
    return elements<float>(t) + at * heads * h_.D;
  }
  void add(const float* from, int64_t h0, int64_t h1, int64_t at, int64_t n, int64_t heads, int64_t group,
           Tensor& to) const {
    const int64_t D = h_.D;
    float* const first = mutable_elements<float>(to) + at * heads * D;
    ctx_.parallel(n, static_cast<double>((h1 - h0) * D), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t h = h0; h < h1; ++h) {
          const float* const x = from + ((h - h0) * n + i) * D;
          float* const y = first + (i * heads + h / group) * D;
          for (int64_t d = 0; d < D; ++d) y[d] += x[d];
        }
      }
    });
  }
  const KernelContext& ctx_;
  const Heads& h_;
  const RowBlock& b_;
};

// In f32, of operands in f32.
Status attend(const KernelContext& ctx, const Heads& h, const std::vector<SegmentBlocks>& segments,
              const Tensor& q, const Tensor& k, const Tensor& v, Tensor& y) {
  for (const SegmentBlocks& segment : segments) {
    for (const RowBlock& b : segment.blocks) {
      OAR_ASSIGN(Scratch s, Scratch::make(ctx, h, b, false));
      const BlockProducts products(ctx, h, b);
      float *const p = mutable_elements<float>(s.p), *const rows = mutable_elements<float>(s.rows);
      for (int64_t h0 = 0; h0 < h.H; h0 += s.heads) {
        const int64_t h1 = std::min(h.H, h0 + s.heads);
        OAR_RETURN_IF_ERROR(products.scores(q, k, h0, h1, p));
        OAR_RETURN_IF_ERROR(attend_rows(ctx, h, b, h0, h1 - h0, p));
        OAR_RETURN_IF_ERROR(products.of_columns(p, v, h0, h1, rows));
        products.add_rows(rows, h0, h1, y);
        if (ctx.options().sizing) break;
      }
    }
  }
  return ok_status();
}

Status attend_back(const KernelContext& ctx, const Heads& h, const std::vector<SegmentBlocks>& segments,
                   const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dy, Tensor& dq,
                   Tensor& dk, Tensor& dv) {
  for (const SegmentBlocks& segment : segments) {
    for (const RowBlock& b : segment.blocks) {
      OAR_ASSIGN(Scratch s, Scratch::make(ctx, h, b, true));
      const BlockProducts products(ctx, h, b);
      float *const p = mutable_elements<float>(s.p), *const d = mutable_elements<float>(s.d);
      float *const turned = mutable_elements<float>(s.turned), *const rows = mutable_elements<float>(s.rows);
      for (int64_t h0 = 0; h0 < h.H; h0 += s.heads) {
        const int64_t h1 = std::min(h.H, h0 + s.heads);
        OAR_RETURN_IF_ERROR(products.scores(q, k, h0, h1, p));
        OAR_RETURN_IF_ERROR(attend_rows(ctx, h, b, h0, h1 - h0, p));
        // dv += p^T dy
        OAR_RETURN_IF_ERROR(products.of_rows(p, dy, h0, h1, turned, rows));
        products.add_columns(rows, h0, h1, dv);
        // d = dy v^T, and through the softmax
        OAR_RETURN_IF_ERROR(products.scores(dy, v, h0, h1, d));
        if (h.softcap > 0) OAR_RETURN_IF_ERROR(products.scores(q, k, h0, h1, turned));
        OAR_RETURN_IF_ERROR(through_softmax(ctx, h, b, h1 - h0, p, d, h.softcap > 0 ? turned : nullptr));
        // dq = d k
        OAR_RETURN_IF_ERROR(products.of_columns(d, k, h0, h1, rows));
        products.add_rows(rows, h0, h1, dq);
        // dk += d^T q
        OAR_RETURN_IF_ERROR(products.of_rows(d, q, h0, h1, turned, rows));
        products.add_columns(rows, h0, h1, dk);
        if (ctx.options().sizing) break;
      }
    }
  }
  return ok_status();
}

// Whether operands are bf16 and there is a kernel for their products.
bool by_narrow(const KernelContext& ctx, const Tensor& q) {
  return q.format() == Format::bf16() && narrow_kernel(ctx) != nullptr;
}
// `result` made in f32 from zeros: itself, or memory that is rounded in the end.
Result<Tensor> sums_of(const KernelContext& ctx, const Tensor& result) {
  if (!(result.format() == Format::f32())) return ctx.zeros(result.shape(), DType::kF32);
  if (!ctx.options().sizing) std::memset(result.mutable_data(), 0, result.bytes());
  return result;
}
Status round_sums(const KernelContext& ctx, const Tensor& sums, Tensor& result) {
  return result.format() == Format::f32()
             ? ok_status()
             : round_numbers(ctx, elements<float>(sums), sums.numel(), mutable_elements<bf16>(result));
}

Result<bool> attention_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Heads h, read_heads(ctx, 5));
  OAR_ASSIGN(const auto segments, segment_blocks(ctx, h));
  Tensor in[3];
  for (size_t k = 0; k < 3; ++k) { OAR_ASSIGN(in[k], ctx.tensor(k)); }
  OAR_ASSIGN(Tensor y, ctx.allocate({h.T, h.H, h.D}, result_type(ctx.attrs(), 0)));
  if (by_narrow(ctx, in[0])) {
    OAR_RETURN_IF_ERROR(narrow_attend(ctx, h, segments, in[0], in[1], in[2], y));
  } else {
    for (Tensor& t : in) { OAR_ASSIGN(t, widened(ctx, t)); }
    OAR_ASSIGN(Tensor sums, sums_of(ctx, y));
    OAR_RETURN_IF_ERROR(attend(ctx, h, segments, in[0], in[1], in[2], sums));
    OAR_RETURN_IF_ERROR(round_sums(ctx, sums, y));
  }
  ctx.set(0, std::move(y));
  return true;
}

Result<bool> attention_back_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Heads h, read_heads(ctx, 6));
  OAR_ASSIGN(const auto segments, segment_blocks(ctx, h));
  constexpr size_t kOperands[] = {0, 1, 2, 5};
  Tensor in[4], out[3], sums[3];
  for (size_t k = 0; k < 4; ++k) { OAR_ASSIGN(in[k], ctx.tensor(kOperands[k])); }
  if (!(in[3].shape() == in[0].shape()) || !(in[3].format() == in[0].format()))
    return invalid_argument("dy is shaped like q");
  for (size_t k = 0; k < 3; ++k) {
    OAR_ASSIGN(out[k], ctx.allocate(in[k].shape(), result_type(ctx.attrs(), k)));
  }
  if (by_narrow(ctx, in[0])) {
    OAR_RETURN_IF_ERROR(narrow_attend_back(ctx, h, segments, in, out));
  } else {
    for (Tensor& t : in) { OAR_ASSIGN(t, widened(ctx, t)); }
    for (size_t k = 0; k < 3; ++k) { OAR_ASSIGN(sums[k], sums_of(ctx, out[k])); }
    OAR_RETURN_IF_ERROR(attend_back(ctx, h, segments, in[0], in[1], in[2], in[3], sums[0], sums[1], sums[2]));
    for (size_t k = 0; k < 3; ++k) OAR_RETURN_IF_ERROR(round_sums(ctx, sums[k], out[k]));
  }
  for (size_t k = 0; k < 3; ++k) ctx.set(k, std::move(out[k]));
  return true;
}

Result<std::vector<TensorType>> types_of(const Graph& g, std::span<const ValueId> in, const Attrs& attrs,
                                         size_t results) {
  std::vector<TensorType> out;
  for (size_t k = 0; k < results; ++k) out.push_back({result_format(attrs, k), g.value(in[k]).type.shape});
  return out;
}
Result<std::vector<TensorType>> back_types(const Graph& g, std::span<const ValueId> in, const Attrs& attrs) {
  return types_of(g, in, attrs, 3);
}

std::vector<Val> attention_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  std::vector<Val> operands(in.begin(), in.end());
  for (size_t k = 0; k < 3; ++k) operands[k] = definition::real(b, in[k]);
  return rounded_results(b, {b.op("attention", operands, without_rounding(attrs))}, attrs);
}
std::vector<Val> back_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  std::vector<Val> operands(in.begin(), in.begin() + 5);
  if (in.size() > 6) operands.push_back(in[6]);
  const Val dy[] = {definition::real(b, in[5])};
  return rounded_results(b, derived_gradient(b, attention_define, operands, without_rounding(attrs), dy, 3),
                         attrs);
}

std::vector<Val> of_sinks(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  return {b.op("attention", {in[1], in[2], in[3], in[4], in[5], in[0]}, attrs)};
}

std::vector<Val> attention_vjp(const Pullback& p) {
  std::vector<Val> in(p.in.begin(), p.in.begin() + 5);
  in.push_back(p.d[0]);
  if (p.in.size() > 5) in.push_back(p.in[5]);
  std::vector<Val> out = emit(p.b, op_segment_attention_back, in, without_rounding(p.attrs));
  out.resize(p.in.size());
  if (p.in.size() > 5 && p.wanted[5]) {  // by the definition: adapters leave sinks as they are
    std::vector<Val> first{p.in[5]};
    first.insert(first.end(), p.in.begin(), p.in.begin() + 5);
    out[5] = derived_gradient(p.b, of_sinks, first, without_rounding(p.attrs), p.d, 1)[0];
  }
  return out;
}

Result<std::vector<TensorType>> q_type(const Graph& g, std::span<const ValueId> in, const Attrs& attrs) {
  return types_of(g, in, attrs, 1);
}

}  // namespace

const OpDef op_segment_attention = {.name = "segment_attention",
                                    .infer = q_type,
                                    .define = attention_define,
                                    .vjp = attention_vjp,
                                    .by_kernels = attention_by_kernels};
const OpDef op_segment_attention_back = {.name = "segment_attention_back",
                                         .infer = back_types,
                                         .define = back_define,
                                         .by_kernels = attention_back_by_kernels};

}  // namespace oar::train
