// Elementwise ops of one operand. Floats narrower than f32 are computed in f32 and rounded once.
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/kernel_call.h"
#include "kernels/activation.h"

namespace oar::tensor {
namespace {

// The kernel for operands of f32, or of f16 and bf16 by way of it: result(x, y) fills in y of x, both f32.
// False for other dtypes.
template <class F>
Result<bool> through_f32(KernelContext& ctx, F&& result) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  const DType dtype = dtype_of(x);
  if (dtype == DType::kF16 || dtype == DType::kBF16) {
    OAR_ASSIGN(x, as_f32(ctx, x));
    OAR_RETURN_IF_ERROR(result(x, x));
    OAR_ASSIGN(Tensor y, from_f32(ctx, x, dtype));
    ctx.set(0, std::move(y));
    return true;
  }
  if (dtype != DType::kF32) return false;
  OAR_ASSIGN(Tensor y, ctx.allocate_over(0, x, x.shape(), DType::kF32));
  OAR_RETURN_IF_ERROR(result(x, y));
  ctx.set(0, std::move(y));
  return true;
}

// In double: ops whose kernels are held against this.
template <class F>
Status unary_double(EvalContext& ctx, double cost, F&& f) {
  return unary_float(ctx, cost, [&](auto x) { return static_cast<decltype(x)>(f(static_cast<double>(x))); });
}

// Rough nanoseconds per element, for the decision to go parallel.
constexpr double kCheap = 0.3, kCostly = 5;

double attr(const EvalContext& ctx, const char* name, double fallback) {
  return ctx.attrs().get_float(name, fallback);
}

// A negated unsigned or smallest signed integer wraps.
template <class T>
T negate(T x) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(0 - static_cast<uint64_t>(x));
  else return -x;
}

template <class C>
C sigmoid_of(C x) {
  // Of the two spellings the one that cannot overflow.
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const C e = std::exp(x);
  return e / (1 + e);
}
template <class C>
C softplus_of(C x) {
  return std::max(x, C{0}) + std::log1p(std::exp(-std::abs(x)));
}

// ---- float

Status acos(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::acos(x); });
}
Status acosh(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::acosh(x); });
}
Status asin(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::asin(x); });
}
Status asinh(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::asinh(x); });
}
Status atan(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::atan(x); });
}
Status atanh(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::atanh(x); });
}
Status cosh(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::cosh(x); });
}
Status sinh(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::sinh(x); });
}
Status tan(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return std::tan(x); });
}
Status ceil(EvalContext& c) {
  return unary_float(c, kCheap, [](auto x) { return std::ceil(x); });
}
Status round(EvalContext& c) {
  return unary_float(c, kCheap, [](auto x) { return std::nearbyint(x); });
}
Status thresholded_relu(EvalContext& c) {
  const double alpha = attr(c, "alpha", 1);
  return unary_float(c, kCheap,
                     [=](auto x) { return x > static_cast<decltype(x)>(alpha) ? x : decltype(x){0}; });
}

// ---- numeric

Status sign(EvalContext& c) {
  return unary_numeric(c, kCheap, [](auto x) -> decltype(x) {
    if constexpr (std::is_floating_point_v<decltype(x)>) {
      if (std::isnan(x)) return x;
    }
    return static_cast<decltype(x)>((x > 0) - (x < 0));
  });
}
Status shrink(EvalContext& c) {
  const double bias = attr(c, "bias", 0), lambd = attr(c, "lambd", 0.5);
  return unary_numeric(c, kCheap, [=](auto x) {
    const auto v = static_cast<double>(x);
    const double y = v < -lambd ? v + bias : v > lambd ? v - bias : 0;
    using C = decltype(x);
    if constexpr (std::is_integral_v<C>) return saturate_cast<C>(y);
    else return static_cast<C>(y);
  });
}

