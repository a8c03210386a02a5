// Attention of ordinary models, whatever file and layout it comes from (language models that are served page
// by page: engine/ops/attention.cc).
//
//   head_attention(q, k, v, mask?, past_k?, past_v?, lengths?, total?) -> y, present_k, present_v, scores
//
// y = softmax(cap(q k^T scale) + mask) v for each head, over the keys that a query may see. Query head h
// reads key and value head h / (heads / key heads).
//
// layout    q, k and v each (B, S, heads D), with q_num_heads and kv_num_heads; or (B, heads, S, D); or, with
//           layout "bshd", (B, S, heads, D). y lies as q does, pasts and presents are (B, heads, S, D).
// scale     0 or none: 1 / sqrt D (with `spelled`: as given)
// softcap   cap(s) = softcap tanh(s / softcap), where it is positive
// seen      is_causal: no key behind the query's position; left_window_size, right_window_size: no key
//           farther than that, -1 is any. Ranges are compared, never expanded to a mask.
// mask      added to the scores, or bool: whether a key is seen. Broadcasts to (B, heads, S, T); one with
//           fewer columns than there are keys hides the rest.
// past      keys and values in front of k and v; present is both. A query's position counts from the first.
// lengths   i-th entry: only so many keys are there, padding follows. Without a past queries are the last of
//           them. With `ragged` set: past and new ones together, and new rows lie right behind the past of
//           their own entry; present has room for `total`, or as much as past had. S = total: no past yet.
// spelled   set by fuse_attention for what a softmax in primitives does: batches and heads of one serve all,
//           so does one column of a mask, and a query without any key is NaN, which else attends nothing.
// scores    what qk_matmul_output_mode names: 0 the product, 1 behind the cap, 2 masked, 3 the softmax.
//
// f32, f16 and bf16 (through f32) run in blocks of queries and keys: products by the convolution kernel, a
// softmax of the visible part of each row. Scores take the memory of a block. What a query gets depends on
// itself and the keys it sees, not on how many others there are: sums run over keys in ascending order, in
// blocks that begin at multiples of kKeys. Operands of other dtypes and calls that want `scores` are computed
// in double by plain loops, which is also the definition.
#include "engine/ops/tensor/kernel_call.h"

namespace oar::tensor {
namespace {

constexpr int64_t kQueries = 64, kKeys = 128;
// Up to so many rows of queries, all heads of a group together, keys are read where they lie; if there are
// many times as many keys, which packing would move once more.
constexpr int64_t kFew = 16, kManyKeys = 8;

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// An operand seen as (B, H, S, D): elements from one entry, head and row to the next.
struct Side {
  int64_t B = 0, H = 0, S = 0, D = 0;
  int64_t batch = 0, head = 0, row = 0;
  int64_t at(int64_t b, int64_t h, int64_t s) const { return b * batch + h * head + s * row; }
};
Side heads_first(int64_t B, int64_t H, int64_t S, int64_t D) { return {B, H, S, D, H * S * D, S * D, D}; }
Side heads_last(int64_t B, int64_t H, int64_t S, int64_t D) { return {B, H, S, D, S * H * D, D, H * D}; }

Result<Side> side_of(const Tensor& t, int64_t count, bool bshd) {
  const Shape& s = t.shape();
  if (!dtype_is_float(dtype_of(t)) || (s.rank() != 3 && s.rank() != 4))
    return invalid_argument("query, key and value must be floats of 3 or 4 axes");
  if (s.rank() == 4) return bshd ? heads_last(s[0], s[2], s[1], s[3]) : heads_first(s[0], s[1], s[2], s[3]);
  if (count < 1 || s[2] % count != 0)
    return invalid_argument("the number of heads does not divide the width");
  return heads_last(s[0], count, s[1], s[2] / count);
}

struct Range {
  int64_t from = 0, to = 0;
};

// One call: operands and what is asked, all sizes checked.
struct Call {
  Tensor q_tensor, k_tensor, v_tensor;  // keys and values behind their past
  Tensor mask;                          // f32; or:
  std::vector<double> bias;
  Side q, k, v, y;
  int64_t B = 0, H = 0, K = 0, S = 0, L = 0;  // K: heads of keys; L: keys
  int64_t D = 0, DV = 0;
  int64_t mask_batch = 0, mask_head = 0, mask_row = 0;  // steps; 0 where one serves all
  bool causal = false, spelled = false;
  int64_t left = -1, right = -1;
  double scale = 1, cap = 0;
  std::vector<int64_t> limit, offset;  // by entry: keys there are, position of the first query

