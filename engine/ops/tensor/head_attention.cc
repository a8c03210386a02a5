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
// blind_is_zero  beside `spelled`: a query without any key attends nothing all the same.
// scores    what qk_matmul_output_mode names: 0 the product, 1 behind the cap, 2 masked, 3 the softmax.
//
// f32, f16 and bf16 (through f32) are computed by the kernel of dense attention, which lower() calls where
// all is f32 and there is no past. Operands of other dtypes and calls that want `scores` are computed in
// double by plain loops, which is also the definition.
#include "engine/ops/tensor/kernel_call.h"
#include "kernels/attention.h"

namespace oar::tensor {
namespace {

// An operand seen as (B, H, S, D).
struct Side {
  int64_t B = 0, H = 0, S = 0, D = 0;
  AttentionSteps steps;
};
int64_t element(const AttentionSteps& s, int64_t b, int64_t h, int64_t i) {
  return b * s.batch + h * s.head + i * s.row;
}
AttentionSteps heads_first(int64_t H, int64_t S, int64_t D) { return {H * S * D, S * D, D}; }
AttentionSteps heads_last(int64_t H, int64_t S, int64_t D) { return {S * H * D, D, H * D}; }

Result<Side> side_of(const Format& format, const Shape& s, int64_t count, bool bshd) {
  if (!format.plain() || !dtype_is_float(format.dtype()) || (s.rank() != 3 && s.rank() != 4))
    return invalid_argument("query, key and value must be floats of 3 or 4 axes");
  if (s.rank() == 4 && bshd) return Side{s[0], s[2], s[1], s[3], heads_last(s[2], s[1], s[3])};
  if (s.rank() == 4) return Side{s[0], s[1], s[2], s[3], heads_first(s[1], s[2], s[3])};
  if (count < 1 || s[2] % count != 0)
    return invalid_argument("the number of heads does not divide the width");
  return Side{s[0], count, s[1], s[2] / count, heads_last(count, s[1], s[2] / count)};
}

constexpr int64_t kFar = int64_t{1} << 48;  // farther than any key, and sums of it overflow nothing

// What attributes and the operands' shapes say: every size, step and rule; L are the new keys alone.
struct Call {
  DenseAttentionArgs args;
  Side k, v;
  Shape result;
};
Result<Call> call_of(const Attrs& attrs, std::span<const ValueInfo> in) {
  const std::string layout = attrs.get_string("layout");
  if (!layout.empty() && layout != "bshd") return invalid_argument(cat("unknown layout '", layout, "'"));
  const bool bshd = layout == "bshd", spelled = attrs.get_int("spelled") != 0;
  Call c;
  OAR_ASSIGN(Side q, side_of(in[0].format, in[0].shape, attrs.get_int("q_num_heads"), bshd));
  OAR_ASSIGN(c.k, side_of(in[1].format, in[1].shape, attrs.get_int("kv_num_heads"), bshd));
  OAR_ASSIGN(c.v, side_of(in[2].format, in[2].shape, attrs.get_int("kv_num_heads"), bshd));
  DenseAttentionArgs& a = c.args;
  a.B = q.B, a.H = q.H, a.K = c.k.H, a.S = q.S, a.L = c.k.S, a.D = q.D, a.DV = c.v.D;
  if (spelled) {
    a.B = std::max({q.B, c.k.B, c.v.B}), a.H = a.K = std::max({q.H, c.k.H, c.v.H});
    for (Side* s : {&q, &c.k, &c.v}) {
      if (s->B == 1) s->B = a.B, s->steps.batch = 0;
      if (s->H == 1) s->H = a.H, s->steps.head = 0;
    }
  }
  if (q.B != a.B || c.k.B != a.B || c.v.B != a.B || q.H != a.H || c.k.H != a.K || c.v.H != a.K ||
      c.k.S != c.v.S || c.k.D != a.D || a.K < 1 || a.H % a.K != 0) {
    return invalid_argument(cat("heads ", in[0].shape.to_string(), ", ", in[1].shape.to_string(), " and ",
                                in[2].shape.to_string(), " do not match"));
  }
  a.q_steps = q.steps, a.k_steps = c.k.steps, a.v_steps = c.v.steps;
  const bool flat = in[0].shape.rank() == 3;
  a.out_steps = flat || bshd ? heads_last(a.H, a.S, a.DV) : heads_first(a.H, a.S, a.DV);
  OAR_ASSIGN(c.result, checked_shape(flat   ? std::vector<int64_t>{a.B, a.S, a.H * a.DV}
                                     : bshd ? std::vector<int64_t>{a.B, a.S, a.H, a.DV}
                                            : std::vector<int64_t>{a.B, a.H, a.S, a.DV}));
  a.causal = attrs.get_int("is_causal") != 0;
  a.left = std::min(attrs.get_int("left_window_size", -1), kFar);
  a.right = std::min(attrs.get_int("right_window_size", -1), kFar);
  a.softcap = static_cast<float>(std::max(0.0, attrs.get_float("softcap", 0)));
  const double scale = attrs.get_float("scale", 0);
  a.scale = static_cast<float>(scale == 0 && !spelled ? 1 / std::sqrt(static_cast<double>(a.D)) : scale);
  a.blind_is_nan = spelled && attrs.get_int("blind_is_zero") == 0;
  return c;
}

// How a mask lies over all L keys of `a`.
Status take_mask_shape(const Attrs& attrs, const Shape& shape, DenseAttentionArgs& a) {
  if (shape.rank() > 4 || shape.rank() < 1) return invalid_argument("the mask has 1 to 4 axes");
  std::vector<int64_t> dims(static_cast<size_t>(4 - shape.rank()), 1);
  dims.insert(dims.end(), shape.begin(), shape.end());
  const int64_t full[] = {a.B, a.H, a.S};
  for (size_t k = 0; k < 3; ++k) {
    if (dims[k] != full[k] && dims[k] != 1)
      return invalid_argument(cat("the mask ", shape.to_string(), " does not broadcast to the scores"));
  }
  const bool spelled = attrs.get_int("spelled") != 0,
             one = spelled && dims[3] == 1 && a.L != 1;  // for all keys
  if (dims[3] > a.L || (spelled && dims[3] < a.L && !one))
    return invalid_argument(cat("the mask ", shape.to_string(), " does not fit ", a.L, " keys"));
  a.mask_columns = one ? a.L : dims[3];
  a.mask_column = one ? 0 : 1;
  a.mask_steps = {dims[0] == 1 ? 0 : dims[1] * dims[2] * dims[3], dims[1] == 1 ? 0 : dims[2] * dims[3],
                  dims[2] == 1 ? 0 : dims[3]};
  return ok_status();
}

double nanoseconds(const DenseAttentionArgs& a) {
  return 0.05 * static_cast<double>(a.B * a.H * a.S) * static_cast<double>(a.L * (a.D + a.DV));
}

// One kernel where all is f32 and keys lie as they came: no past, no presents, no scores.
Lowered lower_head_attention(LowerContext& ctx) {
  const auto given = [&](size_t k) { return k < ctx.operands.size() && ctx.operands[k].given; };
  for (size_t k = 1; k < ctx.node.outputs.size(); ++k)
    if (ctx.node.outputs[k] != kNoValue) return not_lowered();
  if (given(4) || given(5) || given(7) || !given(0) || !given(1) || !given(2)) return not_lowered();
  for (size_t k = 0; k < 3; ++k)
    if (!is_f32(ctx.operands[k])) return not_lowered();
  auto call = call_of(ctx.node.attrs, ctx.operands);
  if (!call.ok() || ctx.node.attrs.get_int("ragged") != 0) return not_lowered();  // evaluation says why
  DenseAttentionArgs a = call->args;
  if (given(3)) {
    const ValueInfo& mask = ctx.operands[3];
    a.mask_bool = mask.format == Format::of(DType::kBool);
    if ((!a.mask_bool && !is_f32(mask)) || !take_mask_shape(ctx.node.attrs, mask.shape, a).ok())
      return not_lowered();
  }
  if (given(6)) {
    const ValueInfo& lengths = ctx.operands[6];
    a.wide_lengths = lengths.format == Format::of(DType::kI64);
    if ((!a.wide_lengths && lengths.format != Format::of(DType::kI32)) || lengths.shape.numel() != a.B)
      return not_lowered();
    a.last = 1;
  }
  if (call->result.numel() == 0 || a.L == 0 || a.D == 0) return not_lowered();
  return lowered_call(ctx, KernelFamily::kDenseAttention, a, call->result, nanoseconds(a), 0,
                      [](DenseAttentionArgs& args, const Operand* in, const Operand* out) {
                        args.q = in[0].as<const float>(), args.k = in[1].as<const float>();
                        args.v = in[2].as<const float>(), args.out = out[0].as<float>();
                        if (args.mask_columns > 0) args.mask = in[3].data;
                        if (args.last) args.lengths = in[6].data;
                      });
}

// --- evaluation ---

struct Operands {
  Tensor q, k, v;  // keys and values behind their past
  Tensor mask;
  std::vector<int64_t> lengths;
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
        std::memcpy(out + (at + s) * row, from + element(f.steps, b, h, s) * width, static_cast<size_t>(row));
      if (!own && row > 0 && L > at + n)
        std::memset(out + (at + n) * row, 0, static_cast<size_t>((L - at - n) * row));
    }
  });
  return y;
}

