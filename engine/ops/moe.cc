// Routed experts: route, grouped products over the sorted (token, expert) pairs, combine. Contracts in
// kernels/moe.h.
//   moe_route(logits (T, X), bias (X) or none, expert_scale (X) or none) {top_k, normalize, score: softmax |
//   sigmoid | sqrt_softplus, scale, groups, top_groups, group_best} -> pair_token (T k), pair_slot (T, k),
//   pair_weight (T, k), start (X + 1)
//   grouped_linear(x, pair_token or none, start, bias (X, sum N) or none, w...) {experts} -> (P, sum N);
//   weights expert by expert, segment by segment
//   grouped_linear(x (T, X, C), none, none, none, w...) {experts, first} -> (T, X, N): every row by the one
//   of X weights (N, K) that its place says, from its columns [first, first + K): heads of an attention. With
//   `generated` rows of prompts are left out (expanded_attention.cc has them)
//   moe_combine(y (T k, E), pair_slot, pair_weight) -> (T, E)
#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/ops/define/definitions.h"
#include "engine/ops/gradient/gradients.h"
#include "engine/ops/op_util.h"
#include "engine/ops/weights.h"
#include "kernels/moe.h"
#include "kernels/whole_call.h"

namespace oar {
namespace {

Result<RouteScore> route_score(const Attrs& attrs) {
  const std::string name = attrs.get_string("score", "softmax");
  if (name == "softmax") return RouteScore::kSoftmax;
  if (name == "sigmoid") return RouteScore::kSigmoid;
  if (name == "sqrt_softplus") return RouteScore::kSqrtSoftplus;
  return invalid_argument(cat("score '", name, "' is not one of softmax, sigmoid, sqrt_softplus"));
}

MoeRouteArgs route_args(const Attrs& attrs) {
  MoeRouteArgs args;
  args.top_k = attrs.get_int("top_k");
  args.normalize = attrs.get_bool("normalize", true);
  args.score = *route_score(attrs);
  args.scale = static_cast<float>(attrs.get_float("scale", 1));
  args.groups = static_cast<int32_t>(attrs.get_int("groups"));
  args.top_groups = static_cast<int32_t>(attrs.get_int("top_groups"));
  args.group_best = static_cast<int32_t>(attrs.get_int("group_best", 2));
  return args;
}

Types route_infer(const Graph& g, Ids in, const Attrs& attrs) {
  OAR_RETURN_IF_ERROR(check_operands(in, 1, 3));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 2, "logits"));
  for (size_t k = 1; k < in.size(); ++k) {
    if (!given(in, k)) continue;
    OAR_RETURN_IF_ERROR(check_rank(g, in, k, 1, k == 1 ? "bias" : "expert_scale"));
    OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[k])[0], shape_of(g, in[0])[1], "one for each expert"));
  }
  OAR_RETURN_IF_ERROR(route_score(attrs).status());
  const Dim T = shape_of(g, in[0])[0], X = shape_of(g, in[0])[1];
  const int64_t k = attrs.get_int("top_k");
  if (k < 1 || k > X.const_value())
    return invalid_argument(cat("top_k ", k, " of ", X.const_value(), " experts"));
  const int64_t groups = attrs.get_int("groups"), chosen = attrs.get_int("top_groups");
  const int64_t best = attrs.get_int("group_best", 2);
  if (best < 1 || best > 2) return invalid_argument(cat("group_best ", best, " is neither 1 nor 2"));
  if (groups > 1 && (X.const_value() % groups != 0 || X.const_value() / groups < best || chosen < 1 ||
                     chosen > groups || k > X.const_value() / groups * chosen))
    return invalid_argument(
        cat("top_k ", k, " of ", X.const_value(), " experts in ", chosen, " of ", groups, " groups"));
  const Format i32 = Format::i32();
  return std::vector<TensorType>{
      {i32, {T * Dim(k)}}, {i32, {T, Dim(k)}}, f32_type({T, Dim(k)}), {i32, {X + Dim(1)}}};
}