  bool by_range() const { return causal || left >= 0 || right >= 0; }
  // Keys that query i of entry b may see; ends never fall as i rises.
  Range seen(int64_t b, int64_t i) const {
    const int64_t at = i + offset[static_cast<size_t>(b)];
    Range r{0, limit[static_cast<size_t>(b)]};
    if (causal) r.to = std::min(r.to, at + 1);
    if (right >= 0) r.to = std::min(r.to, at + right + 1);
    if (left >= 0) r.from = std::max<int64_t>(0, at - left);
    r.to = std::max<int64_t>(r.to, 0);
    r.from = std::min(r.from, r.to);
    return r;
  }
  int64_t mask_at(int64_t b, int64_t h, int64_t i) const {
    return b * mask_batch + h * mask_head + i * mask_row;
  }
};

// Keys or values behind those of the past: (B, K, L, D). The past's own memory where that may be.
Result<Tensor> with_past(const EvalContext& ctx, size_t operand, const Tensor& fresh, const Side& f,
                         std::span<const int64_t> filled, std::span<const int64_t> there, int64_t L) {
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{f.B, f.H, L, f.D}));
  Tensor past;
  if (ctx.has(operand)) {
    OAR_ASSIGN(past, ctx.tensor(operand));
    OAR_RETURN_IF_ERROR(check_same_dtype(past, fresh));
  }
  Tensor y;
  if (past.defined()) {
    OAR_ASSIGN(y, ctx.allocate_over(operand, past, shape, dtype_of(fresh)));
  } else {
    OAR_ASSIGN(y, ctx.allocate(shape, dtype_of(fresh)));
  }
  const int64_t width = fresh.format().block_bytes(), row = f.D * width;
  const int64_t rows = past.defined() ? past.shape()[2] : 0;
  const bool own = past.defined() && past.data() == y.data();
  const auto* old = past.defined() ? elements<std::byte>(past) : nullptr;
  const auto* from = elements<std::byte>(fresh);
  auto* to = mutable_elements<std::byte>(y);
  ctx.parallel(f.B * f.H, 0.05 * static_cast<double>(L * row), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t b = u / f.H, h = u % f.H, at = filled[static_cast<size_t>(b)];
      const int64_t n = std::clamp<int64_t>(there[static_cast<size_t>(b)] - at, 0, f.S);
      std::byte* out = to + u * L * row;
      if (!own && at > 0) std::memcpy(out, old + u * rows * row, static_cast<size_t>(at * row));
      for (int64_t s = 0; s < n && row > 0; ++s)
        std::memcpy(out + (at + s) * row, from + f.at(b, h, s) * width, static_cast<size_t>(row));
      if (!own && row > 0 && L > at + n)
        std::memset(out + (at + n) * row, 0, static_cast<size_t>((L - at - n) * row));
    }
  });
  return y;
}

