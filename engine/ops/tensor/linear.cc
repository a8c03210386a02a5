// linear() in ordinary models: any dtype, weights that may be computed, a bias and a residual that broadcast.
// One constant f32 matrix is packed once and goes with its bias, residual and activation through one kernel.
#include "engine/ops/tensor/linear.h"

#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/tensor/narrow.h"

namespace oar::tensor {
namespace {

struct PreparedLinear {
  Tensor packed;                        // f32
  std::optional<NarrowWeights> narrow;  // instead of `packed`
  Tensor rows;                          // (N, K) of 16 bits, instead of both
  int64_t K = 0, N = 0;
};

bool input_major(const Attrs& attrs) { return attrs.get_int("input_major") != 0; }

// Floats as they are summed: the result is rounded once, however much is added to it. Kernels sum in f32.
Result<Tensor> wide(const EvalContext& ctx, const Tensor& t) {
  if (!dtype_is_float(dtype_of(t))) return t;
  return as_f64(ctx, t);
}
Result<Tensor> rounded(const EvalContext& ctx, const Tensor& t, DType dtype) {
  if (!dtype_is_float(dtype)) return t;
  return from_f64(ctx, t, dtype);
}
Result<Tensor> wide(const KernelContext& ctx, const Tensor& t) { return as_f32(ctx, t); }
Result<Tensor> rounded(const KernelContext& ctx, const Tensor& t, DType dtype) {
  return from_f32(ctx, t, dtype);
}

Result<Tensor> turned(const EvalContext& ctx, const Tensor& t) {
  OAR_ASSIGN(Tensor out, ctx.allocate({t.shape()[1], t.shape()[0]}, dtype_of(t)));
  if (ctx.options().sizing) return out;
  dispatch_move(t, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t r = 0; r < t.shape()[0]; ++r) {
      for (int64_t c = 0; c < t.shape()[1]; ++c)
        mutable_elements<T>(out)[c * t.shape()[0] + r] = elements<T>(t)[r * t.shape()[1] + c];
    }
  });
  return out;
}

// activation(y + t), broadcast; in the dtype of y.
Result<Tensor> plus(const EvalContext& ctx, const Tensor& y, const Tensor& t, const Activation& act) {
  OAR_RETURN_IF_ERROR(check_same_dtype(y, t));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&y.shape(), &t.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), dtype_of(y)));
  const bool known = dispatch_numeric(dtype_of(y), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    zip_elements<T, T>(ctx, b, y, t, out, [&](C u, C v) {
      if constexpr (std::is_integral_v<C>) {
        using U = std::make_unsigned_t<C>;
        return static_cast<C>(static_cast<U>(u) + static_cast<U>(v));
      } else {
        return act.given() ? static_cast<C>(act.apply(static_cast<double>(u + v))) : u + v;
      }
    });
  });
  if (!known) return bad_dtype(y);
  return out;
}

// A bias of another shape than (N) may repeat along the result's axes, never enlarge it.
Result<Tensor> biased(const EvalContext& ctx, const Tensor& y, const Tensor& bias) {
  OAR_ASSIGN(Tensor sum, plus(ctx, y, bias, {}));
  if (!(sum.shape() == y.shape())) {
    return invalid_argument(cat("the bias ", bias.shape().to_string(), " does not broadcast to the result ",
                                y.shape().to_string()));
  }
  return sum;
}

bool one_per_column(const Shape& bias, int64_t N) {
  return bias.rank() > 0 && bias.numel() == N && bias[bias.rank() - 1] == N;
}

Result<Tensor> matrix(const EvalContext& ctx, size_t k) {
  OAR_ASSIGN(Tensor w, ctx.tensor(k));
  if (w.shape().rank() != 2) return invalid_argument(cat("the weight is no matrix: ", w.shape().to_string()));
  return w;
}