Status take_mask(const EvalContext& ctx, DenseAttentionArgs& a, Operands& o) {
  OAR_ASSIGN(o.mask, ctx.tensor(3));
  OAR_RETURN_IF_ERROR(check_number(o.mask));
  a.mask_bool = dtype_of(o.mask) == DType::kBool;
  return take_mask_shape(ctx.attrs(), o.mask.shape(), a);
}

// Where new keys go, and how many there are then; makes the presents.
Status take_past(EvalContext& ctx, Call& c, Operands& o) {
  DenseAttentionArgs& a = c.args;
  const bool ragged = ctx.attrs().get_int("ragged") != 0;
  if (ctx.has(4) != ctx.has(5)) return invalid_argument("past key and value come together");
  int64_t past = 0;
  for (size_t i = 4; ctx.has(4) && i < 6; ++i) {
    OAR_ASSIGN(const Tensor t, ctx.tensor(i));
    const Side& f = i == 4 ? c.k : c.v;
    if (i == 4 && t.shape().rank() == 4) past = t.shape()[2];
    if (!(t.shape() == Shape({f.B, f.H, past, f.D})))
      return invalid_argument(cat("the past ", t.shape().to_string(), " does not match"));
  }
  const int64_t fresh = c.k.S;
  a.L = past + fresh;
  bool first = false;
  if (ragged) {
    if (!ctx.has(6)) return invalid_argument("`ragged` needs lengths");
    if (a.S != fresh) return invalid_argument("`ragged` needs as many queries as new keys");
    OAR_ASSIGN(const int64_t total, ctx.scalar_int(7));
    first = total == fresh;
    a.L = std::max(past, total);
    if (total < fresh) return invalid_argument(cat("a total of ", total, " for ", fresh, " new keys"));
  }
  const auto B = static_cast<size_t>(a.B);
  std::vector<int64_t> filled(B, ragged ? 0 : past), there(B, a.L);
  a.offset = ragged ? 0 : past;
  a.last = ctx.has(6) && (ragged ? !first : !ctx.has(4));
  if (ctx.has(6)) {
    OAR_ASSIGN(const Tensor lengths, ctx.tensor(6));
    if (!dtype_is_integer(dtype_of(lengths)) || lengths.numel() != a.B)
      return invalid_argument("one length per batch entry is needed");
    o.lengths.assign(B, a.L);
    for (size_t b = 0; b < B && !ctx.options().sizing; ++b) {
      const int64_t n = std::clamp(element_as_int(lengths, static_cast<int64_t>(b)), -kFar, kFar);
      o.lengths[b] = n;
      if (!ragged) continue;
      there[b] = std::clamp<int64_t>(n, 0, a.L);
      filled[b] = first ? 0 : n - fresh;
      if (n < 0 || n > a.L || filled[b] < 0 || filled[b] > past || filled[b] + fresh > a.L) {
        return invalid_argument(
            cat("a length of ", n, " for ", fresh, " new keys, a past of ", past, " and room for ", a.L));
      }
    }
    a.lengths = o.lengths.data(), a.wide_lengths = 1;
  }
  if (ctx.has(4) || ragged || ctx.wants(1)) {
    OAR_ASSIGN(o.k, with_past(ctx, 4, o.k, c.k, filled, there, a.L));
    OAR_ASSIGN(o.v, with_past(ctx, 5, o.v, c.v, filled, there, a.L));
    a.k_steps = heads_first(a.K, a.L, a.D), a.v_steps = heads_first(a.K, a.L, a.DV);
    if (ctx.wants(1)) ctx.set(1, o.k);
    if (ctx.wants(2)) ctx.set(2, o.v);
  }
  return ok_status();
}