// min(max(x, low), high); a NaN of x stays.
Status check_bounds(const EvalContext& ctx, const Tensor& x) {
  for (size_t k : {size_t{1}, size_t{2}}) {
    if (!ctx.has(k)) continue;
    OAR_ASSIGN(const Tensor bound, ctx.tensor(k));
    OAR_RETURN_IF_ERROR(check_same_dtype(x, bound));
    if (bound.numel() != 1) return invalid_argument("bounds must be scalars");
  }
  return ok_status();
}
Result<bool> clip_by_kernel(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_RETURN_IF_ERROR(check_bounds(ctx, x));
  if (!dtype_is_float(dtype_of(x))) return false;
  const auto bound = [&](size_t k, double none) {
    return ctx.has(k) ? element_as_double(ctx.datum(k).tensor, 0) : none;
  };
  const double low = bound(1, -INFINITY), high = bound(2, INFINITY);
  if (low != low || high != high) return false;  // a bound that is no number holds nothing
  return activate_by_kernel(ctx, Epilogue::kClamp, low, high);
}
// Between bounds that are constants.
Lowered lower_clip(LowerContext& ctx) {
  if (!ctx.in_run()) return not_lowered();
  double bounds[] = {-INFINITY, INFINITY};
  for (const size_t k : {size_t{1}, size_t{2}}) {
    if (!ctx.given(k)) continue;
    const Value& v = ctx.graph.value(ctx.node.inputs[k]);
    if (v.kind != ValueKind::kConstant || !v.constant.has_bytes() || v.constant.numel() != 1 ||
        v.constant.format() != Format::f32())
      return not_lowered();
    bounds[k - 1] = element_as_double(v.constant, 0);
    if (std::isnan(bounds[k - 1])) return not_lowered();
    ctx.taken.push_back(k);
  }
  return lower_activate(ctx, Epilogue::kClamp, bounds[0], bounds[1]);
}
Status clip(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_RETURN_IF_ERROR(check_bounds(ctx, x));
  OAR_ASSIGN(Tensor y, ctx.allocate_over(0, x, x.shape(), dtype_of(x)));
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        const bool has_low = ctx.has(1), has_high = ctx.has(2);
        const C low = has_low ? Element<T>::load(*elements<T>(ctx.datum(1).tensor)) : C{};
        const C high = has_high ? Element<T>::load(*elements<T>(ctx.datum(2).tensor)) : C{};
        map_elements<T, T>(ctx, x, y, kCheap, [=](C v) {
          if (has_low && v < low) v = low;
          if (has_high && v > high) v = high;
          return v;
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// ---- to bool, and bits

Status is_nan(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.zeros(x.shape(), DType::kBool));
  auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_floating_point_v<typename Element<T>::Compute>) {
      map_elements<T, uint8_t>(ctx, x, y, kCheap, [](auto v) { return static_cast<uint8_t>(std::isnan(v)); });
    }
  };
  if (!dispatch_float(dtype_of(x), run) && !dispatch_narrow(dtype_of(x), run)) return bad_dtype(x);
  ctx.set(0, std::move(y));
  return ok_status();
}

Status is_inf(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.zeros(x.shape(), DType::kBool));
  const bool negative = ctx.attrs().get_int("detect_negative", 1) != 0;
  const bool positive = ctx.attrs().get_int("detect_positive", 1) != 0;
  auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_floating_point_v<typename Element<T>::Compute>) {
      map_elements<T, uint8_t>(ctx, x, y, kCheap, [=](auto v) {
        return static_cast<uint8_t>(std::isinf(v) && (v < 0 ? negative : positive));
      });
    }
  };
  if (!dispatch_float(dtype_of(x), run) && !dispatch_narrow(dtype_of(x), run)) return bad_dtype(x);
  ctx.set(0, std::move(y));
  return ok_status();
}

Status logical_not(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  if (dtype_of(x) != DType::kBool) return bad_dtype(x);
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), DType::kBool));
  map_elements<uint8_t, uint8_t>(ctx, x, y, kCheap, [](uint8_t v) { return static_cast<uint8_t>(!v); });
  ctx.set(0, std::move(y));
  return ok_status();
}

Status bitwise_not(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.allocate_over(0, x, x.shape(), dtype_of(x)));
  if (!dispatch_integer(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        map_elements<T, T>(ctx, x, y, kCheap, [](T v) { return static_cast<T>(~v); });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

Status identity(EvalContext& ctx) {
  ctx.set(0, ctx.datum(0));
  return ok_status();
}
Status none(EvalContext& ctx) {
  ctx.set(0, Datum());
  return ok_status();
}

}  // namespace

Result<bool> unary_by_kernel(KernelContext& ctx, UnaryOp op) {
  if (ctx.datum(0).is_tensor() && dtype_of(ctx.datum(0).tensor) == DType::kF32) return false;
  return through_f32(ctx, [&](const Tensor& x, Tensor& y) {
    UnaryArgs a;
    a.out = mutable_elements<float>(y), a.x = elements<float>(x), a.n = x.numel(), a.op = op;
    return run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kUnary), &a,
                      unary_nanoseconds(op) * static_cast<double>(a.n));
  });
}