// x . w for weight operand k.
Result<Tensor> product(const EvalContext& ctx, const Tensor& x, size_t k, const PreparedLinear*) {
  OAR_ASSIGN(Tensor w, matrix(ctx, k));
  OAR_ASSIGN(w, wide(ctx, w));
  if (!input_major(ctx.attrs())) { OAR_ASSIGN(w, turned(ctx, w)); }
  return matmul_tensors(ctx, x, w);
}
Result<Tensor> product(const KernelContext& ctx, const Tensor& x, size_t k, const PreparedLinear* p) {
  OAR_ASSIGN(Tensor w, matrix(ctx, k));
  if (p == nullptr && !input_major(ctx.attrs()) && w.shape()[1] == x.shape().cols()) {
    // As the kernel reads it.
    const int64_t K = w.shape()[1], N = w.shape()[0];
    std::vector<int64_t> dims = dims_of(x.shape());
    dims.back() = N;
    OAR_ASSIGN(const Shape shape, checked_shape(dims));
    OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
    const int64_t rows = K > 0 ? x.numel() / K : extent(shape, 0, shape.rank() - 1);
    OAR_RETURN_IF_ERROR(
        gemm_nt(ctx, rows, N, K, elements<float>(x), K, w.data(), w.format(), mutable_elements<float>(y), N));
    return y;
  }
  if (p != nullptr) {
    w = Tensor::without_bytes({p->K, p->N}, Format::f32());
  } else {
    OAR_ASSIGN(w, wide(ctx, w));
    if (!input_major(ctx.attrs())) { OAR_ASSIGN(w, turned(ctx, w)); }
  }
  return matmul_by_kernels(ctx, x, w, p != nullptr ? &p->rows : nullptr);
}

// Results of several weights beside each other.
Result<Tensor> joined(const EvalContext& ctx, const std::vector<Tensor>& parts) {
  int64_t N = 0;
  for (const Tensor& t : parts) N += t.shape().cols();
  std::vector<int64_t> dims = dims_of(parts[0].shape());
  dims.back() = N;
  OAR_ASSIGN(Tensor y, ctx.allocate(Shape(dims), dtype_of(parts[0])));
  if (ctx.options().sizing) return y;
  const auto bytes = static_cast<int64_t>(y.bytes()) / std::max<int64_t>(y.numel(), 1);
  int64_t column = 0;
  for (const Tensor& t : parts) {
    const int64_t n = t.shape().cols(), rows = n > 0 ? t.numel() / n : 0;
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(static_cast<std::byte*>(y.mutable_data()) + (r * N + column) * bytes,
                  static_cast<const std::byte*>(t.data()) + r * n * bytes, static_cast<size_t>(n * bytes));
    }
    column += n;
  }
  return y;
}

// Which operands of the node are what.
constexpr uint8_t kLinearX = 0, kLinearResidual = 1, kLinearBias = 3;

// The calls of kernels: result 0 (rows, N) = activation(x . w + bias + residual).
std::unique_ptr<LoweredOp> linear_calls(const Backend& backend, const PreparedLinear& p, int64_t rows,
                                        const Activation& act) {
  if (p.narrow) {
    // Each row is an image of one pixel: it has a scale of its own.
    WindowShape window;
    window.N = rows, window.H = window.W = window.OH = window.OW = 1;
    return narrow_calls(backend, *p.narrow, {window, p.K, p.N, kLinearX, kLinearBias, kLinearResidual, act});
  }
  PackedProduct c;
  c.rows = rows, c.K = p.K, c.N = p.N;
  c.w = elements<float>(p.packed);
  c.activation = act;
  return part_call(
             f32_kernel(backend, KernelFamily::kConv), product_args(backend, c), product_cost(c), {}, {},
             [](ConvArgs& a, const Operand* in, const Operand* out) {
               a.out = out[0].as<float>(), a.x = in[kLinearX].as<const float>();
               a.bias = in[kLinearBias].as<const float>(), a.residual = in[kLinearResidual].as<const float>();
             })
      .op;
}

// Result, with what the kernel does not add still to come: `bias` and `residual` are left undefined where it
// does.
Result<Tensor> packed_linear(KernelContext& ctx, const PreparedLinear& p, const Tensor& x, Tensor& bias,
                             Tensor& residual, const Activation& act) {
  if (dtype_of(x) != DType::kF32) return bad_dtype(x);
  std::vector<int64_t> dims = dims_of(x.shape());
  if (dims.back() != p.K) {
    return invalid_argument(
        cat("inner extents differ: ", x.shape().to_string(), " . [", p.K, ", ", p.N, "]"));
  }
  dims.back() = p.N;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  const float *added_bias = nullptr, *added = nullptr;
  if (bias.defined() && dtype_of(bias) == DType::kF32 && one_per_column(bias.shape(), p.N)) {
    added_bias = elements<float>(bias);
  }
  const bool early = added_bias != nullptr || !bias.defined();
  const bool fused =
      early && residual.defined() && dtype_of(residual) == DType::kF32 && residual.shape() == shape;
  Tensor y;
  if (fused) {
    OAR_ASSIGN(y, ctx.allocate_over(1, residual, shape, DType::kF32));
    added = elements<float>(residual);
  } else {
    OAR_ASSIGN(y, ctx.allocate(shape, DType::kF32));
  }
  const int64_t rows = x.numel() / std::max<int64_t>(p.K, 1);
  if (rows > 0) {
    const Activation now = early && (fused || !residual.defined()) ? act : Activation();
    const Operand in[] = {memory_at(x.data()), memory_at(added), {}, memory_at(added_bias)},
                  out[] = {memory_at(y.data())};
    OAR_RETURN_IF_ERROR(run_lowered(*linear_calls(ctx.backend(), p, rows, now), in, out, ctx));
  }
  if (added_bias != nullptr) bias = {};
  if (fused) residual = {};
  return y;
}

}  // namespace