// The mask, to be added: for kernels as f32, else as doubles.
Status take_mask(const EvalContext& ctx, bool kernels, Call& c) {
  OAR_ASSIGN(Tensor mask, ctx.tensor(3));
  OAR_RETURN_IF_ERROR(check_number(mask));
  if (mask.shape().rank() > 4 || mask.shape().rank() < 1) return invalid_argument("the mask has 1 to 4 axes");
  std::vector<int64_t> dims(static_cast<size_t>(4 - mask.shape().rank()), 1);
  dims.insert(dims.end(), mask.shape().begin(), mask.shape().end());
  const int64_t full[] = {c.B, c.H, c.S};
  for (size_t k = 0; k < 3; ++k) {
    if (dims[k] != full[k] && dims[k] != 1)
      return invalid_argument(
          cat("the mask ", mask.shape().to_string(), " does not broadcast to the scores"));
  }
  const bool one = c.spelled && dims[3] == 1 && c.L != 1;  // for all keys
  if (dims[3] > c.L || (c.spelled && dims[3] < c.L && !one))
    return invalid_argument(cat("the mask ", mask.shape().to_string(), " does not fit ", c.L, " keys"));
  const int64_t columns = one ? c.L : dims[3], rows = dims[0] * dims[1] * dims[2];
  c.mask_row = dims[2] == 1 ? 0 : columns;
  c.mask_head = dims[1] == 1 ? 0 : dims[2] * columns;
  c.mask_batch = dims[0] == 1 ? 0 : dims[1] * dims[2] * columns;
  for (int64_t& n : c.limit) n = std::min(n, columns);
  const bool seen = dtype_of(mask) == DType::kBool;
  if (!kernels) {
    if (ctx.options().sizing) return ok_status();
    for (double m : to_doubles(mask)) {
      if (seen) m = m != 0 ? 0 : -INFINITY;
      c.bias.insert(c.bias.end(), one ? static_cast<size_t>(columns) : 1, m);
    }
    return ok_status();
  }
  if (!seen) { OAR_ASSIGN(mask, as_f32(ctx, mask)); }
  if (seen || one) {
    OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{rows, columns}));
    OAR_ASSIGN(Tensor made, ctx.allocate(shape, DType::kF32));
    float* to = mutable_elements<float>(made);
    ctx.parallel(rows * columns, 1.0, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t at = one ? k / columns : k;
        to[k] = !seen ? elements<float>(mask)[at] : elements<uint8_t>(mask)[at] != 0 ? 0.f : -INFINITY;
      }
    });
    mask = std::move(made);
  }
  c.mask = std::move(mask);
  return ok_status();
}

