// expert_rows and its ways back (ops.h): the layers of routed experts, each over the rows of its own tokens
// alone, which lie together as moe_route sorts them.
#include <algorithm>
#include <cstring>

#include "engine/graph/derived.h"
#include "engine/ops/define/definitions.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"
#include "kernels/moe.h"

namespace oar::train {
namespace {

constexpr size_t kFirstWeight = 4;  // operand of expert_rows and of expert_rows_back

const OpDef& grouped_linear() { return *find_op("grouped_linear"); }
Types rows_infer(const Graph& g, Ids in, const Attrs& attrs) {
  if (!given(in, 2)) return invalid_argument("takes starts of rows sorted by expert");
  return grouped_linear().infer(g, in, attrs);
}
// Those of grouped_linear, with the gradient of its result in the place of x.
Types rows_back_infer(const Graph& g, Ids in, const Attrs&) {
  return std::vector<TensorType>{{Format::f32(), {shape_of(g, in[0])[0], shape_of(g, in[kFirstWeight])[1]}}};
}
Types products_infer(const Graph& g, Ids in, const Attrs& attrs) {
  std::vector<TensorType> out;
  for (const int64_t n : attrs.get_ints("rows")) out.push_back({Format::f32(), {n, shape_of(g, in[1])[1]}});
  return out;
}

// Where each expert's rows begin among P. While it is sized, the first has as many as there may be.
Result<std::vector<int32_t>> read_starts(const EvalContext& ctx, size_t operand, int64_t P) {
  OAR_ASSIGN(const Tensor t, ctx.tensor(operand));
  std::vector<int32_t> out(static_cast<size_t>(t.numel()), static_cast<int32_t>(P));
  if (out.size() < 2) return invalid_argument("starts are one more than experts");
  out[0] = 0;
  if (ctx.options().sizing) return out;
  if (!(t.format() == Format::i32())) return invalid_argument("starts are i32");
  out.assign(t.values<int32_t>().begin(), t.values<int32_t>().end());
  for (size_t e = 0; e + 1 < out.size(); ++e)
    if (out[e] < 0 || out[e] > out[e + 1] || out[e + 1] > P)
      return invalid_argument(cat("expert ", e, " has no rows of the ", P, " there are"));
  return out;
}

// Of each weight what prepare_matrix() gave.
struct StoredMatrices {
  std::vector<std::shared_ptr<const void>> each;
  const StoredMatrix* at(size_t k) const { return static_cast<const StoredMatrix*>(each[k].get()); }
};
Result<std::shared_ptr<const void>> prepare_experts(PrepareContext& ctx) {
  auto out = std::make_shared<StoredMatrices>();
  for (size_t k = kFirstWeight; k < ctx.node().inputs.size(); ++k) {
    OAR_ASSIGN(auto one, prepare_matrix(ctx, k));
    out->each.push_back(std::move(one));
  }
  return std::shared_ptr<const void>(std::move(out));
}

// The kernel that serves, once for each matrix that an expert has, over experts of one format.
Result<bool> rows_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor start, ctx.tensor(2));
  Tensor pair_token;
  if (ctx.has(1)) { OAR_ASSIGN(pair_token, ctx.tensor(1)); }
  const auto experts = static_cast<size_t>(ctx.attrs().get_int("experts"));
  const size_t each = (ctx.num_inputs() - kFirstWeight) / experts;
  const int64_t P = ctx.has(1) ? pair_token.shape()[0] : x.shape()[0], K = x.shape().cols();
  OAR_RETURN_IF_ERROR(read_starts(ctx, 2, P).status());
  if (!(x.format() == Format::f32())) return invalid_argument("x is f32");
  std::vector<Tensor> w(experts * each);
  int64_t N = 0;
  for (size_t k = 0; k < w.size(); ++k) {
    OAR_ASSIGN(w[k], ctx.tensor(kFirstWeight + k));
    if (w[k].shape().rank() != 2 || w[k].shape()[1] != K) return invalid_argument("a weight does not fit x");
    if (k < each) N += w[k].shape()[0];
  }
  const float* bias = nullptr;
  if (ctx.has(3)) {
    OAR_ASSIGN(const Tensor all, ctx.tensor(3));
    if (!(all.format() == Format::f32()) || !(all.shape() == Shape{static_cast<int64_t>(experts), N}))
      return invalid_argument("biases are f32, a row for each expert");
    bias = elements<float>(all);
  }
  OAR_ASSIGN(Tensor y, ctx.allocate({P, N}, DType::kF32));
  const auto* const stored = ctx.prepared<StoredMatrices>();
  int64_t column = 0;
  for (size_t s = 0; s < each && !ctx.options().sizing; ++s) {
    const int64_t n = w[s].shape()[0];
    for (size_t first = 0, end = 0; first < experts; first = end) {
      const Format format = w[first * each + s].format();
      std::vector<MatmulSegment> segments;
      for (end = first; end < experts && w[end * each + s].format() == format; ++end) {
        const size_t k = end * each + s;
        const StoredMatrix* const packed = stored != nullptr ? stored->at(k) : nullptr;
        const float* const own = bias == nullptr ? nullptr : bias + static_cast<int64_t>(end) * N + column;
        segments.push_back({packed != nullptr ? packed->packed.data() : w[k].data(), own, n, column});
      }
      const Kernel* const kernel = ctx.backend().find_kernel({KernelFamily::kGroupedMatmul, format});
      if (kernel == nullptr) return unimplemented(cat("no product of experts with ", format.name()));
      GroupedMatmulArgs a;
      a.out = mutable_elements<float>(y), a.x = elements<float>(x);
      a.pair_token = ctx.has(1) ? pair_token.values<int32_t>().data() : nullptr;
      a.expert_start = start.values<int32_t>().data() + first;
      a.segments = segments.data(), a.segments_per_expert = 1;
      a.experts = static_cast<int64_t>(end - first);
      a.P = P, a.K = a.ldx = K, a.ldo = N;
      a.format = format;
      OAR_RETURN_IF_ERROR(tensor::run_kernel(ctx, *kernel, &a, static_cast<double>(P * n * K) / 6));
    }
    column += n;
  }
  ctx.set(0, std::move(y));
  return true;
}

