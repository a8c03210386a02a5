// Products: matmul, its integer and quantized forms, determinants.
#include <optional>

#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/quantized.h"

namespace oar::tensor {
namespace {

struct PreparedMatmul {
  Tensor transposed;  // (N, K), in the operand's dtype
};

// A product of matrices and where its operands begin, for each entry of the batch.
struct Batched {
  int64_t M = 0, K = 0, N = 0;
  Shape shape;  // of the result
  std::vector<int64_t> at_a, at_b;
};

Result<Batched> batched_product(const Tensor& a, const Tensor& b) {
  OAR_RETURN_IF_ERROR(check_same_dtype(a, b));
  if (a.shape().rank() < 1 || b.shape().rank() < 1)
    return invalid_argument("operands need at least one axis");
  // A vector is a row on the left, a column on the right, and its axis vanishes again.
  const bool row = a.shape().rank() == 1, column = b.shape().rank() == 1;
  const Shape sa = row ? Shape({1, a.numel()}) : a.shape(), sb = column ? Shape({b.numel(), 1}) : b.shape();
  const int ra = sa.rank(), rb = sb.rank();
  Batched p;
  p.M = sa[ra - 2], p.K = sa[ra - 1], p.N = sb[rb - 1];
  if (sb[rb - 2] != p.K)
    return invalid_argument(cat("inner extents differ: ", sa.to_string(), " . ", sb.to_string()));
  const Shape batch_a(std::span(sa.begin(), static_cast<size_t>(ra - 2))),
      batch_b(std::span(sb.begin(), static_cast<size_t>(rb - 2)));
  OAR_ASSIGN(const Broadcast batch, Broadcast::make({&batch_a, &batch_b}));
  std::vector<int64_t> dims = dims_of(batch.shape());
  if (!row) dims.push_back(p.M);
  if (!column) dims.push_back(p.N);
  OAR_ASSIGN(p.shape, checked_shape(dims));
  if (rb == 2) {  // every batch entry meets the same matrix: one product
    p.M = extent(sa, 0, ra - 1);
    p.at_a = p.at_b = {0};
    return p;
  }
  batch.runs(0, batch.numel(), [&](int64_t, const auto& from, int64_t n, const auto& step) {
    for (int64_t k = 0; k < n; ++k) {
      p.at_a.push_back((from[0] + k * step[0]) * p.M * p.K);
      p.at_b.push_back((from[1] + k * step[1]) * p.K * p.N);
    }
  });
  return p;
}

}  // namespace

bool has_product_kernel(DType t) { return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16; }

Result<Tensor> matmul_tensors(const EvalContext& ctx, const Tensor& a, const Tensor& b) {
  OAR_ASSIGN(const Batched p, batched_product(a, b));
  OAR_ASSIGN(Tensor out, ctx.allocate(p.shape, dtype_of(a)));
  const bool known = dispatch_numeric(dtype_of(a), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    using S = std::conditional_t<std::is_integral_v<C>, uint64_t, double>;
    const auto number = [](const T& v) { return static_cast<S>(Element<T>::load(v)); };
    const auto count = static_cast<int64_t>(p.at_a.size());
    ctx.parallel(count * p.M, 1.0 * static_cast<double>(p.K * p.N), [&](int64_t begin, int64_t end) {
      std::vector<S> row(static_cast<size_t>(p.N));
      for (int64_t r = begin; r < end; ++r) {
        const auto e = static_cast<size_t>(r / p.M);
        const T* x = elements<T>(a) + p.at_a[e] + r % p.M * p.K;
        const T* w = elements<T>(b) + p.at_b[e];
        std::fill(row.begin(), row.end(), S{0});
        for (int64_t k = 0; k < p.K; ++k) {
          const S xk = number(x[k]);
          for (int64_t n = 0; n < p.N; ++n) row[static_cast<size_t>(n)] += xk * number(w[k * p.N + n]);
        }
        T* y = mutable_elements<T>(out) + r * p.N;
        for (int64_t n = 0; n < p.N; ++n)
          y[n] = Element<T>::store(static_cast<C>(row[static_cast<size_t>(n)]));
      }
    });
  });
  if (!known) return bad_dtype(a);
  return out;
}

