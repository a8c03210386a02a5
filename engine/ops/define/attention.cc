// Attention of ordinary models over products and a softmax, and masks of padding. engine/ops/tensor/
// head_attention.cc says what operands and attributes mean.
#include <cfloat>
#include <cmath>

#include "engine/ops/define/definitions.h"

namespace oar::definition {
namespace {

using Vals = std::span<const Val>;

// As (B, heads, S, D).
Val heads_first(Builder& b, Val v, int64_t heads, bool bshd) {
  v = real(b, v);
  const Ints dims = extents(b, v);
  if (!b.status().ok()) return v;
  if (dims.size() == 4) return bshd ? turned(b, v, {0, 2, 1, 3}) : v;
  if (dims.size() != 3 || heads < 1 || dims[2] % heads != 0)
    return b.fail(
               invalid_argument("query, key and value must have 3 or 4 axes, with heads that divide rows")),
           v;
  return turned(b, reshaped(b, v, {0, 0, heads, -1}), {0, 2, 1, 3});
}

// Numbers begin, begin + 1, ... along one axis of four.
Val numbers(Builder& b, int64_t begin, int64_t count, size_t axis) {
  auto t = Tensor::allocate({count}, Format::f32());
  if (!t.ok()) return b.fail(t.status()), Val{};
  for (int64_t k = 0; k < count; ++k) t->mutable_values<float>()[k] = static_cast<float>(begin + k);
  Ints shape(4, 1);
  shape[axis] = count;
  return reshaped(b, b.constant("", std::move(*t)), shape);
}

struct Sizes {
  int64_t B = 0, H = 0, K = 0, S = 0, L = 0, past = 0;
};

// Whether a key is seen: in ranges about the query's position, and below the lengths. None: all are.
Val seen_keys(Builder& b, Vals in, const Attrs& attrs, const Sizes& n, int64_t columns) {
  Val seen;
  const auto also = [&](Val v) { seen = seen ? b.op("logical_and", {seen, v}) : v; };
  const Val key = numbers(b, 0, n.L, 3);
  Val query = numbers(b, n.past, n.S, 2);
  if (given(in, 6)) {
    const Val lengths = reshaped(b, real(b, in[6]), {n.B, 1, 1, 1});
    also(b.op("less", {key, lengths}));
    // Without a past queries are the last of the keys that are there.
    if (!given(in, 4))
      query =
          b.op("add", {numbers(b, 0, n.S, 2), b.op("sub", {lengths, b.scalar(static_cast<double>(n.S))})});
  }
  const auto up_to = [&](int64_t ahead) {
    also(b.op("less_equal", {key, b.op("add", {query, b.scalar(static_cast<double>(ahead))})}));
  };
  if (attrs.get_bool("is_causal")) up_to(0);
  if (const int64_t right = attrs.get_int("right_window_size", -1); right >= 0) up_to(right);
  if (const int64_t left = attrs.get_int("left_window_size", -1); left >= 0)
    also(b.op("greater_equal", {key, b.op("sub", {query, b.scalar(static_cast<double>(left))})}));
  if (columns < n.L) also(b.op("less", {key, b.scalar(static_cast<double>(columns))}));
  return seen;
}

}  // namespace

// Packed rows (engine/ops/attention.cc), in which T may be a symbol: queries that read one head of keys are
// rows of one product, token by token, and each has its token's position and segment.
std::vector<Val> attention(Builder& b, Vals in, const Attrs& attrs) {
  if (!b.status().ok()) return {};
  const DimVector q = b.shape(in[0]);
  const int64_t H = q[1].const_value(), K = b.dim(in[1], 1).const_value(), D = q[2].const_value(), G = H / K;
  const Val rows = reshaped(b, turned(b, reshaped(b, in[0], {0, K, G, D}), {1, 0, 2, 3}), {0, -1, D});
  Val score = b.op("matmul", {rows, turned(b, in[1], {1, 2, 0})});  // (K, T G, T)
  score = b.op("mul", {score, b.scalar(attrs.get_float("scale"))});
  if (const double cap = attrs.get_float("softcap"); cap > 0)
    score = b.op("mul", {b.op("tanh", {b.op("mul", {score, b.scalar(1 / cap)})}), b.scalar(cap)});
  const auto by_query = [&](Val v) {  // one number a token as (T G, 1)
    return reshaped(b, b.op("add", {reshaped(b, v, {0, 1}), filled(b, {1, G}, 0)}), {-1, 1});
  };
  const Val segment = real(b, in[4]);
  Val seen = b.op("equal", {by_query(segment), segment});
  const bool causal = attrs.get_bool("causal", true);
  const int64_t window = attrs.get_int("window");
  if (causal || window > 0) {
    const Val position = real(b, in[3]), back = b.op("sub", {by_query(position), position});
    const auto also = [&](const char* op, double bound) {
      seen = b.op("logical_and", {seen, b.op(op, {back, b.scalar(bound)})});
    };
    if (causal) also("greater_equal", 0);
    if (window > 0) also("less", static_cast<double>(window));
    if (window > 0 && !causal) also("greater", static_cast<double>(-window));
    if (window > 0 && attrs.get_bool("chunked")) {
      const Val chunk = b.op("floor", {b.op("div", {position, b.scalar(static_cast<double>(window))})});
      seen = b.op("logical_and", {seen, b.op("equal", {by_query(chunk), chunk})});
    }
  }
  // A row sees itself, so nothing is left of what it does not see, and no difference is infinite.
  score = b.op("where", {seen, score, b.scalar(-1e30)});
  Val weight;
  if (given(in, 5)) {  // a head's sink, (K, T G, 1): one more term of the sum
    const Val none = b.op("sub", {segment, segment});
    const Val sink =
        reshaped(b, b.op("add", {reshaped(b, in[5], {K, 1, G}), reshaped(b, none, {1, -1, 1})}), {K, -1, 1});
    const Val top = b.op("max", {reduced(b, "reduce_max", score, {-1}), sink});
    const Val e = b.op("exp", {b.op("sub", {score, top})});
    weight =
        b.op("div",
             {e, b.op("add", {reduced(b, "reduce_sum", e, {-1}), b.op("exp", {b.op("sub", {sink, top})})})});
  } else {
    weight = b.op("softmax", {score});
  }
  const int64_t latent = attrs.get_int("latent"), DV = latent > 0 ? latent : D;
  const Val v = latent > 0 ? cut(b, in[1], 2, 0, latent) : in[2];
  const Val y = b.op("matmul", {weight, turned(b, v, {1, 0, 2})});
  return {reshaped(b, turned(b, reshaped(b, y, {0, -1, G, DV}), {1, 0, 2, 3}), {0, H, DV})};
}

std::vector<Val> head_attention(Builder& b, Vals in, const Attrs& attrs) {
  if (attrs.get_bool("ragged")) {
    // Where rows of such a cache lie is a value, and so is how many there are.
    return b.fail(unimplemented("a cache of ragged lengths is a state, which no definition has")),
           std::vector<Val>{};
  }
  const bool bshd = attrs.get_string("layout") == "bshd", spelled = attrs.get_bool("spelled");
  const bool flat = b.shape(in[0]).size() == 3;
  Val q = heads_first(b, in[0], attrs.get_int("q_num_heads"), bshd);
  Val k = heads_first(b, in[1], attrs.get_int("kv_num_heads"), bshd);
  Val v = heads_first(b, in[2], attrs.get_int("kv_num_heads"), bshd);
  if (spelled) {  // one entry and one head serve all
    const Ints qs = extents(b, q), ks = extents(b, k), vs = extents(b, v);
    if (!b.status().ok()) return {};
    const int64_t B = std::max({qs[0], ks[0], vs[0]}), H = std::max({qs[1], ks[1], vs[1]});
    const auto spread = [&](Val x, const Ints& dims) {
      if (dims[0] == B && dims[1] == H) return x;
      return b.op("expand", {x}, {{"shape", Ints{B, H, dims[2], dims[3]}}});
    };
    q = spread(q, qs), k = spread(k, ks), v = spread(v, vs);
  }
  if (given(in, 4)) {
    k = b.op("concat", {real(b, in[4]), k}, {{"axis", int64_t{2}}});
    v = b.op("concat", {real(b, in[5]), v}, {{"axis", int64_t{2}}});
  }
  const Ints qs = extents(b, q), ks = extents(b, k), vs = extents(b, v);
  if (!b.status().ok()) return {};
  Sizes n{qs[0], qs[1], ks[1], qs[2], ks[2], 0};
  if (given(in, 4)) n.past = extents(b, in[4])[2];
  const int64_t D = qs[3], DV = vs[3];
  if (n.K < 1 || n.H % n.K != 0) return b.fail(invalid_argument("heads do not match")), std::vector<Val>{};
  const auto grouped = [&](Val x, int64_t width) {  // queries that read the same head of keys
    return reshaped(b, x, {n.B, n.K, n.H / n.K * n.S, width});
  };

  double scale = attrs.get_float("scale", 0);
  if (scale == 0 && !spelled) scale = 1 / std::sqrt(static_cast<double>(D));
  Val s = b.op("matmul", {grouped(q, D), turned(b, k, {0, 1, 3, 2})});
  s = b.op("mul", {reshaped(b, s, {n.B, n.H, n.S, n.L}), b.scalar(scale)});
  std::vector<Val> stages{s};
  if (const double cap = attrs.get_float("softcap", 0); cap > 0)
    s = b.op("mul", {b.op("tanh", {b.op("mul", {s, b.scalar(1 / cap)})}), b.scalar(cap)});
  stages.push_back(s);
  int64_t columns = n.L;
  if (given(in, 3)) {
    Val mask = in[3];
    Ints dims = extents(b, mask);
    if (!b.status().ok() || dims.empty() || dims.size() > 4)
      return b.fail(invalid_argument("the mask has 1 to 4 axes")), std::vector<Val>{};
    if (b.type(mask).format == Format::of(DType::kBool))
      mask = b.op("where", {mask, b.scalar(0), b.scalar(-INFINITY)});
    mask = real(b, mask);
    if (dims.back() < n.L && !(spelled && dims.back() == 1)) {  // it hides the rest
      columns = dims.back();
      dims.back() = n.L - columns;
      const Val parts[] = {mask, filled(b, dims, 0)};
      mask = joined(b, parts, -1);
    }
    s = b.op("add", {s, mask});
  }
  if (const Val seen = seen_keys(b, in, attrs, n, columns)) s = b.op("where", {seen, s, b.scalar(-INFINITY)});
  stages.push_back(s);
  Val p;
  if (spelled) {
    p = b.op("softmax", {s});
  } else {  // a query that sees no key attends nothing
    const Val top = b.op("max", {reduced(b, "reduce_max", s, {-1}), b.scalar(-FLT_MAX)});
    const Val e = b.op("exp", {b.op("sub", {s, top})});
    p = b.op("div", {e, b.op("max", {reduced(b, "reduce_sum", e, {-1}), b.scalar(FLT_MIN)})});
  }
  stages.push_back(p);
  Val y = b.op("matmul", {grouped(p, n.L), v});
  y = reshaped(b, y, {n.B, n.H, n.S, DV});
  if (flat || bshd) y = turned(b, y, {0, 2, 1, 3});
  if (flat) y = reshaped(b, y, {0, 0, -1});
  const auto stage = static_cast<size_t>(std::clamp<int64_t>(attrs.get_int("qk_matmul_output_mode"), 0, 3));
  return {y, k, v, stages[stage]};
}

// {filter: -10000} 0 for a key that is there, else `filter`: (B, 1, 1 or S, T)
std::vector<Val> padding_mask(Builder& b, Vals in, const Attrs& attrs) {
  const Ints mask = extents(b, in[0]), k = extents(b, in[1]);
  if (!b.status().ok() || (k.size() != 3 && k.size() != 4))
    return b.fail(invalid_argument("keys need 3 or 4 axes")), std::vector<Val>{};
  const int64_t B = k[0], T = k[k.size() == 3 ? 1 : 2] + (given(in, 2) ? extents(b, in[2])[2] : 0);
  const Val m = real(b, in[0]);
  Val there;
  if (mask.size() == 1) {  // ends, and then first keys
    const auto of_entries = [&](int64_t from) {
      return reshaped(b, cut(b, m, 0, from, from + B), {B, 1, 1, 1});
    };
    const Val key = numbers(b, 0, T, 3);
    there = b.op("less", {key, of_entries(0)});
    if (mask[0] == 2 * B && B > 0)
      there = b.op("logical_and", {there, b.op("greater_equal", {key, of_entries(B)})});
  } else {
    there = b.op("greater", {reshaped(b, m, {B, 1, mask.size() == 3 ? mask[1] : 1, T}), b.scalar(0)});
  }
  return {b.op("where", {there, b.scalar(0), b.scalar(attrs.get_float("filter", -10000))})};
}

// Each entry a segment of packed rows, behind those that came before.
std::vector<Val> causal_conv_with_state(Builder& b, Vals in, const Attrs& attrs) {
  const Ints x = extents(b, in[0]), w = extents(b, in[1]);
  if (b.status().ok() && (x.size() != 3 || w.size() != 3))
    b.fail(invalid_argument("x must be (B, C, L), w (C, 1, K)"));
  if (!b.status().ok()) return {};
  const int64_t B = x[0], C = x[1], L = x[2], before = w[2] - 1, T = before + L;
  Val all = real(b, in[0]);
  if (before > 0) {
    const Val past = given(in, 3) ? real(b, in[3]) : filled(b, {B, C, before}, 0);
    const Val parts[] = {past, all};
    all = joined(b, parts, 2);
  }
  auto entries = Tensor::allocate({B * T}, Format::i32());
  if (!entries.ok()) return b.fail(entries.status()), std::vector<Val>{};
  for (int64_t k = 0; k < B * T; ++k)
    static_cast<int32_t*>(entries->mutable_data())[k] = static_cast<int32_t>(k / T);
  const Val rows = reshaped(b, turned(b, all, {0, 2, 1}), {B * T, C});
  Val y = b.op("causal_conv", {rows, in[1], given(in, 2), b.constant("", std::move(*entries))});
  y = cut(b, turned(b, reshaped(b, y, {B, T, C}), {0, 2, 1}), 2, before, T);
  const std::string activation = attrs.get_string("activation", "none");
  if (activation == "silu" || activation == "swish") y = b.op("silu", {y});
  return {y, cut(b, all, 2, L, T)};
}

}  // namespace oar::definition