Result<std::shared_ptr<const void>> prepare_linear(PrepareContext& ctx) {
  const Tensor* const constant = ctx.constant(2);
  const std::shared_ptr<const void> none;
  if (constant == nullptr || ctx.node().inputs.size() > 4 || constant->shape().rank() != 2 ||
      constant->numel() == 0) {
    return none;
  }
  const Tensor& w = *constant;
  const bool columns = input_major(ctx.node().attrs);
  auto p = std::make_shared<PreparedLinear>();
  p->K = w.shape()[columns ? 0 : 1], p->N = w.shape()[columns ? 1 : 0];
  const int64_t stride_n = columns ? 1 : p->K, stride_k = columns ? p->N : 1;
  const DType dtype = dtype_of(w);
  if (dtype == DType::kF16 || dtype == DType::kBF16) {
    p->rows = w;
    if (!columns) return std::shared_ptr<const void>(std::move(p));
    OAR_ASSIGN(p->rows, ctx.pack(2, "rows", {p->N, p->K}, dtype, [&](Tensor& t) {
      for (int64_t n = 0; n < p->N; ++n) {
        for (int64_t k = 0; k < p->K; ++k)
          mutable_elements<uint16_t>(t)[n * p->K + k] = elements<uint16_t>(w)[k * p->N + n];
      }
    }));
    ctx.spend(2);
    return std::shared_ptr<const void>(std::move(p));
  }
  if (dtype != DType::kF32 || ctx.backend().find_kernel({KernelFamily::kConv, Format::f32()}) == nullptr)
    return none;
  if (has_narrow_kernels(ctx.backend(), precision_of(ctx.node().attrs))) {
    OAR_ASSIGN(p->narrow, prepare_narrow(ctx, {2, p->N, 1, p->K, stride_n, 0, stride_k}));
  } else {
    const int64_t width = ctx.backend().filter_panel();
    const Shape floats{packed_filter_floats(p->N, 1, 1, p->K, width)};
    OAR_ASSIGN(p->packed, ctx.pack(2, columns ? "filters of columns" : "filters of rows", floats, DType::kF32,
                                   [&](Tensor& t) {
                                     pack_filters(mutable_elements<float>(t), elements<float>(w), p->N, 1, 1,
                                                  p->K, stride_n, stride_k, 0, width);
                                   }));
  }
  ctx.spend(2);
  return std::shared_ptr<const void>(std::move(p));
}

namespace {

Status check_operand(const EvalContext& ctx, const Tensor& x) {
  const int rank = x.shape().rank();
  if (rank >= 1 && (ctx.attrs().get_int("matrix") == 0 || rank == 2)) return ok_status();
  return invalid_argument(cat("an operand ", x.shape().to_string(), " for a matrix product"));
}

// What the product lacks is added to y, whatever its shape.
template <class Context>
Result<Tensor> finished(const Context& ctx, Tensor y, const Tensor& residual, const Activation& act) {
  const bool by_kernel = std::is_same_v<Context, KernelContext> && dtype_of(y) == DType::kF32;
  if (residual.defined()) {
    OAR_ASSIGN(const Tensor added, wide(ctx, residual));
    OAR_ASSIGN(y, plus(ctx, y, added, by_kernel ? Activation{} : act));
    if (!by_kernel) return y;
  }
  if (!act.given()) return y;
  if constexpr (std::is_same_v<Context, KernelContext>) {
    if (by_kernel) {
      ActivateArgs a;
      a.out = mutable_elements<float>(y), a.x = elements<float>(y), a.n = y.numel();
      a.epilogue = act.kind, a.alpha = act.alpha, a.beta = act.beta;
      OAR_RETURN_IF_ERROR(
          run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kActivate), &a, static_cast<double>(a.n)));
      return y;
    }
  }
  if (!dispatch_float(dtype_of(y), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        map_elements<T, T>(ctx, y, y, 5.0,
                           [&](C v) { return static_cast<C>(act.apply(static_cast<double>(v))); });
      }))
    return bad_dtype(y);
  return y;
}