double score_of(RouteScore kind, double x) {
  if (kind == RouteScore::kSigmoid) return 1 / (1 + std::exp(-x));
  return std::sqrt(std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
}

// Takes the experts of all but the best groups out of the choice, by the sum of a group's `best` best.
void close_groups(std::vector<double>& choice, size_t groups, size_t open, int32_t best) {
  const size_t each = choice.size() / groups;
  std::vector<std::pair<double, size_t>> sums;
  for (size_t g = 0; g < groups; ++g) {
    std::vector<double> of(choice.begin() + static_cast<int64_t>(g * each),
                           choice.begin() + static_cast<int64_t>((g + 1) * each));
    std::sort(of.rbegin(), of.rend());
    sums.emplace_back(best == 1 ? of[0] : of[0] + of[1], g);
  }
  std::stable_sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (size_t k = open; k < groups; ++k)
    for (size_t e = 0; e < each; ++e) choice[sums[k].second * each + e] = -INFINITY;
}

Status route_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  const MoeRouteArgs a = route_args(attrs);
  const auto X = static_cast<size_t>(in[0]->shape.cols()), k = static_cast<size_t>(a.top_k);
  const size_t T = X > 0 ? in[0]->f.size() / X : 0;
  std::vector<std::vector<std::pair<size_t, size_t>>> by_expert(X);  // (t, j)
  for (size_t t = 0; t < T; ++t) {
    const double* logits = in[0]->f.data() + t * X;
    std::vector<double> score(X);
    if (a.score == RouteScore::kSoftmax) {
      const double most = *std::max_element(logits, logits + X);
      double sum = 0;
      for (size_t e = 0; e < X; ++e) sum += score[e] = std::exp(logits[e] - most);
      for (double& s : score) s /= sum;
    } else {
      for (size_t e = 0; e < X; ++e) score[e] = score_of(a.score, logits[e]);
    }
    std::vector<double> choice = score;
    for (size_t e = 0; in.size() > 1 && in[1] && e < X; ++e) choice[e] += in[1]->f[e];
    if (a.groups > 1)
      close_groups(choice, static_cast<size_t>(a.groups), static_cast<size_t>(a.top_groups), a.group_best);
    std::vector<size_t> order(X);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t p, size_t q) { return choice[p] > choice[q]; });
    double kept = 0;
    for (size_t j = 0; j < k; ++j) kept += score[order[j]];
    for (size_t j = 0; j < k; ++j) {
      const double own = in.size() > 2 && in[2] ? in[2]->f[order[j]] : 1;
      out[2].f[t * k + j] = score[order[j]] / (a.normalize ? kept : 1) * a.scale * own;
      by_expert[order[j]].emplace_back(t, j);
    }
  }
  int64_t slot = 0;
  for (size_t e = 0; e < X; ++e) {
    out[3].i[e] = slot;
    for (const auto& [t, j] : by_expert[e]) {
      out[0].i[static_cast<size_t>(slot)] = static_cast<int64_t>(t);
      out[1].i[t * k + j] = slot++;
    }
  }
  out[3].i[X] = slot;
  return ok_status();
}

Status route_evaluate(EvalContext& ctx) { return evaluate_as(ctx, route_infer, route_reference); }

Lowered route_lower(LowerContext& ctx) {
  if (ctx.in_run()) return not_lowered();
  MoeRouteArgs args = route_args(ctx.node.attrs);
  OAR_ASSIGN(args.bias, ctx.f32_operand(1));
  OAR_ASSIGN(args.expert_scale, ctx.f32_operand(2));
  if (ctx.given(2)) args.version = 2;
  if (args.group_best != 2) args.version = 3;
  return lower_kernel(
      ctx, {KernelFamily::kMoeRoute}, args,
      [biased = ctx.given(1), scaled = ctx.given(2)](MoeRouteArgs& a, const Operand* in, const Operand* out) {
        if (biased && a.bias == nullptr) a.bias = in[1].as<const float>();
        if (scaled && a.expert_scale == nullptr) a.expert_scale = in[2].as<const float>();
        a.pair_token = out[0].as<int32_t>();
        a.pair_slot = out[1].as<int32_t>();
        a.pair_weight = out[2].as<float>();
        a.expert_start = out[3].as<int32_t>();
        a.logits = in[0].as<const float>();
        a.T = in[0].dims[0];
        a.experts = in[0].dims[1];
      });
}

constexpr size_t kFirstExpert = 4;  // operand

