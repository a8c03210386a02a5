// rows_linear, rows_product, table_rows, rotate, barrier, accumulate (ops.h).
#include "engine/ops/train/stored_matrix.h"

#include <cmath>
#include <cstring>

#include "engine/ops/op_util.h"
#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

Status check_matrix(const Tensor& w) {
  if (w.shape().rank() != 2) return invalid_argument(cat("the weight is no matrix: ", w.shape().to_string()));
  return ok_status();
}

Types with_last(const Graph& g, Ids in, size_t axis) {
  DimVector shape = shape_of(g, in[0]);
  const DimVector& w = shape_of(g, in[1]);
  if (shape.empty() || w.size() != 2 || !(shape.back() == w[1 - axis]))
    return invalid_argument("x and the weight do not fit");
  shape.back() = w[axis];
  return std::vector<TensorType>{{Format::f32(), std::move(shape)}};
}

Types linear_infer(const Graph& g, Ids in, const Attrs&) { return with_last(g, in, 0); }
Types product_infer(const Graph& g, Ids in, const Attrs&) { return with_last(g, in, 1); }
Types table_infer(const Graph& g, Ids in, const Attrs&) {
  return std::vector<TensorType>{{Format::f32(), {shape_of(g, in[1])[0], shape_of(g, in[0])[1]}}};
}
Types first_infer(const Graph& g, Ids in, const Attrs&) {
  return std::vector<TensorType>{g.value(in[0]).type};
}

// The result of a product whose last axis becomes w's axis `axis`.
Result<Tensor> result(const EvalContext& ctx, const Tensor& x, const Tensor& w, int axis) {
  OAR_RETURN_IF_ERROR(check_matrix(w));
  if (!(x.format() == Format::f32()) || x.shape().rank() < 1 || x.shape().cols() != w.shape()[1 - axis])
    return invalid_argument(
        cat("operands ", x.shape().to_string(), " and ", w.shape().to_string(), " do not fit"));
  std::vector<int64_t> dims = tensor::dims_of(x.shape());
  dims.back() = w.shape()[axis];
  return ctx.allocate(Shape(dims), DType::kF32);
}

Result<bool> linear_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(Tensor y, result(ctx, x, w, 0));
  Tensor bias;
  if (ctx.has(2)) {
    OAR_ASSIGN(bias, ctx.tensor(2));
    if (!(bias.format() == Format::f32()) || !(bias.shape() == Shape{w.shape()[0]}))
      return invalid_argument("the bias must be f32 (N)");
  }
  const int64_t rows = x.numel() / std::max<int64_t>(x.shape().cols(), 1);
  if (!ctx.options().sizing)
    OAR_RETURN_IF_ERROR(stored_product(ctx, elements<float>(x), rows, w, ctx.prepared<StoredMatrix>(),
                                       bias.defined() ? elements<float>(bias) : nullptr,
                                       mutable_elements<float>(y)));
  ctx.set(0, std::move(y));
  return true;
}

Result<bool> product_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor dy, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(Tensor dx, result(ctx, dy, w, 1));
  const int64_t rows = dy.numel() / std::max<int64_t>(dy.shape().cols(), 1);
  OAR_RETURN_IF_ERROR(product_back(ctx, elements<float>(dy), rows, w, mutable_elements<float>(dx)));
  ctx.set(0, std::move(dx));
  return true;
}