// Reads the operands but the mask, and makes the presents.
Result<Call> call_of(EvalContext& ctx) {
  const Attrs& a = ctx.attrs();
  Call c;
  OAR_ASSIGN(c.q_tensor, ctx.tensor(0));
  OAR_ASSIGN(c.k_tensor, ctx.tensor(1));
  OAR_ASSIGN(c.v_tensor, ctx.tensor(2));
  const std::string layout = a.get_string("layout");
  if (!layout.empty() && layout != "bshd") return invalid_argument(cat("unknown layout '", layout, "'"));
  const bool bshd = layout == "bshd", ragged = a.get_int("ragged") != 0;
  OAR_ASSIGN(c.q, side_of(c.q_tensor, a.get_int("q_num_heads"), bshd));
  OAR_ASSIGN(c.k, side_of(c.k_tensor, a.get_int("kv_num_heads"), bshd));
  OAR_ASSIGN(c.v, side_of(c.v_tensor, a.get_int("kv_num_heads"), bshd));
  c.spelled = a.get_int("spelled") != 0;
  c.B = c.q.B, c.H = c.q.H, c.K = c.k.H, c.S = c.q.S, c.D = c.q.D, c.DV = c.v.D;
  if (c.spelled) {
    c.B = std::max({c.q.B, c.k.B, c.v.B}), c.H = c.K = std::max({c.q.H, c.k.H, c.v.H});
    for (Side* s : {&c.q, &c.k, &c.v}) {
      if (s->B == 1) s->B = c.B, s->batch = 0;
      if (s->H == 1) s->H = c.H, s->head = 0;
    }
  }
  if (c.q.B != c.B || c.k.B != c.B || c.v.B != c.B || c.q.H != c.H || c.k.H != c.K || c.v.H != c.K ||
      c.k.S != c.v.S || c.k.D != c.D || c.K < 1 || c.H % c.K != 0) {
    return invalid_argument(cat("heads ", c.q_tensor.shape().to_string(), ", ",
                                c.k_tensor.shape().to_string(), " and ", c.v_tensor.shape().to_string(),
                                " do not match"));
  }
  c.causal = a.get_int("is_causal") != 0;
  constexpr int64_t kFar = int64_t{1} << 48;  // farther than any key, and sums of it overflow nothing
  c.left = std::min(a.get_int("left_window_size", -1), kFar);
  c.right = std::min(a.get_int("right_window_size", -1), kFar);
  c.cap = std::max(0.0, a.get_float("softcap", 0));
  c.scale = a.get_float("scale", 0);
  if (c.scale == 0 && !c.spelled) c.scale = 1 / std::sqrt(static_cast<double>(c.D));

  // Where new keys go, and how many there are then.
  if (ctx.has(4) != ctx.has(5)) return invalid_argument("past key and value come together");
  int64_t past = 0;
  for (size_t i = 4; ctx.has(4) && i < 6; ++i) {
    OAR_ASSIGN(const Tensor t, ctx.tensor(i));
    const Side& f = i == 4 ? c.k : c.v;
    if (i == 4 && t.shape().rank() == 4) past = t.shape()[2];
    if (!(t.shape() == Shape({f.B, f.H, past, f.D})))
      return invalid_argument(cat("the past ", t.shape().to_string(), " does not match"));
  }
  c.L = past + c.k.S;
  bool first = false;
  if (ragged) {
    if (!ctx.has(6)) return invalid_argument("`ragged` needs lengths");
    OAR_ASSIGN(const int64_t total, ctx.scalar_int(7));
    first = total == c.k.S;
    c.L = std::max(past, total);
    if (total < c.k.S) return invalid_argument(cat("a total of ", total, " for ", c.k.S, " new keys"));
  }
  const auto B = static_cast<size_t>(c.B);
  std::vector<int64_t> filled(B, ragged ? 0 : past);
  c.limit.assign(B, c.L), c.offset.assign(B, past);
  if (ctx.has(6)) {
    OAR_ASSIGN(const Tensor lengths, ctx.tensor(6));
    if (!dtype_is_integer(dtype_of(lengths)) || lengths.numel() != c.B)
      return invalid_argument("one length per batch entry is needed");
    for (size_t b = 0; b < B && !ctx.options().sizing; ++b) {
      const int64_t n = std::clamp(element_as_int(lengths, static_cast<int64_t>(b)), -kFar, kFar);
      c.limit[b] = std::clamp<int64_t>(n, 0, c.L);
      if (ragged) {
        filled[b] = c.offset[b] = first ? 0 : n - c.k.S;
        if (n < 0 || n > c.L || filled[b] < 0 || filled[b] > past || filled[b] + c.k.S > c.L) {
          return invalid_argument(
              cat("a length of ", n, " for ", c.k.S, " new keys, a past of ", past, " and room for ", c.L));
        }
      } else if (!ctx.has(4)) {
        c.offset[b] = n - c.S;
      }
    }
  }
  if (ctx.has(4) || ragged || ctx.wants(1)) {
    const std::vector<int64_t> there = ragged ? c.limit : std::vector<int64_t>(B, c.L);
    OAR_ASSIGN(c.k_tensor, with_past(ctx, 4, c.k_tensor, c.k, filled, there, c.L));
    OAR_ASSIGN(c.v_tensor, with_past(ctx, 5, c.v_tensor, c.v, filled, there, c.L));
    c.k = heads_first(c.B, c.K, c.L, c.D), c.v = heads_first(c.B, c.K, c.L, c.DV);
    if (ctx.wants(1)) ctx.set(1, c.k_tensor);
    if (ctx.wants(2)) ctx.set(2, c.v_tensor);
  }
  const bool last = c.q_tensor.shape().rank() == 3 || bshd;
  c.y = last ? heads_last(c.B, c.H, c.S, c.DV) : heads_first(c.B, c.H, c.S, c.DV);
  return c;
}

Result<Shape> result_shape(const Call& c) {
  if (c.q_tensor.shape().rank() == 3) return checked_shape(std::vector<int64_t>{c.B, c.S, c.H * c.DV});
  if (c.y.row != c.DV) return checked_shape(std::vector<int64_t>{c.B, c.S, c.H, c.DV});
  return checked_shape(std::vector<int64_t>{c.B, c.H, c.S, c.DV});
}

// --- in blocks, by kernels ---

// One worker's part of a call: rows of one entry and one head of keys.
class Blocks {
 public:
  // Floats of scratch that any part of the call takes.
  static int64_t scratch_floats(const Call& c, int64_t width, bool few) {
    const int64_t rows = few ? c.H / c.K * c.S : std::min(c.S, kQueries);
    const int64_t values = up(c.DV, width) * (few ? kKeys : up(c.L, kKeys));
    const int64_t queries = rows * c.D,
                  keys = few ? up(rows, width) * c.D + rows * c.L : up(c.L, width) * c.D;
    return values + queries + keys + rows * c.L;
  }
  Blocks(const Backend& backend, const Call& c, bool few, float* out, float* scratch, OneThread& thread)
      : c_(c),
        product_(f32_kernel(backend, KernelFamily::kConv)),
        softmax_(f32_kernel(backend, KernelFamily::kSoftmax)),
        width_(panel_width(product_.isa)),
        few_(few),
        out_(out),
        thread_(thread) {
    const int64_t rows = few ? c.H / c.K * c.S : std::min(c.S, kQueries);
    values_ = scratch;
    queries_ = values_ + up(c.DV, width_) * (few ? kKeys : up(c.L, kKeys));
    scores_ = queries_ + rows * c.D;
    keys_ =
        scores_ + rows * c.L;  // packed keys or, where few queries are the filters, these and the products
  }