// dx of an expert's rows: sums over its matrices of dy's columns by them.
Result<bool> rows_back_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor dy, ctx.tensor(0));
  OAR_ASSIGN(const Tensor first, ctx.tensor(kFirstWeight));
  const int64_t P = dy.shape()[0], N = dy.shape().cols(), K = first.shape()[1];
  OAR_ASSIGN(const auto start, read_starts(ctx, 2, P));
  const size_t experts = start.size() - 1, each = (ctx.num_inputs() - kFirstWeight) / experts;
  OAR_ASSIGN(Tensor dx, ctx.allocate({P, K}, DType::kF32));
  for (size_t e = 0; e < experts; ++e) {
    const int64_t begin = start[e], rows = start[e + 1] - begin;
    float* const to = mutable_elements<float>(dx) + begin * K;
    int64_t column = 0;
    for (size_t s = 0; s < each && rows > 0; ++s) {
      OAR_ASSIGN(const Tensor w, ctx.tensor(kFirstWeight + e * each + s));
      const float* const from = elements<float>(dy) + begin * N + column;
      column += w.shape()[0];
      if (s == 0) {
        OAR_RETURN_IF_ERROR(product_back(ctx, from, rows, w, to, N));
        continue;
      }
      OAR_ASSIGN(Tensor more, ctx.allocate({rows, K}, DType::kF32));
      float* const part = mutable_elements<float>(more);
      OAR_RETURN_IF_ERROR(product_back(ctx, from, rows, w, part, N));
      ctx.parallel(rows * K, 0.5, [&](int64_t a, int64_t b) {
        for (int64_t k = a; k < b; ++k) to[k] += part[k];
      });
    }
    if (ctx.options().sizing) break;
  }
  ctx.set(0, std::move(dx));
  return true;
}