Result<bool> silu_by_kernels(KernelContext& ctx) {
  const auto alpha = static_cast<float>(attr(ctx, "alpha", 1));
  if (alpha == 1) return unary_by_kernel(ctx, UnaryOp::kSilu);
  return through_f32(ctx, [&](const Tensor& x, Tensor& y) -> Status {
    OAR_ASSIGN(Tensor gate, ctx.allocate(x.shape(), DType::kF32));
    const auto n = static_cast<double>(x.numel());
    float* const z = mutable_elements<float>(gate);
    ctx.parallel(x.numel(), 0.1, [&](int64_t begin, int64_t end) {
      scale_and_shift(elements<float>(x) + begin, z + begin, end - begin, alpha, 0);
    });
    UnaryArgs u;
    u.out = z, u.x = z, u.n = x.numel(), u.op = UnaryOp::kSigmoid;
    OAR_RETURN_IF_ERROR(
        run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kUnary), &u, unary_nanoseconds(u.op) * n));
    BinaryArgs b;
    b.out = mutable_elements<float>(y), b.a = elements<float>(x), b.b = z;
    b.rows = 1, b.cols = x.numel(), b.b_row = b.b_col = 1, b.op = BinaryOp::kMul;
    return run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kBinary), &b, 0.2 * n);
  });
}

// Of operand 0 in f32. Devices have none of the kinds behind kGeluTanh; where types are known their
// definitions run, as there, so that a language model has the same bits on both.
Lowered lower_activate(LowerContext& ctx, Epilogue kind, double alpha, double beta) {
  if (!ctx.known(0).f32()) return not_lowered();
  if (kind > Epilogue::kGeluTanh && (!ctx.in_run() || ctx.backend.memory() != MemoryKind::kHost))
    return not_lowered();
  ActivateArgs args;
  args.epilogue = kind;
  args.alpha = static_cast<float>(alpha), args.beta = static_cast<float>(beta);
  return lower_like(ctx, 0, KernelFamily::kActivate, args, 0.3, 1,
                    [](ActivateArgs& a, const Operand* in, const Operand* out) {
                      a.out = out[0].as<float>();
                      a.x = in[0].as<const float>();
                      a.n = in[0].numel();
                    });
}
Result<bool> activate_by_kernel(KernelContext& ctx, Epilogue kind, double alpha, double beta) {
  return through_f32(ctx, [&](const Tensor& x, Tensor& y) {
    ActivateArgs a;
    a.out = mutable_elements<float>(y), a.x = elements<float>(x), a.n = x.numel();
    a.epilogue = kind, a.alpha = static_cast<float>(alpha), a.beta = static_cast<float>(beta);
    return run_kernel(ctx, f32_kernel(ctx.backend(), KernelFamily::kActivate), &a,
                      0.3 * static_cast<double>(a.n));
  });
}