Status table_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor table, ctx.tensor(0));
  OAR_ASSIGN(const Tensor ids, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_matrix(table));
  if (!(ids.format() == Format::i32()) || ids.shape().rank() != 1)
    return invalid_argument("ids must be i32 (T)");
  const int64_t T = ids.shape()[0], E = table.shape()[1];
  OAR_ASSIGN(Tensor y, ctx.allocate({T, E}, DType::kF32));
  if (!ctx.options().sizing) {
    const auto scale = static_cast<float>(ctx.attrs().get_float("scale", 1));
    for (int64_t t = 0; t < T; ++t) {
      const int64_t id = ids.values<int32_t>()[static_cast<size_t>(t)];
      if (id < 0 || id >= table.shape()[0])
        return invalid_argument(cat("id ", id, " is outside the vocabulary of ", table.shape()[0]));
      OAR_ASSIGN(const Tensor row, to_f32(table.slice(id, id + 1)));
      float* to = mutable_elements<float>(y) + t * E;
      std::memcpy(to, row.data(), static_cast<size_t>(E) * sizeof(float));
      if (scale != 1)
        for (int64_t c = 0; c < E; ++c) to[c] *= scale;
    }
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

Status rotate_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor positions, ctx.tensor(1));
  OAR_ASSIGN(const Tensor frequencies, ctx.tensor(2));
  const Shape& shape = x.shape();
  if (shape.rank() != 3 || !(x.format() == Format::f32()) || !(positions.format() == Format::i32()) ||
      !(positions.shape() == Shape{shape[0]}) || !(frequencies.format() == Format::f32()) ||
      2 * frequencies.numel() > shape[2])
    return invalid_argument("x is f32 (T, heads, D), positions i32 (T), frequencies f32 of at most D / 2");
  const int64_t heads = shape[1], D = shape[2], half = frequencies.numel();
  const bool pairs = ctx.attrs().get_bool("interleaved");
  const double mscale = ctx.attrs().get_float("mscale", 1), sign = ctx.attrs().get_bool("reverse") ? -1 : 1;
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  ctx.parallel(shape[0], static_cast<double>(heads * D + 40 * half), [&](int64_t begin, int64_t end) {
    std::vector<float> c(static_cast<size_t>(half)), s(c.size());
    for (int64_t t = begin; t < end; ++t) {
      const double position = positions.values<int32_t>()[static_cast<size_t>(t)];
      for (size_t k = 0; k < c.size(); ++k) {
        const double angle = position * static_cast<double>(frequencies.values<float>()[k]);
        c[k] = static_cast<float>(mscale * std::cos(angle));
        s[k] = static_cast<float>(sign * mscale * std::sin(angle));
      }
      for (int64_t h = 0; h < heads; ++h) {
        const float* const from = elements<float>(x) + (t * heads + h) * D;
        float* const to = mutable_elements<float>(y) + (t * heads + h) * D;
        for (int64_t k = 0; k < half; ++k) {
          const int64_t a = pairs ? 2 * k : k, b = pairs ? 2 * k + 1 : k + half;
          const auto i = static_cast<size_t>(k);
          to[a] = from[a] * c[i] - from[b] * s[i];
          to[b] = from[b] * c[i] + from[a] * s[i];
        }
        std::copy(from + 2 * half, from + D, to + 2 * half);
      }
    }
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

std::vector<Val> rotate_vjp(const Pullback& p) {
  Attrs attrs = p.attrs;
  attrs.set("reverse", int64_t{!p.attrs.get_bool("reverse")});
  std::vector<Val> out = emit(p.b, op_rotate, std::vector<Val>{p.d[0], p.in[1], p.in[2]}, std::move(attrs));
  out.resize(3);
  return out;
}

const OpDef& moe_route() { return *find_op("moe_route"); }
Types route_types(const Graph& g, Ids in, const Attrs& attrs) { return moe_route().infer(g, in, attrs); }
std::vector<Val> route_vjp(const Pullback& p) { return moe_route().vjp(p); }
Status route_evaluate(EvalContext& ctx) { return moe_route().evaluate(ctx); }

Status accumulate_evaluate(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor sum, ctx.tensor(0));
  OAR_ASSIGN(const Tensor x, ctx.tensor(1));
  if (!(sum.format() == Format::f32()) || !(x.format() == Format::f32()) || !(sum.shape() == x.shape()))
    return invalid_argument(
        cat("sum ", sum.shape().to_string(), " and x ", x.shape().to_string(), " must be f32 of one shape"));
  float* const to = static_cast<float*>(sum.mutable_data());
  const float* const from = elements<float>(x);
  ctx.parallel(sum.numel(), 0.5, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) to[k] += from[k];
  });
  ctx.set(0, sum);
  return ok_status();
}

Status barrier_evaluate(EvalContext& ctx) {
  ctx.set(0, ctx.datum(0));
  return ok_status();
}

// Whether the kernel of this format reads rows as they are stored.
bool in_place(const Backend& backend, const Tensor& w) {
  const auto bytes = backend.packed_bytes(w.format(), w.shape()[0], w.shape()[1]);
  return bytes.ok() && *bytes == 0;
}

}  // namespace