  // Queries [from, to) of all heads that read head g of entry b.
  void run(int64_t b, int64_t g, int64_t from, int64_t to) {
    b_ = b, group_ = g;
    k_ = elements<float>(c_.k_tensor) + c_.k.at(b, g, 0),
    v_ = elements<float>(c_.v_tensor) + c_.v.at(b, g, 0);
    const int64_t heads = c_.H / c_.K, first = g * heads;
    if (few_) return few_rows(first, heads);
    const Range all = block_of(from, to);
    if (all.to > all.from) {
      pack_filters(keys_, k_ + all.from * c_.k.row, all.to - all.from, 1, 1, c_.D, c_.k.row, 1, 0, width_);
      for (int64_t at = all.from; at < all.to; at += kKeys) pack_values(at, values_of(at, all.from));
    }
    for (int64_t i = from; i < to; i += kQueries) {
      const int64_t end = std::min(to, i + kQueries);
      for (int64_t h = first; h < first + heads; ++h) rows_of(h, i, end, all.from);
    }
  }

 private:
  // Blocks of keys that queries [from, to) see.
  Range block_of(int64_t from, int64_t to) const {
    Range r{c_.seen(b_, from).from, c_.seen(b_, to - 1).to};
    r.from = r.from / kKeys * kKeys;
    r.to = std::min(up(r.to, kKeys), c_.limit[static_cast<size_t>(b_)]);
    return r;
  }
  int64_t block_rows(int64_t at) const { return std::min(kKeys, c_.limit[static_cast<size_t>(b_)] - at); }
  float* values_of(int64_t at, int64_t first) const { return values_ + (at - first) * up(c_.DV, width_); }
  void pack_values(int64_t at, float* to) const {
    pack_filters(to, v_ + at * c_.v.row, c_.DV, 1, 1, block_rows(at), 1, c_.v.row, 0, width_);
  }
  const float* query(int64_t h, int64_t i) const { return elements<float>(c_.q_tensor) + c_.q.at(b_, h, i); }
  void copy_query(int64_t h, int64_t i, float* to) const {
    const float* from = query(h, i);
    if (c_.cap == 0) std::memcpy(to, from, static_cast<size_t>(c_.D) * sizeof(float));
    else scale_and_shift(from, to, c_.D, static_cast<float>(c_.scale / c_.cap), 0);
  }

  ConvArgs product(const float* x, int64_t ldx, int64_t rows, int64_t C, const float* w, int64_t M,
                   float* out, int64_t ldo) const {
    ConvArgs a;
    a.window.N = a.window.H = a.window.OH = 1;
    a.window.W = a.window.OW = rows;
    a.panel = width_;
    a.x = x, a.ldx = ldx, a.C = C, a.w = w, a.M = M, a.out = out, a.ldo = ldo;
    return a;
  }
  void capped(ConvArgs& a) const {
    if (c_.cap > 0) a.epilogue = Epilogue::kTanh;
  }

  // Queries [from, to) of head h.
  void rows_of(int64_t h, int64_t from, int64_t to, int64_t packed_from) {
    const Range block = block_of(from, to);
    const int64_t n = block.to - block.from;
    float* y = out_ + c_.y.at(b_, h, from);
    if (n <= 0) {
      for (int64_t i = 0; i < to - from; ++i) std::fill_n(y + i * c_.y.row, c_.DV, 0.f);
      return;
    }
    const float* q = query(h, from);
    int64_t ldq = c_.q.row;
    if (c_.cap > 0) {
      for (int64_t i = from; i < to; ++i) copy_query(h, i, queries_ + (i - from) * c_.D);
      q = queries_, ldq = c_.D;
    }
    ConvArgs a = product(q, ldq, to - from, c_.D, keys_ + (block.from - packed_from) * c_.D, n, scores_, n);
    capped(a);
    thread_.run(product_, &a);
    soften(h, from, to, block, scores_);
    for (int64_t at = block.from; at < block.to; at += kKeys) {
      a = product(scores_ + (at - block.from), n, to - from, block_rows(at), values_of(at, packed_from),
                  c_.DV, y, c_.y.row);
      if (at > block.from) a.residual = y;
      thread_.run(product_, &a);
    }
  }