Status neg(EvalContext& c) {
  return unary_numeric(c, kCheap, [](auto x) { return negate(x); });
}
Status abs(EvalContext& c) {
  return unary_numeric(c, kCheap, [](auto x) -> decltype(x) {
    if constexpr (std::is_floating_point_v<decltype(x)>) return std::abs(x);
    else return x < 0 ? negate(x) : x;
  });
}
Status exp(EvalContext& c) {
  return unary_double(c, kCostly, [](double x) { return std::exp(x); });
}
Status log(EvalContext& c) {
  return unary_double(c, kCostly, [](double x) { return std::log(x); });
}
Status sqrt(EvalContext& c) {
  return unary_double(c, kCheap, [](double x) { return std::sqrt(x); });
}
Status rsqrt(EvalContext& c) {
  return unary_double(c, kCheap, [](double x) { return 1 / std::sqrt(x); });
}
Status square(EvalContext& c) {
  return unary_numeric(c, kCheap, [](auto x) {
    if constexpr (std::is_floating_point_v<decltype(x)>) return x * x;
    else return static_cast<uint64_t>(x) * static_cast<uint64_t>(x);
  });
}
Status reciprocal(EvalContext& c) {
  return unary_double(c, kCheap, [](double x) { return 1 / x; });
}
Status tanh(EvalContext& c) {
  return unary_double(c, kCostly, [](double x) { return std::tanh(x); });
}
Status sigmoid(EvalContext& c) {
  return unary_double(c, kCostly, [](double x) { return sigmoid_of(x); });
}
Status erf(EvalContext& c) {
  OAR_ASSIGN(const Tensor x, c.tensor(0));
  if (dtype_is_float(dtype_of(x))) return unary_double(c, kCostly, [](double v) { return std::erf(v); });
  return unary_numeric(c, kCostly, [](auto v) { return std::erf(static_cast<double>(v)); });
}
Status sin(EvalContext& c) {
  return unary_double(c, kCostly, [](double x) { return std::sin(x); });
}
Status cos(EvalContext& c) {
  return unary_double(c, kCostly, [](double x) { return std::cos(x); });
}
Status floor(EvalContext& c) {
  return unary_float(c, kCheap, [](auto x) { return std::floor(x); });
}
Status relu(EvalContext& c) {
  // Written so that a NaN stays one.
  return unary_numeric(c, kCheap, [](auto x) { return x < 0 ? decltype(x){0} : x; });
}
Status silu(EvalContext& c) {
  const double alpha = attr(c, "alpha", 1);
  return unary_double(c, kCostly, [=](double x) { return x * sigmoid_of(alpha * x); });
}
Status celu(EvalContext& c) {
  const double alpha = attr(c, "alpha", 1);
  return unary_float(c, kCostly, [=](auto x) {
    using C = decltype(x);
    const C a = static_cast<C>(alpha);
    return std::max(C{0}, x) + std::min(C{0}, a * std::expm1(x / a));
  });
}
Status elu(EvalContext& c) {
  const double alpha = attr(c, "alpha", 1);
  return unary_float(c, kCostly,
                     [=](auto x) { return x < 0 ? static_cast<decltype(x)>(alpha) * std::expm1(x) : x; });
}
Status hard_sigmoid(EvalContext& c) {
  const double alpha = attr(c, "alpha", 0.2), beta = attr(c, "beta", 0.5);
  return unary_double(c, kCheap, [=](double x) { return std::clamp(alpha * x + beta, 0.0, 1.0); });
}
// x * hard_sigmoid(x), slope 1/6 unless the attributes say otherwise.
Status hard_swish(EvalContext& c) {
  const double alpha = attr(c, "alpha", 1.0 / 6), beta = attr(c, "beta", 0.5);
  return unary_double(c, kCheap, [=](double x) { return x * std::clamp(alpha * x + beta, 0.0, 1.0); });
}
Status leaky_relu(EvalContext& c) {
  const double alpha = attr(c, "alpha", 0.01);
  return unary_double(c, kCheap, [=](double x) { return x < 0 ? alpha * x : x; });
}
Status mish(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return x * std::tanh(softplus_of(x)); });
}
Status selu(EvalContext& c) {
  // https://arxiv.org/abs/1706.02515, as ONNX rounds them
  const double alpha = attr(c, "alpha", 1.67326319217681884765625),
               gamma = attr(c, "gamma", 1.05070102214813232421875);
  return unary_float(c, kCostly, [=](auto x) {
    using C = decltype(x);
    return static_cast<C>(gamma) * (x > 0 ? x : static_cast<C>(alpha) * std::expm1(x));
  });
}
Status softplus(EvalContext& c) {
  return unary_float(c, kCostly, [](auto x) { return softplus_of(x); });
}
Status softsign(EvalContext& c) {
  return unary_float(c, kCheap, [](auto x) { return x / (1 + std::abs(x)); });
}
Status gelu(EvalContext& c) {
  const bool by_tanh = c.attrs().get_string("approximate", "none") == "tanh";
  if (by_tanh) {
    return unary_double(c, kCostly, [](double x) {  // sqrt(2 / pi)
      return x / 2 * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    });
  }
  return unary_double(c, kCostly,
                      [](double x) { return x / 2 * (1 + std::erf(x * 0.70710678118654752440)); });
}

}  // namespace oar::tensor

namespace oar {
OAR_SMOOTH_OP(acos, tensor::acos);
OAR_SMOOTH_OP(acosh, tensor::acosh);
OAR_SMOOTH_OP(asin, tensor::asin);
OAR_SMOOTH_OP(asinh, tensor::asinh);
OAR_SMOOTH_OP(atan, tensor::atan);
OAR_SMOOTH_OP(atanh, tensor::atanh);
OAR_STEP_OP(bitwise_not, tensor::bitwise_not);
OAR_STEP_OP(ceil, tensor::ceil);
OAR_SMOOTH_OP(clip, tensor::clip, .by_kernels = tensor::clip_by_kernel, .lower = tensor::lower_clip);
OAR_SMOOTH_OP(cosh, tensor::cosh);
OAR_SMOOTH_OP(identity, tensor::identity, .view = true);
OAR_STEP_OP(is_inf, tensor::is_inf);
OAR_STEP_OP(is_nan, tensor::is_nan);
OAR_STEP_OP(logical_not, tensor::logical_not);
OAR_TENSOR_OP(none, tensor::none);
OAR_STEP_OP(round, tensor::round);
OAR_SMOOTH_OP(shrink, tensor::shrink);
extern const OpDef op_sign = {
    .name = "sign", .infer = typed_as_first, .piecewise_constant = true, .evaluate = tensor::sign};
OAR_SMOOTH_OP(sinh, tensor::sinh);
OAR_SMOOTH_OP(tan, tensor::tan);
OAR_SMOOTH_OP(thresholded_relu, tensor::thresholded_relu);
}  // namespace oar