// Operands of any shape that broadcasts, of one dtype.
template <class Context>
Result<Tensor> sums(const Context& ctx, const Tensor& x, const Activation& act, const PreparedLinear* p) {
  for (size_t k = 1; k < ctx.num_inputs(); ++k) {
    if (!ctx.has(k)) continue;
    OAR_ASSIGN(const Tensor operand, ctx.tensor(k));
    OAR_RETURN_IF_ERROR(check_same_dtype(x, operand));
  }
  OAR_ASSIGN(const Tensor wide_x, wide(ctx, x));
  std::vector<Tensor> parts;
  for (size_t k = 2; k < ctx.num_inputs(); k += 2) {
    OAR_ASSIGN(Tensor part, product(ctx, wide_x, k, p));
    if (ctx.has(k + 1)) {
      OAR_ASSIGN(Tensor bias, ctx.tensor(k + 1));
      OAR_ASSIGN(bias, wide(ctx, bias));
      OAR_ASSIGN(part, biased(ctx, part, bias));
    }
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return invalid_argument("there is no weight");
  Tensor y = parts[0], residual;
  if (parts.size() > 1) { OAR_ASSIGN(y, joined(ctx, parts)); }
  if (ctx.has(1)) { OAR_ASSIGN(residual, ctx.tensor(1)); }
  OAR_ASSIGN(y, finished(ctx, std::move(y), residual, act));
  return rounded(ctx, y, dtype_of(x));
}

}  // namespace

Status linear(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_RETURN_IF_ERROR(check_operand(ctx, x));
  OAR_ASSIGN(const Activation act, activation_of(ctx.attrs()));
  const EvalContext& plain = ctx;
  OAR_ASSIGN(Tensor y, sums(plain, x, act, nullptr));
  ctx.set(0, std::move(y));
  return ok_status();
}

Result<bool> linear_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_RETURN_IF_ERROR(check_operand(ctx, x));
  OAR_ASSIGN(const Activation act, activation_of(ctx.attrs()));
  const auto* const p = ctx.prepared<PreparedLinear>();
  Tensor y;
  if (p != nullptr && !p->rows.defined()) {
    Tensor bias, residual;
    if (ctx.has(1)) { OAR_ASSIGN(residual, ctx.tensor(1)); }
    if (ctx.has(3)) { OAR_ASSIGN(bias, ctx.tensor(3)); }
    OAR_ASSIGN(y, packed_linear(ctx, *p, x, bias, residual, act));
    const bool whole = !bias.defined() && !residual.defined();
    if (bias.defined()) { OAR_ASSIGN(y, biased(ctx, y, bias)); }
    if (!whole) { OAR_ASSIGN(y, finished(ctx, std::move(y), residual, act)); }
  } else {
    if (!has_product_kernel(dtype_of(x))) return false;
    const KernelContext& kernels = ctx;
    OAR_ASSIGN(y, sums(kernels, x, act, p));
  }
  ctx.set(0, std::move(y));
  return true;
}

Lowered lower_linear(LowerContext& ctx) {
  const auto* const p = static_cast<const PreparedLinear*>(ctx.prepared);
  const ValueInfo& x = ctx.operands[0];
  const int rank = x.shape.rank();
  if (p == nullptr || p->rows.defined() || !is_f32(x) || rank < 1 || x.shape.numel() == 0 ||
      (ctx.node.attrs.get_int("matrix") != 0 && rank != 2) || x.shape[rank - 1] != p->K)
    return not_lowered();
  std::vector<int64_t> dims = dims_of(x.shape);
  dims.back() = p->N;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  const bool residual = ctx.given(1);
  if (ctx.given(3) && (!is_f32(ctx.operands[3]) || !one_per_column(ctx.operands[3].shape, p->N)))
    return not_lowered();
  if (residual && (!is_f32(ctx.operands[1]) || !(ctx.operands[1].shape == shape))) return not_lowered();
  OAR_ASSIGN(const Activation act, activation_of(ctx.node.attrs));
  std::unique_ptr<LoweredOp> op = linear_calls(ctx.backend, *p, x.shape.numel() / p->K, act);
  op->overwrites = residual ? 1 << kLinearResidual : 0;
  ctx.results->assign(1, {Format::f32(), shape, true});
  return op;
}

}  // namespace oar::tensor