Result<Call> take_operands(const EvalContext& ctx, Operands& o) {
  OAR_ASSIGN(o.q, ctx.tensor(0));
  OAR_ASSIGN(o.k, ctx.tensor(1));
  OAR_ASSIGN(o.v, ctx.tensor(2));
  const ValueInfo operands[] = {{o.q.format(), o.q.shape(), true},
                                {o.k.format(), o.k.shape(), true},
                                {o.v.format(), o.v.shape(), true}};
  return call_of(ctx.attrs(), operands);
}

// With keys of the past, and 16-bit floats by way of f32.
Result<bool> attention_by_kernel(KernelContext& ctx) {
  Operands o;
  OAR_ASSIGN(Call c, take_operands(ctx, o));
  DenseAttentionArgs& a = c.args;
  const DType dtype = dtype_of(o.q);
  if ((dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) || dtype_of(o.k) != dtype ||
      dtype_of(o.v) != dtype || ctx.wants(3) || a.L == 0 || a.D == 0)
    return false;
  OAR_RETURN_IF_ERROR(take_past(ctx, c, o));
  if (ctx.has(3)) {
    OAR_RETURN_IF_ERROR(take_mask(ctx, a, o));
    if (!a.mask_bool) { OAR_ASSIGN(o.mask, as_f32(ctx, o.mask)); }
  }
  for (Tensor* t : {&o.q, &o.k, &o.v}) { OAR_ASSIGN(*t, as_f32(ctx, *t)); }
  OAR_ASSIGN(Tensor y, ctx.allocate(c.result, DType::kF32));
  if (y.numel() > 0) {
    a.q = elements<float>(o.q), a.k = elements<float>(o.k), a.v = elements<float>(o.v);
    a.mask = o.mask.defined() ? o.mask.data() : nullptr;
    a.out = mutable_elements<float>(y);
    OAR_RETURN_IF_ERROR(
        run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kDenseAttention), &a, nanoseconds(a)));
  }
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return true;
}