Result<Tensor> matmul_by_kernels(const KernelContext& ctx, const Tensor& a_in, const Tensor& b_in,
                                 const Tensor* b_transposed) {
  OAR_ASSIGN(Batched at, batched_product(a_in, b_in));
  OAR_ASSIGN(const Tensor a, as_f32(ctx, a_in));
  OAR_ASSIGN(Tensor out, ctx.allocate(at.shape, DType::kF32));
  if (b_transposed) {
    OAR_RETURN_IF_ERROR(gemm_nt(ctx, at.M, at.N, at.K, elements<float>(a), at.K, b_transposed->data(),
                                b_transposed->format(), mutable_elements<float>(out), at.N));
    return from_f32(ctx, out, dtype_of(a_in));
  }
  OAR_ASSIGN(const Tensor b, as_f32(ctx, b_in));
  Products p;
  p.M = at.M, p.N = at.N, p.K = at.K;
  p.a = elements<float>(a), p.b = elements<float>(b), p.out = mutable_elements<float>(out);
  p.lda = p.K, p.b_row = p.N, p.b_col = 1;
  p.at_a = std::move(at.at_a), p.at_b = std::move(at.at_b);
  OAR_RETURN_IF_ERROR(packed_products(ctx, p));
  return from_f32(ctx, out, dtype_of(a_in));
}

Result<std::shared_ptr<const void>> prepare_matmul(PrepareContext& ctx) {
  if (!ctx.constant(1)) return std::shared_ptr<const void>();
  const Tensor& b = *ctx.constant(1);
  if (!has_product_kernel(dtype_of(b)) || b.shape().rank() != 2) return std::shared_ptr<const void>();
  auto p = std::make_shared<PreparedMatmul>();
  OAR_ASSIGN(
      p->transposed, ctx.pack(1, "transposed", {b.shape()[1], b.shape()[0]}, dtype_of(b), [&](Tensor& t) {
        if (dtype_of(b) == DType::kF32) {
          return transpose_f32(elements<float>(b), mutable_elements<float>(t), b.shape()[0], b.shape()[1]);
        }
        for (int64_t k = 0; k < b.shape()[0]; ++k) {
          for (int64_t n = 0; n < b.shape()[1]; ++n)
            mutable_elements<uint16_t>(t)[n * b.shape()[0] + k] = elements<uint16_t>(b)[k * b.shape()[1] + n];
        }
      }));
  return std::shared_ptr<const void>(std::move(p));
}

Status matmul(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor a, ctx.tensor(0));
  OAR_ASSIGN(const Tensor b, ctx.tensor(1));
  OAR_ASSIGN(Tensor y, matmul_tensors(ctx, a, b));
  ctx.set(0, std::move(y));
  return ok_status();
}

Result<bool> products(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor a, ctx.tensor(0));
  OAR_ASSIGN(const Tensor b, ctx.tensor(1));
  if (!has_product_kernel(dtype_of(a))) return false;
  const auto* p = ctx.prepared<PreparedMatmul>();
  OAR_ASSIGN(Tensor y, matmul_by_kernels(ctx, a, b, p ? &p->transposed : nullptr));
  ctx.set(0, std::move(y));
  return true;
}

namespace {

// 8-bit operand minus its zero point, as i32 for the product. The zero point is a scalar or one per row (of
// a) or column (of b).
Result<Tensor> centered(const EvalContext& ctx, size_t operand, size_t zero, bool by_row) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(operand));
  if (dtype_of(x) != DType::kI8 && dtype_of(x) != DType::kU8) return bad_dtype(x);
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), DType::kI32));
  std::vector<double> z{0};
  if (ctx.has(zero)) {
    OAR_ASSIGN(const Tensor t, ctx.tensor(zero));
    OAR_RETURN_IF_ERROR(check_number(t));
    z = to_doubles(t);
  }
  const int rank = x.shape().rank();
  const int64_t cols = x.shape().cols(), per = by_row && rank > 1 ? x.shape()[rank - 2] : cols;
  if (z.size() != 1 && static_cast<int64_t>(z.size()) != per)
    return invalid_argument("zero points do not match the operand");
  for (int64_t k = 0; k < x.numel(); ++k) {
    const int64_t at = z.size() == 1 ? 0 : by_row ? k / cols % per : k % cols;
    mutable_elements<int32_t>(y)[k] =
        static_cast<int32_t>(element_as_int(x, k) - static_cast<int64_t>(z[static_cast<size_t>(at)]));
  }
  return y;
}