  // All queries of `heads` heads from `first` on. Keys are the rows of the first product and queries its
  // filters, so that keys are read once and not packed; each sum has the same terms in the same order.
  void few_rows(int64_t first, int64_t heads) {
    const int64_t S = c_.S, rows = heads * S;
    const Range block = block_of(0, S);
    const int64_t n = block.to - block.from;
    float* y = out_ + c_.y.at(b_, first, 0);
    if (n <= 0) {
      for (int64_t r = 0; r < rows; ++r) std::fill_n(y + r / S * c_.y.head + r % S * c_.y.row, c_.DV, 0.f);
      return;
    }
    for (int64_t r = 0; r < rows; ++r) copy_query(first + r / S, r % S, queries_ + r * c_.D);
    float *filters = keys_, *turned = keys_ + up(rows, width_) * c_.D;
    pack_filters(filters, queries_, rows, 1, 1, c_.D, c_.D, 1, 0, width_);
    ConvArgs a = product(k_ + block.from * c_.k.row, c_.k.row, n, c_.D, filters, rows, turned, rows);
    capped(a);
    thread_.run(product_, &a);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; ++j) scores_[r * n + j] = turned[j * rows + r];
    }
    for (int64_t h = 0; h < heads; ++h) soften(first + h, 0, S, block, scores_ + h * S * n);
    for (int64_t at = block.from; at < block.to; at += kKeys) {
      pack_values(at, values_);
      a = product(scores_ + (at - block.from), n, rows, block_rows(at), values_, c_.DV, y, c_.y.row);
      a.window.H = a.window.OH = heads, a.window.W = a.window.OW = S;
      a.out_row = c_.y.head;
      if (at > block.from) a.residual = y;
      thread_.run(product_, &a);
    }
  }

  // Weights of queries [from, to) of head h from their scores over the keys of `block`, in place.
  void soften(int64_t h, int64_t from, int64_t to, Range block, float* scores) {
    const int64_t n = block.to - block.from;
    const float* mask = c_.mask.defined() ? elements<float>(c_.mask) + c_.mask_at(b_, h, from) : nullptr;
    SoftmaxArgs s;
    s.scale = static_cast<float>(c_.cap > 0 ? c_.cap : c_.scale);
    s.mask_row = c_.mask_row;
    if (!c_.by_range()) {
      s.out = scores, s.x = scores, s.mask = mask, s.rows = to - from, s.n = n;
      thread_.run(softmax_, &s);
    }
    for (int64_t i = from; i < to; ++i) {
      const Range r = c_.seen(b_, i);
      float* row = scores + (i - from) * n;
      const float* own = mask != nullptr ? mask + (i - from) * c_.mask_row + r.from : nullptr;
      const bool any =
          r.to > r.from && (own == nullptr || c_.spelled ||
                            std::any_of(own, own + (r.to - r.from), [](float m) { return m != -INFINITY; }));
      if (!any) {
        std::fill_n(row, n, 0.f);
      } else if (c_.by_range()) {
        s.out = row + (r.from - block.from), s.x = s.out, s.mask = own, s.rows = 1, s.n = r.to - r.from;
        thread_.run(softmax_, &s);
        std::fill(row, row + (r.from - block.from), 0.f);
        std::fill(row + (r.to - block.from), row + n, 0.f);
      }
    }
  }

  const Call& c_;
  const Kernel &product_, &softmax_;
  const int64_t width_;
  const bool few_;
  float* const out_;
  OneThread& thread_;
  float *values_, *queries_, *scores_, *keys_;
  int64_t b_ = 0, group_ = 0;
  const float *k_ = nullptr, *v_ = nullptr;
};