// dW of one expert's matrices: their columns of dy, turned, by the rows of x.
Result<bool> products_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor dy, ctx.tensor(0));
  OAR_ASSIGN(const Tensor x, ctx.tensor(1));
  const int64_t P = dy.shape()[0], N = dy.shape().cols(), K = x.shape().cols();
  OAR_ASSIGN(const auto start, read_starts(ctx, 3, P));
  const auto e = ctx.options().sizing ? 0 : static_cast<size_t>(ctx.attrs().get_int("expert"));
  const int64_t begin = start[e], rows = start[e + 1] - begin;
  OAR_ASSIGN(Tensor own, ctx.allocate({rows, K}, DType::kF32));
  OAR_ASSIGN(Tensor turned, ctx.allocate({N, rows}, DType::kF32));
  if (!ctx.options().sizing) {
    Tensor pair_token;
    if (ctx.has(2)) { OAR_ASSIGN(pair_token, ctx.tensor(2)); }
    for (int64_t r = 0; r < rows; ++r) {
      const auto pair = static_cast<size_t>(begin + r);
      const int64_t from = ctx.has(2) ? pair_token.values<int32_t>()[pair] : begin + r;
      if (from < 0 || from >= x.shape()[0]) return invalid_argument(cat("row ", from, " of ", x.shape()[0]));
      std::memcpy(mutable_elements<float>(own) + r * K, elements<float>(x) + from * K,
                  static_cast<size_t>(K) * sizeof(float));
    }
    turn(ctx, elements<float>(dy) + begin * N, rows, N, mutable_elements<float>(turned));
  }
  const std::vector<int64_t> counts = ctx.attrs().get_ints("rows");
  int64_t column = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    OAR_ASSIGN(Tensor dw, ctx.allocate({counts[s], K}, DType::kF32));
    tensor::Products p;
    p.M = counts[s], p.N = K, p.K = rows;
    p.a = elements<float>(turned) + column * rows, p.lda = rows;
    p.b = elements<float>(own), p.b_row = K, p.b_col = 1;
    p.out = mutable_elements<float>(dw);
    p.at_a = p.at_b = {0};
    OAR_RETURN_IF_ERROR(tensor::packed_products(ctx, p));
    column += counts[s];
    ctx.set(s, std::move(dw));
  }
  return true;
}

std::vector<Val> rows_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  return {b.op("grouped_linear", in, attrs)};
}

// A layer's gradient by its rows does not depend on these.
std::vector<Val> rows_back_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  std::vector<Val> operands(in.begin(), in.end());
  const int64_t P = b.dim(in[0], 0).const_value(), K = b.dim(in[kFirstWeight], 1).const_value();
  operands[0] = definition::filled(b, {P, K}, 0);
  return derived_gradient(b, rows_define, operands, attrs, in.first(1), 1);
}

// One expert's matrices, x, pair_token or none, and where its rows begin and end.
std::vector<Val> one_expert(Builder& b, std::span<const Val> in, const Attrs&) {
  const std::span<const Val> weights = in.first(in.size() - 3), rows = in.last(3);
  std::vector<Val> operands(rows.begin(), rows.end());
  operands.emplace_back();
  operands.insert(operands.end(), weights.begin(), weights.end());
  return {b.op("grouped_linear", operands, {{"experts", int64_t{1}}})};
}

// Nor does that by its matrices.
std::vector<Val> products_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  std::vector<Val> operands;
  const int64_t e = attrs.get_int("expert"), K = b.dim(in[1], 1).const_value();
  for (const int64_t n : attrs.get_ints("rows")) operands.push_back(definition::filled(b, {n, K}, 0));
  const size_t weights = operands.size();
  for (const Val v : {in[1], in[2], definition::cut(b, in[3], 0, e, e + 2)}) operands.push_back(v);
  return derived_gradient(b, one_expert, operands, {}, in.first(1), weights);
}