// Rows of each token by weights of their own.
Types heads_infer(const Graph& g, Ids in, const Attrs& attrs) {
  const int64_t experts = attrs.get_int("experts"), first = attrs.get_int("first");
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 3, "x"));
  const DimVector& x = shape_of(g, in[0]);
  OAR_RETURN_IF_ERROR(check_same(x[1], Dim(experts), "rows of a token and weights"));
  if (given(in, 1) || given(in, 3) || static_cast<int64_t>(in.size() - kFirstExpert) != experts)
    return invalid_argument("rows that all tokens have take a weight each, and nothing else");
  for (size_t k = kFirstExpert; k < in.size(); ++k) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, k, 2, "weight"));
    if (!(shape_of(g, in[k]) == shape_of(g, in[kFirstExpert])))
      return invalid_argument("weights have different shapes");
  }
  const DimVector& w = shape_of(g, in[kFirstExpert]);
  if (first < 0 || first + w[1].const_value() > x[2].const_value())
    return invalid_argument(
        cat("columns ", first, " to ", first + w[1].const_value(), " of ", x[2].const_value()));
  return std::vector<TensorType>{f32_type({x[0], x[1], w[0]})};
}

Types grouped_infer(const Graph& g, Ids in, const Attrs& attrs) {
  const int64_t experts = attrs.get_int("experts");
  if (in.size() <= kFirstExpert || experts < 1 ||
      (static_cast<int64_t>(in.size() - kFirstExpert)) % experts != 0) {
    return invalid_argument(
        "takes x, pair_token, start, bias and the same number of weights for each expert");
  }
  if (!given(in, 2)) return heads_infer(g, in, attrs);
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 2, "x"));
  if (given(in, 1)) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 1, "pair_token"));
    OAR_RETURN_IF_ERROR(check_integer(g, in[1], "pair_token"));
  }
  OAR_RETURN_IF_ERROR(check_rank(g, in, 2, 1, "start"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[2], "start"));
  OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[2])[0], Dim(experts + 1), "starts and experts"));
  const size_t segments = (in.size() - kFirstExpert) / static_cast<size_t>(experts);
  Dim N = 0;
  for (size_t k = kFirstExpert; k < in.size(); ++k) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, k, 2, "expert weight"));
    OAR_RETURN_IF_ERROR(
        check_same(shape_of(g, in[k])[1], shape_of(g, in[0])[1], "columns of the weight and of x"));
    if (k < kFirstExpert + segments) N = N + shape_of(g, in[k])[0];
    else
      OAR_RETURN_IF_ERROR(
          check_same(shape_of(g, in[k])[0], shape_of(g, in[k - segments])[0], "rows of expert weights"));
  }
  if (given(in, 3)) {
    OAR_RETURN_IF_ERROR(check_rank(g, in, 3, 2, "bias"));
    OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[3])[0], Dim(experts), "rows of the bias and experts"));
    OAR_RETURN_IF_ERROR(check_same(shape_of(g, in[3])[1], N, "columns of the bias and rows of the weights"));
  }
  const Dim P = given(in, 1) ? shape_of(g, in[1])[0] : shape_of(g, in[0])[0];
  return std::vector<TensorType>{f32_type({P, N})};
}

void heads_reference(HostInputs in, size_t first, HostValue& out) {
  const auto H = static_cast<size_t>(out.shape[1]), N = static_cast<size_t>(out.shape[2]);
  const auto C = static_cast<size_t>(in[0]->shape[2]), K = static_cast<size_t>(in[kFirstExpert]->shape[1]);
  for (size_t i = 0; i < out.f.size(); ++i) {
    const size_t row = i / N;
    const HostValue& w = *in[kFirstExpert + row % H];
    double sum = 0;
    for (size_t k = 0; k < K; ++k) sum += in[0]->f[row * C + first + k] * w.f[i % N * K + k];
    out.f[i] = sum;
  }
}