Status by_kernels(EvalContext& ctx, Call& c) {
  const DType dtype = dtype_of(c.q_tensor);
  OAR_ASSIGN(const Shape shape, result_shape(c));
  for (Tensor* t : {&c.q_tensor, &c.k_tensor, &c.v_tensor}) { OAR_ASSIGN(*t, as_f32(ctx, *t)); }
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  if (y.numel() > 0) {
    const int64_t workers = ctx.backend().workers(), heads = c.B * c.K, group = c.H / c.K;
    const bool few = group * c.S <= kFew && c.L >= kManyKeys * group * c.S;
    // Parts of the queries of a head where there are fewer heads than workers want.
    const int64_t blocks = (c.S + kQueries - 1) / kQueries;
    const int64_t parts = few ? 1 : std::clamp<int64_t>((2 * workers + heads - 1) / heads, 1, blocks);
    const int64_t units = heads * parts, slices = std::min(units, workers * 4);
    const int64_t floats = Blocks::scratch_floats(c, ctx.backend().filter_panel(), few);
    OAR_ASSIGN(const Shape scratch_shape, checked_shape(std::vector<int64_t>{slices, floats}));
    OAR_ASSIGN(Tensor scratch, ctx.allocate(scratch_shape, DType::kF32));
    const double cost = 0.05 * static_cast<double>(c.S * c.L) * static_cast<double>((c.D + c.DV) * group);
    ctx.parallel(slices, cost * static_cast<double>(heads) / static_cast<double>(slices),
                 [&](int64_t begin, int64_t end) {
                   OneThread thread;
                   for (int64_t slice = begin; slice < end; ++slice) {
                     Blocks part(ctx.backend(), c, few, mutable_elements<float>(y),
                                 mutable_elements<float>(scratch) + slice * floats, thread);
                     for (int64_t u = units * slice / slices; u < units * (slice + 1) / slices; ++u) {
                       const int64_t head = u / parts, p = u % parts;
                       part.run(head / c.K, head % c.K, blocks * p / parts * kQueries,
                                std::min(c.S, blocks * (p + 1) / parts * kQueries));
                     }
                   }
                 });
  }
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return ok_status();
}

// --- in double ---

Status plainly(EvalContext& ctx, const Call& c) {
  OAR_ASSIGN(const Shape shape, result_shape(c));
  const Shape full({c.B, c.H, c.S, c.L});
  OAR_RETURN_IF_ERROR(ctx.check_size(full, DType::kF64));
  const DType dtype = dtype_of(c.q_tensor);
  if (ctx.options().sizing) {
    OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype));
    ctx.set(0, std::move(y));
    if (!ctx.wants(3)) return ok_status();
    OAR_ASSIGN(Tensor scores, ctx.allocate(full, dtype));
    ctx.set(3, std::move(scores));
    return ok_status();
  }
  const std::vector<double> q = to_doubles(c.q_tensor), k = to_doubles(c.k_tensor),
                            v = to_doubles(c.v_tensor);
  const int64_t mode = ctx.attrs().get_int("qk_matmul_output_mode");
  std::vector<double> scores(ctx.wants(3) ? static_cast<size_t>(full.numel()) : 0),
      y(static_cast<size_t>(shape.numel()), 0);
  ctx.parallel(c.B * c.H * c.S, static_cast<double>(c.L * (c.D + c.DV)), [&](int64_t begin, int64_t end) {
    std::vector<double> row(static_cast<size_t>(c.L));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t b = r / (c.H * c.S), h = r / c.S % c.H, i = r % c.S, g = h / (c.H / c.K);
      const Range seen = c.seen(b, i);
      const auto keep = [&](int64_t stage) {
        if (!scores.empty() && mode == stage) std::copy(row.begin(), row.end(), scores.begin() + r * c.L);
      };
      const double* query = q.data() + c.q.at(b, h, i);
      for (int64_t j = 0; j < c.L; ++j) {
        const double* key = k.data() + c.k.at(b, g, j);
        double dot = 0;
        for (int64_t d = 0; d < c.D; ++d) dot += query[d] * key[d];
        row[static_cast<size_t>(j)] = dot * c.scale;
      }
      keep(0);
      if (c.cap > 0) {
        for (double& e : row) e = c.cap * std::tanh(e / c.cap);
      }
      keep(1);
      double top = -INFINITY, sum = 0;
      for (int64_t j = 0; j < c.L; ++j) {
        double& e = row[static_cast<size_t>(j)];
        if (j < seen.from || j >= seen.to) e = -INFINITY;
        else if (!c.bias.empty()) e += c.bias[static_cast<size_t>(c.mask_at(b, h, i) + j)];
        top = std::max(top, e);
      }
      keep(2);
      const bool none = std::isinf(top) && top < 0 && !c.spelled;
      for (double& e : row) e = none ? 0 : std::exp(e - top), sum += e;
      for (double& e : row) e = none ? 0 : e / sum;
      keep(3);
      double* out = y.data() + c.y.at(b, h, i);
      for (int64_t j = 0; j < c.L; ++j) {
        if (row[static_cast<size_t>(j)] == 0) continue;
        const double* value = v.data() + c.v.at(b, g, j);
        for (int64_t d = 0; d < c.DV; ++d) out[d] += row[static_cast<size_t>(j)] * value[d];
      }
    }
  });
  ctx.set(0, from_doubles(ctx, shape, dtype, y));
  if (ctx.wants(3)) ctx.set(3, from_doubles(ctx, full, dtype, scores));
  return ok_status();
}