// In double.
Status head_attention(EvalContext& ctx) {
  Operands o;
  OAR_ASSIGN(Call c, take_operands(ctx, o));
  DenseAttentionArgs& a = c.args;
  OAR_RETURN_IF_ERROR(take_past(ctx, c, o));
  std::vector<double> added;  // the mask
  if (ctx.has(3)) {
    OAR_RETURN_IF_ERROR(take_mask(ctx, a, o));
    if (!ctx.options().sizing) added = to_doubles(o.mask);
    for (double& m : added) m = !a.mask_bool ? m : m != 0 ? 0 : -INFINITY;
  }
  const Shape full({a.B, a.H, a.S, a.L});
  OAR_RETURN_IF_ERROR(ctx.check_size(full, DType::kF64));
  const DType dtype = dtype_of(o.q);
  if (ctx.options().sizing) {
    OAR_ASSIGN(Tensor y, ctx.allocate(c.result, dtype));
    ctx.set(0, std::move(y));
    if (!ctx.wants(3)) return ok_status();
    OAR_ASSIGN(Tensor scores, ctx.allocate(full, dtype));
    ctx.set(3, std::move(scores));
    return ok_status();
  }
  const Attrs& attrs = ctx.attrs();
  double scale = attrs.get_float("scale", 0);
  if (scale == 0 && attrs.get_int("spelled") == 0) scale = 1 / std::sqrt(static_cast<double>(a.D));
  const double cap = std::max(0.0, attrs.get_float("softcap", 0));
  const std::vector<double> q = to_doubles(o.q), k = to_doubles(o.k), v = to_doubles(o.v);
  const int64_t mode = attrs.get_int("qk_matmul_output_mode");
  std::vector<double> scores(ctx.wants(3) ? static_cast<size_t>(full.numel()) : 0),
      y(static_cast<size_t>(c.result.numel()), 0);
  a.mask = o.mask.defined() ? o.mask.data() : nullptr;  // seen_keys() looks at whether there is one
  ctx.parallel(a.B * a.H * a.S, static_cast<double>(a.L * (a.D + a.DV)), [&](int64_t begin, int64_t end) {
    std::vector<double> row(static_cast<size_t>(a.L));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t b = r / (a.H * a.S), h = r / a.S % a.H, i = r % a.S, g = h / (a.H / a.K);
      const KeyRange seen = seen_keys(a, b, i);
      const auto keep = [&](int64_t stage) {
        if (!scores.empty() && mode == stage) std::copy(row.begin(), row.end(), scores.begin() + r * a.L);
      };
      const double* query = q.data() + element(a.q_steps, b, h, i);
      for (int64_t j = 0; j < a.L; ++j) {
        const double* key = k.data() + element(a.k_steps, b, g, j);
        double dot = 0;
        for (int64_t d = 0; d < a.D; ++d) dot += query[d] * key[d];
        row[static_cast<size_t>(j)] = dot * scale;
      }
      keep(0);
      if (cap > 0) {
        for (double& e : row) e = cap * std::tanh(e / cap);
      }
      keep(1);
      double top = -INFINITY, sum = 0;
      const int64_t mask = element(a.mask_steps, b, h, i);
      for (int64_t j = 0; j < a.L; ++j) {
        double& e = row[static_cast<size_t>(j)];
        if (j < seen.from || j >= seen.to) e = -INFINITY;
        else if (!added.empty()) e += added[static_cast<size_t>(mask + j * a.mask_column)];
        top = std::max(top, e);
      }
      keep(2);
      const bool none = std::isinf(top) && top < 0 && !a.blind_is_nan;
      for (double& e : row) e = none ? 0 : std::exp(e - top), sum += e;
      for (double& e : row) e = none ? 0 : e / sum;
      keep(3);
      double* out = y.data() + element(a.out_steps, b, h, i);
      for (int64_t j = 0; j < a.L; ++j) {
        if (row[static_cast<size_t>(j)] == 0) continue;
        const double* value = v.data() + element(a.v_steps, b, g, j);
        for (int64_t d = 0; d < a.DV; ++d) out[d] += row[static_cast<size_t>(j)] * value[d];
      }
    }
  });
  ctx.set(0, from_doubles(ctx, c.result, dtype, y));
  if (ctx.wants(3)) ctx.set(3, from_doubles(ctx, full, dtype, scores));
  return ok_status();
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
OAR_DEFINED_OP(head_attention, tensor::head_attention, .by_kernels = tensor::attention_by_kernel,
               .lower = tensor::lower_head_attention);
OAR_DEFINED_OP(padding_mask, tensor::padding_mask);
}  // namespace oar