Status grouped_reference(HostInputs in, const Attrs& attrs, std::span<HostValue> out) {
  if (in[2] == nullptr) {
    heads_reference(in, static_cast<size_t>(attrs.get_int("first")), out[0]);
    return ok_status();
  }
  const auto experts = static_cast<size_t>(attrs.get_int("experts"));
  const size_t segments = (in.size() - kFirstExpert) / experts;
  const auto K = static_cast<size_t>(in[0]->shape.cols()), N = static_cast<size_t>(out[0].shape.cols());
  const int64_t pairs = out[0].shape[0], rows = in[0]->shape[0];
  for (size_t e = 0; e < experts; ++e) {
    if (in[2]->i[e] < 0 || in[2]->i[e] > in[2]->i[e + 1] || in[2]->i[e + 1] > pairs)
      return invalid_argument(cat("expert ", e, " has no rows of the ", pairs, " there are"));
    for (auto p = static_cast<size_t>(in[2]->i[e]); p < static_cast<size_t>(in[2]->i[e + 1]); ++p) {
      const int64_t token = in[1] ? in[1]->i[p] : static_cast<int64_t>(p);
      if (token < 0 || token >= rows) return invalid_argument(cat("row ", token, " of ", rows));
      const auto row = static_cast<size_t>(token);
      size_t column = 0;
      for (size_t s = 0; s < segments; ++s) {
        const HostValue& w = *in[kFirstExpert + e * segments + s];
        for (size_t n = 0; n < static_cast<size_t>(w.shape[0]); ++n) {
          double sum = in[3] ? in[3]->f[e * N + column + n] : 0;
          for (size_t k = 0; k < K; ++k) sum += in[0]->f[row * K + k] * w.f[n * K + k];
          out[0].f[p * N + column + n] = sum;
        }
        column += static_cast<size_t>(w.shape[0]);
      }
    }
  }
  return ok_status();
}

class GroupedLinearOp final : public LoweredOp {
 public:
  GroupedLinearOp(const Kernel* kernel, std::vector<MatmulSegment> segments, int64_t experts, Format format)
      : kernel_(kernel), segments_(std::move(segments)) {
    args_.segments = segments_.data();
    args_.segments_per_expert = static_cast<int64_t>(segments_.size()) / experts;
    args_.experts = experts;
    args_.format = format;
  }
  const Kernel* kernel() const override { return kernel_; }
  size_t args_bytes() const override { return sizeof(GroupedMatmulArgs); }
  void fill(void* args, const Operand* in, const Operand* out) const override {
    auto& a = *new (args) GroupedMatmulArgs(args_);
    a.out = out[0].as<float>();
    a.x = in[0].as<const float>();
    a.pair_token = in[1].as<const int32_t>();
    a.expert_start = in[2].as<const int32_t>();
    a.P = out[0].dims[0];
    a.K = in[0].dims[1];
    a.ldx = in[0].row_stride;
    a.ldo = out[0].row_stride;
  }

 private:
  const Kernel* kernel_;
  std::vector<MatmulSegment> segments_;
  GroupedMatmulArgs args_;
};

// Rows that all tokens have: the matrix product of each, whole, is one piece of work for one worker.
struct HeadsArgs {
  const Kernel* product = nullptr;
  MatmulArgs args;  // of the first; its segment is that of all
  const MatmulSegment* segments = nullptr;
  int64_t heads = 0, x_step = 0, out_step = 0;  // elements from one row of a token to the next

  MatmulArgs of(int64_t head) const {
    MatmulArgs a = args;
    a.x += head * x_step;
    a.out += head * out_step;
    a.segments = segments + head;
    return a;
  }
};

void heads_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const HeadsArgs*>(args);
  const MatmulArgs one = a.of(0);
  *out = {1, {a.args.T > 0 ? a.heads : 0}};
  out->worker_scratch = whole_call_scratch(*a.product, &one);
}

void heads_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const HeadsArgs*>(args);
  for (int64_t head = begin; head < end; ++head) {
    const MatmulArgs one = a.of(head);
    whole_call(*a.product, &one, scratch.worker);
  }
}