Result<std::shared_ptr<const void>> prepare_matmul_integer(PrepareContext& ctx) {
  const Tensor* w = ctx.constant(1);
  if (!w || !is_byte(*w) || w->shape().rank() != 2 || w->numel() == 0) return std::shared_ptr<const void>();
  const int64_t K = w->shape()[0], M = w->shape()[1];
  return prepare_integer_weights(ctx, 1, 3, {M, 1, K, 1, 0, M});
}

// Of a device: rows are images of one pixel.
Lowered lower_matmul_integer(LowerContext& ctx) {
  const ValueInfo &x = ctx.operands[0], &w = ctx.operands[1];
  const int rank = x.shape.rank();
  if (ctx.backend.memory() != MemoryKind::kDevice || ctx.prepared == nullptr || !is_byte(x) || rank < 1 ||
      x.shape.numel() == 0 || x.shape[rank - 1] != w.shape[0])
    return not_lowered();
  WindowShape rows;
  rows.N = x.shape.numel() / w.shape[0];
  rows.H = rows.W = rows.OH = rows.OW = 1;
  std::vector<int64_t> dims = dims_of(x.shape);
  dims.back() = w.shape[1];
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  return lower_integers(ctx, rows, w.shape[0], shape);
}

// Operand i as integers; nullopt where it is of another kind.
std::optional<std::vector<int64_t>> integers(const EvalContext& ctx, size_t i) {
  std::vector<int64_t> v;
  if (!ctx.has(i)) return v;
  const Result<Tensor> t = ctx.tensor(i);
  if (!t.ok() || !is_byte(*t)) return std::nullopt;
  for (int64_t k = 0; k < t->numel(); ++k) v.push_back(element_as_int(*t, k));
  return v;
}

// Undefined where the operands are none for the kernel.
Result<Tensor> packed_matmul(const KernelContext& ctx, const IntegerWeights& w) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const int rank = x.shape().rank();
  const auto x_zero = integers(ctx, 2), w_zero = integers(ctx, 3);
  if (!is_byte(x) || rank < 1 || x.shape()[rank - 1] != w.K || !x_zero || x_zero->size() > 1 || !w_zero ||
      (w_zero->size() > 1 && static_cast<int64_t>(w_zero->size()) != w.M))
    return Tensor();
  WindowShape rows;
  rows.N = rows.H = rows.OH = 1;
  rows.W = rows.OW = w.K > 0 ? x.numel() / w.K : 0;
  OAR_ASSIGN(Tensor sums, integer_sums(ctx, w, rows, w.K, x,
                                       x_zero->empty() ? 0 : static_cast<int32_t>((*x_zero)[0]), *w_zero));
  std::vector<int64_t> dims = dims_of(x.shape());
  dims.back() = w.M;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  return sums.reshape(shape);
}

Status matmul_integer(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor a, centered(ctx, 0, 2, true));
  OAR_ASSIGN(const Tensor b, centered(ctx, 1, 3, false));
  OAR_ASSIGN(Tensor y, matmul_tensors(ctx, a, b));
  ctx.set(0, std::move(y));
  return ok_status();
}
// With a constant second operand.
Result<bool> integer_product(KernelContext& ctx) {
  const auto* prepared = ctx.prepared<IntegerWeights>();
  if (prepared == nullptr) return false;
  OAR_ASSIGN(Tensor y, packed_matmul(ctx, *prepared));
  const bool done = y.defined();
  if (done) ctx.set(0, std::move(y));
  return done;
}

// qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
Status qlinear_matmul(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor a, centered(ctx, 0, 2, true));
  OAR_ASSIGN(const Tensor b, centered(ctx, 3, 5, false));
  OAR_ASSIGN(const Tensor sa, ctx.tensor(1));
  OAR_ASSIGN(const Tensor sb, ctx.tensor(4));
  OAR_ASSIGN(const double sy, ctx.scalar(6));
  OAR_ASSIGN(const Tensor zy, ctx.tensor(7));
  OAR_ASSIGN(const Tensor sum, matmul_tensors(ctx, a, b));
  if (zy.numel() != 1 || dtype_of(sa) == DType::kString || dtype_of(sb) == DType::kString ||
      dtype_of(zy) == DType::kString) {
    return invalid_argument("scales and zero points must be numbers, the result's zero point a scalar");
  }
  const std::vector<double> va = to_doubles(sa), vb = to_doubles(sb);
  const int64_t cols = sum.shape().cols(),
                rows = sum.shape().rank() > 1 ? sum.shape()[sum.shape().rank() - 2] : 1;
  if ((va.size() != 1 && static_cast<int64_t>(va.size()) != rows) ||
      (vb.size() != 1 && static_cast<int64_t>(vb.size()) != cols)) {
    return invalid_argument("scales do not match the operands");
  }
  std::vector<double> out(static_cast<size_t>(sum.numel()));
  const auto zero = static_cast<double>(element_as_int(zy, 0));
  for (int64_t k = 0; k < sum.numel(); ++k) {
    const double s = va[va.size() == 1 ? 0 : static_cast<size_t>(k / cols % rows)] *
                     vb[vb.size() == 1 ? 0 : static_cast<size_t>(k % cols)] / sy;
    out[static_cast<size_t>(k)] = std::nearbyint(static_cast<double>(elements<int32_t>(sum)[k]) * s) + zero;
  }
  ctx.set(0, from_doubles(ctx, sum.shape(), dtype_of(zy), out));
  return ok_status();
}

// Determinants of the last two axes, by elimination with partial pivoting.
Status det(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const int rank = x.shape().rank();
  if (rank < 2 || x.shape()[rank - 1] != x.shape()[rank - 2] || !dtype_is_float(dtype_of(x)))
    return invalid_argument("needs square float matrices");
  const int64_t n = x.shape()[rank - 1], batch = extent(x.shape(), 0, rank - 2);
  const std::vector<double> all = to_doubles(x);
  std::vector<double> out;
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<double> m(all.begin() + b * n * n, all.begin() + (b + 1) * n * n);
    auto at = [&](int64_t r, int64_t c) -> double& { return m[static_cast<size_t>(r * n + c)]; };
    double d = 1;
    for (int64_t c = 0; c < n && d != 0; ++c) {
      int64_t pivot = c;
      for (int64_t r = c; r < n; ++r) pivot = std::abs(at(r, c)) > std::abs(at(pivot, c)) ? r : pivot;
      if (pivot != c) {
        d = -d;
        for (int64_t k = 0; k < n; ++k) std::swap(at(c, k), at(pivot, k));
      }
      d *= at(c, c);
      if (at(c, c) == 0) break;
      for (int64_t r = c + 1; r < n; ++r) {
        const double f = at(r, c) / at(c, c);
        for (int64_t k = c; k < n; ++k) at(r, k) -= f * at(c, k);
      }
    }
    out.push_back(d);
  }
  ctx.set(0, from_doubles(ctx, Shape(std::span(x.shape().begin(), static_cast<size_t>(rank - 2))),
                          dtype_of(x), out));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(det, tensor::det);
OAR_ROUNDING_OP(matmul_integer, tensor::matmul_integer, .by_kernels = tensor::integer_product,
                .prepare = tensor::prepare_matmul_integer, .lower = tensor::lower_matmul_integer);
OAR_ROUNDING_OP(qlinear_matmul, tensor::qlinear_matmul);
}  // namespace oar