Result<std::shared_ptr<const void>> prepare_matrix(PrepareContext& ctx, size_t operand) {
  const Tensor* const w = ctx.constant(operand);
  const std::shared_ptr<const void> none;
  if (w == nullptr || w->shape().rank() != 2 || in_place(ctx.backend(), *w)) return none;
  const int64_t n = w->shape()[0], k = w->shape()[1];
  OAR_ASSIGN(const uint64_t bytes, ctx.backend().packed_bytes(w->format(), n, k));
  auto out = std::make_shared<StoredMatrix>();
  Status packed;
  // From the store: nodes that read the same matrix share it.
  OAR_ASSIGN(out->packed,
             ctx.pack(operand, "rows_linear", {static_cast<int64_t>(bytes)}, DType::kI8, [&](Tensor& to) {
               packed = ctx.backend().pack(w->format(), w->format(), n, k, to.mutable_data(), w->data());
             }));
  OAR_RETURN_IF_ERROR(packed);
  return std::shared_ptr<const void>(std::move(out));
}

Status stored_product(const KernelContext& ctx, const float* x, int64_t rows, const Tensor& w,
                      const StoredMatrix* stored, const float* bias, float* out) {
  const int64_t n = w.shape()[0], k = w.shape()[1];
  if (rows == 0 || n == 0) return ok_status();
  const Kernel* const kernel = ctx.backend().find_kernel({KernelFamily::kMatmul, w.format()});
  if (kernel == nullptr || (stored == nullptr && !in_place(ctx.backend(), w)))
    return unimplemented(cat("no product with a matrix of ", w.format().name()));
  const MatmulSegment segment{stored != nullptr ? stored->packed.data() : w.data(), bias, n, 0};
  MatmulArgs args;
  args.out = out, args.x = x;
  args.segments = &segment, args.num_segments = 1;
  args.T = rows, args.K = k, args.ldx = k, args.ldo = n;
  args.format = w.format();
  return tensor::run_kernel(ctx, *kernel, &args, static_cast<double>(rows * n) * static_cast<double>(k) / 6);
}

Status product_back(const KernelContext& ctx, const float* dy, int64_t rows, const Tensor& w, float* out,
                    int64_t ldy) {
  const int64_t n = w.shape()[0], k = w.shape()[1];
  tensor::Products p;
  p.M = rows, p.N = k, p.K = n;
  p.a = dy, p.out = out;
  p.lda = ldy > 0 ? ldy : n, p.b_row = k, p.b_col = 1;
  p.at_a = p.at_b = {0};
  if (w.format() == Format::f32()) {
    p.b = elements<float>(w);
    return tensor::packed_products(ctx, p);
  }
  OAR_ASSIGN(Tensor decoded, ctx.allocate(w.shape(), DType::kF32));
  p.b = elements<float>(decoded);
  if (!ctx.options().sizing) {
    const int64_t stride = w.format().stride(k);
    ctx.parallel(n, static_cast<double>(k), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        w.format().decode_row(static_cast<const std::byte*>(w.data()) + r * stride, k,
                              mutable_elements<float>(decoded) + r * k);
    });
  }
  return tensor::packed_products(ctx, p);
}

std::vector<Val> emit(Builder& b, const OpDef& op, std::span<const Val> inputs, Attrs attrs) {
  std::vector<ValueId> ids;
  for (const Val v : inputs) ids.push_back(v.id);
  if (!b.status().ok()) return {};
  auto made = b.graph().add_node(&op, std::move(ids), std::move(attrs));
  if (!made.ok()) return b.fail(made.status()), std::vector<Val>{};
  std::vector<Val> out;
  for (const ValueId v : *made) out.push_back({v});
  return out;
}

const OpDef op_rows_linear = {.name = "rows_linear",
                              .infer = linear_infer,
                              .by_kernels = linear_by_kernels,
                              .prepare = prepare_stored_matrix<1>};
const OpDef op_rows_product = {
    .name = "rows_product", .infer = product_infer, .by_kernels = product_by_kernels};
const OpDef op_table_rows = {.name = "table_rows", .infer = table_infer, .evaluate = table_evaluate};
const OpDef op_rotate = {
    .name = "rotate", .infer = first_infer, .vjp = rotate_vjp, .evaluate = rotate_evaluate};
const OpDef op_route = {.name = "route", .infer = route_types, .vjp = route_vjp, .evaluate = route_evaluate};
const OpDef op_barrier = {
    .name = "barrier", .infer = first_infer, .evaluate = barrier_evaluate, .view = true, .impure = true};
const OpDef op_accumulate = {
    .name = "accumulate", .effect = true, .infer = first_infer, .evaluate = accumulate_evaluate};

}  // namespace oar::train