class HeadsOp final : public LoweredOp {
 public:
  HeadsOp(const Kernel& product, std::vector<MatmulSegment> segments, Format format, const Attrs& attrs,
          int64_t columns)
      : kernel_(product),
        segments_(std::move(segments)),
        first_(attrs.get_int("first")),
        generated_(attrs.get_bool("generated")) {
    kernel_.plan = heads_plan;
    kernel_.run = heads_run;
    kernel_.weights = nullptr;
    args_.product = &product;
    args_.segments = segments_.data();
    args_.heads = static_cast<int64_t>(segments_.size());
    args_.args.num_segments = 1;
    args_.args.K = columns;
    args_.args.format = format;
  }
  const Kernel* kernel() const override { return &kernel_; }
  size_t args_bytes() const override { return sizeof(HeadsArgs); }
  void fill(void* args, const Operand* in, const Operand* out) const override {
    auto& a = *new (args) HeadsArgs(args_);
    a.args.out = out[0].as<float>();
    a.args.x = in[0].as<const float>() + first_;
    a.args.T = generated_ ? in[0].prompts_from : out[0].dims[0];
    a.args.ldx = in[0].row_stride;
    a.args.ldo = out[0].row_stride;
    a.x_step = in[0].step_of_heads();
    a.out_step = out[0].step_of_heads();
  }

 private:
  Kernel kernel_;
  std::vector<MatmulSegment> segments_;
  int64_t first_;
  bool generated_;
  HeadsArgs args_;
};

// The same beside a device: a product for each, one behind the other.
class HeadOp final : public LoweredOp {
 public:
  HeadOp(const Kernel* product, const MatmulSegment& segment, int64_t head, Format format, const Attrs& attrs,
         int64_t columns)
      : kernel_(product),
        segment_(segment),
        head_(head),
        first_(attrs.get_int("first")),
        columns_(columns),
        format_(format) {}
  const Kernel* kernel() const override { return kernel_; }
  size_t args_bytes() const override { return sizeof(MatmulArgs); }
  void fill(void* args, const Operand* in, const Operand* out) const override {
    auto& a = *new (args) MatmulArgs;
    a.out = out[0].as<float>() + head_ * out[0].step_of_heads();
    a.x = in[0].as<const float>() + head_ * in[0].step_of_heads() + first_;
    a.segments = &segment_;
    a.num_segments = 1;
    a.T = out[0].dims[0];
    a.K = columns_;
    a.ldx = in[0].row_stride;
    a.ldo = out[0].row_stride;
    a.format = format_;
  }

 private:
  const Kernel* kernel_;
  MatmulSegment segment_;
  int64_t head_, first_, columns_;
  Format format_;
};

std::unique_ptr<LoweredOp> heads_one_by_one(const Kernel* product, std::span<const MatmulSegment> segments,
                                            Format format, const Attrs& attrs, int64_t columns) {
  std::unique_ptr<LoweredOp> all;
  for (size_t head = segments.size(); head-- > 0;) {
    auto op =
        std::make_unique<HeadOp>(product, segments[head], static_cast<int64_t>(head), format, attrs, columns);
    op->more = std::move(all);
    all = std::move(op);
  }
  return all;
}

Status grouped_evaluate(EvalContext& ctx) { return evaluate_as(ctx, grouped_infer, grouped_reference); }

Lowered grouped_lower(LowerContext& ctx) {
  if (ctx.in_run()) return not_lowered();
  const Node& node = ctx.node;
  const int64_t experts = node.attrs.get_int("experts");
  const size_t per_expert = (node.inputs.size() - kFirstExpert) / static_cast<size_t>(experts);
  const bool apart = !ctx.given(2);  // rows that all tokens have
  const KernelFamily family = apart ? KernelFamily::kMatmul : KernelFamily::kGroupedMatmul;
  const float* bias = nullptr;  // where the next segment's begins
  if (node.inputs[3] != kNoValue) {
    if (!ctx.is_weight(3)) return not_lowered();
    OAR_ASSIGN(const StoredWeight* all, weight_rows(ctx, 3, Format::f32()));
    bias = static_cast<const float*>(all->data());
  }
  std::vector<MatmulSegment> segments;
  std::optional<Format> format;
  uint64_t weight_bytes = 0;
  int64_t column = 0;
  for (size_t k = kFirstExpert; k < node.inputs.size(); ++k) {
    if (!ctx.is_weight(k)) return not_lowered();
    const Format own = compute_format(ctx, k, node.attrs.get_string("format"));
    if (format && !(*format == own)) return internal_error("expert weights have different formats");
    format = own;
    if (ctx.backend.find_kernel({family, own}) == nullptr) { return not_lowered(); }
    if ((k - kFirstExpert) % per_expert == 0) column = 0;
    OAR_ASSIGN(const StoredWeight* w, matmul_weight(ctx, k, own));
    weight_bytes += w->bytes;
    segments.push_back({w->data(), bias, ctx.weight_shape(k)[0], column});
    column += segments.back().n;
    if (bias != nullptr) bias += segments.back().n;
  }
  const Kernel* kernel = ctx.backend.find_kernel({family, *format});
  std::unique_ptr<LoweredOp> op;
  if (apart && ctx.backend.memory() != MemoryKind::kHost)
    op = heads_one_by_one(kernel, segments, *format, node.attrs, ctx.weight_shape(kFirstExpert)[1]);
  else if (apart)
    op = std::make_unique<HeadsOp>(*kernel, std::move(segments), *format, node.attrs,
                                   ctx.weight_shape(kFirstExpert)[1]);
  else op = std::make_unique<GroupedLinearOp>(kernel, std::move(segments), experts, *format);
  op->weight_bytes = weight_bytes;
  return op;
}