Status head_attention(EvalContext& ctx) {
  OAR_ASSIGN(Call c, call_of(ctx));
  const DType dtype = dtype_of(c.q_tensor);
  const bool kernels = (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16) &&
                       dtype_of(c.k_tensor) == dtype && dtype_of(c.v_tensor) == dtype && !ctx.wants(3) &&
                       c.L > 0 && c.D > 0;
  if (ctx.has(3)) OAR_RETURN_IF_ERROR(take_mask(ctx, kernels, c));
  return kernels ? by_kernels(ctx, c) : plainly(ctx, c);
}

// padding_mask(mask, k, past_k?) {filter} -> (B, 1, 1 or S, T) of f32 to add: 0, or `filter` for a key that
// is padding. The mask says which those are: lengths (B), ends and then first keys (2 B), or 0 for padding in
// (B, T) or (B, S, T). T counts the keys of the past too, which head_attention's operands k and past_k have.
Status padding_mask(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor mask, ctx.tensor(0));
  OAR_ASSIGN(const Tensor k, ctx.tensor(1));
  const int rank = k.shape().rank(), own = mask.shape().rank();
  if (rank != 3 && rank != 4) return invalid_argument("keys need 3 or 4 axes");
  const int64_t B = k.shape()[0];
  int64_t T = k.shape()[rank == 3 ? 1 : 2];
  if (ctx.has(2)) {
    OAR_ASSIGN(const Tensor past, ctx.tensor(2));
    if (past.shape().rank() != 4) return invalid_argument("past keys need 4 axes");
    T += past.shape()[2];
  }
  const bool ends =
      own == 1 && dtype_is_integer(dtype_of(mask)) && (mask.numel() == B || mask.numel() == 2 * B);
  const bool keys = (own == 2 || own == 3) && mask.shape()[0] == B && mask.shape()[own - 1] == T;
  if (dtype_of(mask) == DType::kString || (!ends && !keys)) {
    return unimplemented(
        cat("a mask ", mask.shape().to_string(), " for ", B, " times ", T,
            " keys: lengths (B), ends and first keys (2 B), (B, T) and (B, S, T) are supported"));
  }
  const int64_t S = own == 3 ? mask.shape()[1] : 1;
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{B, 1, S, T}));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  const auto filter = static_cast<float>(ctx.attrs().get_float("filter", -10000));
  float* to = mutable_elements<float>(y);
  ctx.parallel(B * S, 3.0 * static_cast<double>(T), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t stop = ends ? element_as_int(mask, r) : 0;
      const int64_t start = ends && mask.numel() == 2 * B ? element_as_int(mask, B + r) : 0;
      for (int64_t j = 0; j < T; ++j) {
        const bool seen = ends ? j >= start && j < stop : element_as_double(mask, r * T + j) > 0;
        to[r * T + j] = seen ? 0.f : filter;
      }
    }
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_DEFINED_OP(head_attention, tensor::head_attention);
OAR_DEFINED_OP(padding_mask, tensor::padding_mask);
}  // namespace oar