// dbias (X, N): the sum of dy over each expert's rows, as a product with whose they are.
Val bias_gradient(Builder& b, Val dy, Val start, int64_t experts) {
  if (!b.status().ok()) return {};
  const int64_t P = b.dim(dy, 0).const_value();
  auto places = Tensor::allocate({1, P}, Format::f32());
  if (!places.ok()) return b.fail(places.status()), Val{};
  const auto values = places->mutable_values<float>();
  for (size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(k);
  const Val place = b.constant("", std::move(*places)), from = definition::real(b, start);
  const auto bound = [&](int64_t first) {
    return definition::reshaped(b, definition::cut(b, from, 0, first, first + experts), {-1, 1});
  };
  const Val own = b.op("logical_and", {b.op("greater_equal", {place, bound(0)}),  // (X, P)
                                       b.op("less", {place, bound(1)})});
  return b.op("matmul", {b.op("where", {own, b.scalar(1), b.scalar(0)}), dy});
}

std::vector<Val> rows_vjp(const Pullback& p) {
  Builder& b = p.b;
  std::vector<Val> out(p.in.size());
  if (p.wanted[0]) {
    std::vector<Val> in(p.in.begin(), p.in.end());
    in[0] = p.d[0], in[1] = in[3] = Val{};
    out[0] = emit(b, op_expert_rows_back, in, p.attrs)[0];
    // Back to tokens, of which a row may have several experts.
    const Attrs adding{{"reduction", std::string("add")}};
    if (p.in[1]) {
      const Val zeros = b.op("expand", {b.scalar(0), {}, p.in[0]});
      const Val rows = b.op("reshape", {p.in[1]}, {{"shape", std::vector<int64_t>{-1, 1}}});
      out[0] = b.op("scatter_nd", {zeros, rows, out[0]}, adding);
    }
  }
  const auto experts = static_cast<size_t>(p.attrs.get_int("experts"));
  if (p.wanted[3]) out[3] = bias_gradient(b, p.d[0], p.in[2], static_cast<int64_t>(experts));
  const size_t each = (p.in.size() - kFirstWeight) / experts;
  for (size_t e = 0; e < experts && b.status().ok(); ++e) {
    const size_t at = kFirstWeight + e * each;
    if (std::none_of(p.wanted.begin() + static_cast<ptrdiff_t>(at),
                     p.wanted.begin() + static_cast<ptrdiff_t>(at + each), [](uint8_t w) { return w != 0; }))
      continue;
    std::vector<int64_t> rows;
    for (size_t s = 0; s < each; ++s) rows.push_back(b.dim(p.in[at + s], 0).const_value());
    const Val in[] = {p.d[0], p.in[0], p.in[1], p.in[2]};
    const auto made = emit(b, op_expert_products, in, {{"expert", static_cast<int64_t>(e)}, {"rows", rows}});
    for (size_t s = 0; s < made.size(); ++s) out[at + s] = made[s];
  }
  return out;
}

}  // namespace

const OpDef op_expert_rows = {.name = "expert_rows",
                              .infer = rows_infer,
                              .define = rows_define,
                              .vjp = rows_vjp,
                              .by_kernels = rows_by_kernels,
                              .prepare = prepare_experts};
const OpDef op_expert_rows_back = {.name = "expert_rows_back",
                                   .infer = rows_back_infer,
                                   .define = rows_back_define,
                                   .by_kernels = rows_back_by_kernels};
const OpDef op_expert_products = {.name = "expert_products",
                                  .infer = products_infer,
                                  .define = products_define,
                                  .by_kernels = products_by_kernels};

}  // namespace oar::train