Types combine_infer(const Graph& g, Ids in, const Attrs&) {
  OAR_RETURN_IF_ERROR(check_operands(in, 3, 3));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 0, 2, "y"));
  OAR_RETURN_IF_ERROR(check_rank(g, in, 1, 2, "pair_slot"));
  OAR_RETURN_IF_ERROR(check_integer(g, in[1], "pair_slot"));
  if (!given(in, 2) || !(shape_of(g, in[2]) == shape_of(g, in[1])))
    return invalid_argument("slots and weights have different shapes");
  return std::vector<TensorType>{f32_type({shape_of(g, in[1])[0], shape_of(g, in[0])[1]})};
}

Status combine_reference(HostInputs in, const Attrs&, std::span<HostValue> out) {
  const auto k = static_cast<size_t>(in[1]->shape.cols()), E = static_cast<size_t>(in[0]->shape.cols());
  for (const int64_t slot : in[1]->i) {
    if (slot < 0 || slot >= in[0]->shape[0])
      return invalid_argument(cat("slot ", slot, " of ", in[0]->shape[0]));
  }
  for (size_t t = 0; t * E < out[0].f.size(); ++t) {
    for (size_t c = 0; c < E; ++c) {
      double sum = 0;
      for (size_t j = 0; j < k; ++j)
        sum += in[2]->f[t * k + j] * in[0]->f[static_cast<size_t>(in[1]->i[t * k + j]) * E + c];
      out[0].f[t * E + c] = sum;
    }
  }
  return ok_status();
}

Status combine_evaluate(EvalContext& ctx) { return evaluate_as(ctx, combine_infer, combine_reference); }

Lowered combine_lower(LowerContext& ctx) {
  if (ctx.in_run()) return not_lowered();
  return lower_kernel(ctx, {KernelFamily::kMoeCombine}, MoeCombineArgs{},
                      [](MoeCombineArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>();
                        a.y = in[0].as<const float>();
                        a.pair_slot = in[1].as<const int32_t>();
                        a.pair_weight = in[2].as<const float>();
                        a.T = in[1].dims[0];
                        a.top_k = in[1].dims[1];
                        a.E = in[0].dims[1];
                      });
}

}  // namespace

extern const OpDef op_moe_route = {.name = "moe_route",
                                   .infer = route_infer,
                                   .vjp = gradient::moe_route,
                                   .evaluate = route_evaluate,
                                   .lower = route_lower};
extern const OpDef op_grouped_linear = {.name = "grouped_linear",
                                        .strided_inputs = 1,
                                        .apart_inputs = 1,
                                        .strided_output = true,
                                        .apart_output = true,
                                        .infer = grouped_infer,
                                        .define = definition::grouped_linear,
                                        .costly_definition = true,
                                        .evaluate = grouped_evaluate,
                                        .lower = grouped_lower,
                                        .weight_expressions = true};
extern const OpDef op_moe_combine = {.name = "moe_combine",
                                     .infer = combine_infer,
                                     .define = definition::moe_combine,
                                     .evaluate = combine_evaluate,
                                     .lower = combine_lower};

}  // namespace oar
