// Elementwise ops of two and three operands, broadcast like NumPy. Integers wrap; dividing them by zero is an
// error.
#include <atomic>

#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/kernel_call.h"
#include "kernels/activation.h"

namespace oar::tensor {
namespace {

// The second operand with the axes that line it up with the first one.
Result<Tensor> align(const EvalContext& ctx, const Tensor& x, const Tensor& y) {
  const auto axes = [](const Tensor& t) { return static_cast<size_t>(t.shape().rank()); };
  OAR_ASSIGN(const size_t behind, axes_behind(axes(x), axes(y), ctx.attrs()));
  if (behind == 0) return y;
  std::vector<int64_t> dims = dims_of(y.shape());
  dims.insert(dims.end(), behind, 1);
  return y.reshape(Shape(dims));
}

// Over whichever of the operands, of the result's dtype, is as large as the result and not needed any more.
Result<Tensor> result_over(const EvalContext& ctx, const Shape& shape, const Tensor& x, const Tensor& y) {
  if (ctx.may_overwrite(0, x, shape, dtype_of(x))) return x;
  return ctx.allocate_over(1, y, shape, dtype_of(x));
}

// f(a, b) for every dtype that `dispatch` offers, result of dtype `to` (default: the operands').
template <class Dispatch, class F>
Status zip(EvalContext& ctx, Dispatch dispatch, F&& f) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.tensor(1));
  OAR_ASSIGN(y, align(ctx, x, y));
  OAR_RETURN_IF_ERROR(check_same_dtype(x, y));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &y.shape()}));
  OAR_ASSIGN(Tensor out, result_over(ctx, b.shape(), x, y));
  if (!dispatch(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        zip_elements<T, T>(ctx, b, x, y, out, [&](C p, C q) { return static_cast<C>(f(p, q)); });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(out));
  return ok_status();
}

constexpr auto kNumeric = [](DType t, auto&& f) { return dispatch_numeric(t, f); };
constexpr auto kInteger = [](DType t, auto&& f) { return dispatch_integer(t, f); };

// Signed overflow is undefined in C++: two's complement arithmetic goes through uint64_t.
template <class C>
constexpr bool kInt = std::is_integral_v<C>;

// f(a, b), or f(b, a), or not: three functions serve six comparisons, each of them for every dtype.
struct Turned {
  bool exchanged = false, inverted = false;
};
template <class F>
Status compare(EvalContext& ctx, F&& f, Turned turned = {}) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_same_dtype(x, y));
  if (turned.exchanged) std::swap(x, y);
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &y.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), DType::kBool));
  auto run = [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = typename Element<T>::Compute;
    zip_elements<T, uint8_t>(ctx, b, x, y, out,
                             [&](const C& p, const C& q) { return static_cast<uint8_t>(f(p, q)); });
  };
  if (dtype_of(x) == DType::kString) run(TypeTag<std::string>{});
  else if (!dispatch_number(dtype_of(x), run)) return bad_dtype(x);
  if (turned.inverted) {
    uint8_t* bytes = mutable_elements<uint8_t>(out);
    for (int64_t k = 0; k < out.numel(); ++k) bytes[k] ^= 1;
  }
  ctx.set(0, std::move(out));
  return ok_status();
}

Status equals(EvalContext& c, Turned turned) {
  return compare(
      c, [](const auto& a, const auto& b) { return a == b; }, turned);
}
Status precedes(EvalContext& c, Turned turned) {
  return compare(
      c, [](const auto& a, const auto& b) { return a < b; }, turned);
}
Status precedes_or_equals(EvalContext& c, Turned turned) {
  return compare(
      c, [](const auto& a, const auto& b) { return a <= b; }, turned);
}
Status equal(EvalContext& c) { return equals(c, {}); }
Status not_equal(EvalContext& c) { return equals(c, {.inverted = true}); }
Status less(EvalContext& c) { return precedes(c, {}); }
Status greater(EvalContext& c) { return precedes(c, {.exchanged = true}); }
Status less_equal(EvalContext& c) { return precedes_or_equals(c, {}); }
Status greater_equal(EvalContext& c) { return precedes_or_equals(c, {.exchanged = true}); }

template <class F>
Status logical(EvalContext& ctx, F&& f) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor y, ctx.tensor(1));
  if (dtype_of(x) != DType::kBool || dtype_of(y) != DType::kBool)
    return invalid_argument("operands must be bool");
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &y.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), DType::kBool));
  zip_elements<uint8_t, uint8_t>(ctx, b, x, y, out, f);
  ctx.set(0, std::move(out));
  return ok_status();
}
Status logical_and(EvalContext& c) {
  return logical(c, [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a & b); });
}
Status logical_or(EvalContext& c) {
  return logical(c, [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a | b); });
}
Status logical_xor(EvalContext& c) {
  return logical(c, [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(a ^ b); });
}

Status bitwise_and(EvalContext& c) {
  return zip(c, kInteger, [](auto a, auto b) { return a & b; });
}
Status bitwise_or(EvalContext& c) {
  return zip(c, kInteger, [](auto a, auto b) { return a | b; });
}
Status bitwise_xor(EvalContext& c) {
  return zip(c, kInteger, [](auto a, auto b) { return a ^ b; });
}
Status bit_shift(EvalContext& c) {
  const std::string direction = c.attrs().get_string("direction");
  if (direction != "LEFT" && direction != "RIGHT") return invalid_argument("direction must be LEFT or RIGHT");
  const bool left = direction == "LEFT";
  return zip(c, kInteger, [left](auto a, auto b) {
    // A shift by the width or more, or by a negative number, pushes every bit out.
    using C = decltype(a);
    const bool all = static_cast<uint64_t>(b) >= sizeof(C) * 8;
    if (left) return all ? C{0} : static_cast<C>(static_cast<uint64_t>(a) << static_cast<uint64_t>(b));
    if (all) return static_cast<C>(a < 0 ? -1 : 0);
    return static_cast<C>(a >> b);
  });
}

// mod: the sign of the divisor (Python's %); with fmod, that of the dividend (C's).
Status mod(EvalContext& ctx) {
  const bool c_like = ctx.attrs().get_int("fmod") != 0;
  std::atomic<bool> by_zero{false};
  OAR_RETURN_IF_ERROR(zip(ctx, kNumeric, [&](auto a, auto b) {
    using C = decltype(a);
    if constexpr (kInt<C>) {
      if (b == 0) return by_zero.store(true, std::memory_order_relaxed), C{0};
      if constexpr (std::is_signed_v<C>) {
        if (b == -1) return C{0};  // the smallest integer over -1 overflows
      }
      const C r = static_cast<C>(a % b);
      return !c_like && r != 0 && (r < 0) != (b < 0) ? static_cast<C>(r + b) : r;
    } else {
      const C r = std::fmod(a, b);
      return !c_like && r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
  }));
  if (by_zero) return invalid_argument("integer division by zero");
  return ok_status();
}

Status prelu(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor slope, ctx.tensor(1));
  // Unidirectional: (C) also means one slope per channel of (N, C, ...), as exporters write it.
  if (slope.shape().rank() == 1 && x.shape().rank() > 2 && slope.numel() == x.shape()[1] &&
      slope.numel() != x.shape().cols()) {
    std::vector<int64_t> dims(static_cast<size_t>(x.shape().rank() - 1), 1);
    dims[0] = slope.numel();
    OAR_ASSIGN(slope, slope.reshape(Shape(dims)));
  }
  OAR_RETURN_IF_ERROR(check_same_dtype(x, slope));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &slope.shape()}));
  if (!(b.shape() == x.shape())) return invalid_argument("the slope does not broadcast to the operand");
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), dtype_of(x)));
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        zip_elements<T, T>(ctx, b, x, slope, out, [](C p, C q) -> C {
          if (!(p < 0)) return p;
          if constexpr (kInt<C>) return static_cast<C>(static_cast<uint64_t>(p) * static_cast<uint64_t>(q));
          else return p * q;
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(out));
  return ok_status();
}

Status where(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor c, ctx.tensor(0));
  OAR_ASSIGN(const Tensor x, ctx.tensor(1));
  OAR_ASSIGN(const Tensor y, ctx.tensor(2));
  if (dtype_of(c) != DType::kBool) return invalid_argument("the condition must be bool");
  OAR_RETURN_IF_ERROR(check_same_dtype(x, y));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&c.shape(), &x.shape(), &y.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), dtype_of(x)));
  dispatch_move(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    ctx.parallel(b.numel(), 1.0, [&](int64_t begin, int64_t end) {
      b.runs(begin, end, [&](int64_t at, const auto& from, int64_t n, const auto& step) {
        const uint8_t* pc = elements<uint8_t>(c) + from[0];
        const T* px = elements<T>(x) + from[1];
        const T* py = elements<T>(y) + from[2];
        T* po = mutable_elements<T>(out) + at;
        for (int64_t k = 0; k < n; ++k) po[k] = pc[k * step[0]] ? px[k * step[1]] : py[k * step[2]];
      });
    });
  });
  ctx.set(0, std::move(out));
  return ok_status();
}

// Small whole exponents are products: of numbers that are f32 exact enough in double.
double real_power(double base, double exponent) {
  if (std::abs(exponent) > 16 || exponent != std::floor(exponent)) return std::pow(base, exponent);
  double result = 1;
  for (auto n = static_cast<int>(std::abs(exponent)); n > 0; --n) result *= base;
  return exponent < 0 ? 1 / result : result;
}

// The exponent may have a dtype of its own; the result has the base's.
template <class C>
C integer_power(C base, double exponent) {
  if (exponent < 0 || exponent != std::floor(exponent))
    return saturate_cast<C>(std::pow(static_cast<double>(base), exponent));
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (auto e = saturate_cast<uint64_t>(exponent); e > 0; e >>= 1) {
    if (e & 1) result *= factor;
    factor *= factor;
  }
  return static_cast<C>(result);
}

}  // namespace

// Arithmetic of f32, and of f16 and bf16 by way of it, through the kernel where it fits: one operand dense,
// the other repeated along rows, columns or neither, under few leading axes.
Result<bool> binary_by_kernel(KernelContext& ctx, BinaryOp op) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.tensor(1));
  const DType dtype = dtype_of(x);
  const bool half = dtype == DType::kF16 || dtype == DType::kBF16;
  if ((dtype != DType::kF32 && !half) || dtype_of(y) != dtype) return false;
  OAR_ASSIGN(y, align(ctx, x, y));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &y.shape()}));
  const int rank = b.rank(), last = rank - 1;
  const auto dense = [&](int operand) {
    int64_t stride = 1;
    for (int k = last; k >= 0; stride *= b.dim(k), --k) {
      if (b.stride(operand, k) != stride && b.dim(k) != 1) return false;
    }
    return true;
  };
  const bool commutes = op != BinaryOp::kSub && op != BinaryOp::kDiv;
  const int a_side = dense(0) ? 0 : 1;
  if (b.numel() == 0 || !dense(a_side) || (a_side == 1 && !commutes)) return false;
  const Tensor &full = a_side == 0 ? x : y, &other = a_side == 0 ? y : x;
  const auto step = [&](int axis) { return axis < 0 ? int64_t{0} : b.stride(1 - a_side, axis); };
  BinaryArgs a;
  a.cols = b.dim(last), a.rows = rank > 1 ? b.dim(last - 1) : 1;
  a.b_col = step(last) != 0 ? 1 : 0, a.b_row = step(last - 1) != 0 ? 1 : 0;
  if (rank == 1) a.b_row = a.b_col;  // one row: as flat as it gets
  a.op = op;
  int64_t outer = 1;
  for (int k = 0; k < last - 1; ++k) outer *= b.dim(k);
  const int64_t inner = a.rows * a.cols;
  if (step(last) > 1 || (a.b_row != 0 && rank > 1 && step(last - 1) != (a.b_col != 0 ? a.cols : 1)) ||
      outer > std::max<int64_t>(1, b.numel() / 4096)) {
    return false;
  }
  Tensor out;
  if (half) {  // the wide copy of the dense operand becomes the result
    OAR_ASSIGN(x, as_f32(ctx, x));
    OAR_ASSIGN(y, as_f32(ctx, y));
    OAR_ASSIGN(out, full.reshape(b.shape()));
  } else {
    OAR_ASSIGN(out, result_over(ctx, b.shape(), x, y));
  }
  const Kernel& kernel = f32_kernel(ctx.backend(), KernelFamily::kBinary);
  for (int64_t o = 0; o < outer; ++o) {
    int64_t rest = o, at = 0;
    for (int k = last - 2; k >= 0; --k) at += rest % b.dim(k) * step(k), rest /= b.dim(k);
    a.out = mutable_elements<float>(out) + o * inner;
    a.a = elements<float>(full) + o * inner, a.b = elements<float>(other) + at;
    OAR_RETURN_IF_ERROR(run_kernel(ctx, kernel, &a, 0.2 * static_cast<double>(inner)));
  }
  OAR_ASSIGN(out, from_f32(ctx, out, dtype));
  ctx.set(0, std::move(out));
  return true;
}
Status add(EvalContext& c) {
  return zip(c, kNumeric, [](auto a, auto b) {
    if constexpr (kInt<decltype(a)>) return static_cast<uint64_t>(a) + static_cast<uint64_t>(b);
    else return a + b;
  });
}
Status sub(EvalContext& c) {
  return zip(c, kNumeric, [](auto a, auto b) {
    if constexpr (kInt<decltype(a)>) return static_cast<uint64_t>(a) - static_cast<uint64_t>(b);
    else return a - b;
  });
}
Status mul(EvalContext& c) {
  return zip(c, kNumeric, [](auto a, auto b) {
    if constexpr (kInt<decltype(a)>) return static_cast<uint64_t>(a) * static_cast<uint64_t>(b);
    else return a * b;
  });
}
// Integers truncate towards zero.
Status div(EvalContext& ctx) {
  std::atomic<bool> by_zero{false};
  OAR_RETURN_IF_ERROR(zip(ctx, kNumeric, [&](auto a, auto b) {
    using C = decltype(a);
    if constexpr (kInt<C>) {
      if (b == 0) return by_zero.store(true, std::memory_order_relaxed), C{0};
      if constexpr (std::is_signed_v<C>) {
        if (b == -1) return static_cast<C>(0 - static_cast<uint64_t>(a));
      }
      return static_cast<C>(a / b);
    } else {
      return a / b;
    }
  }));
  if (by_zero) return invalid_argument("integer division by zero");
  return ok_status();
}
Status max(EvalContext& c) {
  return zip(c, kNumeric, [](auto a, auto b) { return a != a || a > b ? a : b; });
}
Status min(EvalContext& c) {
  return zip(c, kNumeric, [](auto a, auto b) { return a != a || a < b ? a : b; });
}
Status pow(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(Tensor y, ctx.tensor(1));
  OAR_ASSIGN(y, align(ctx, x, y));
  OAR_ASSIGN(const Broadcast b, Broadcast::make({&x.shape(), &y.shape()}));
  OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), dtype_of(x)));
  OAR_RETURN_IF_ERROR(check_number(y));
  const std::vector<double> e = to_doubles(y);
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        ctx.parallel(b.numel(), 20.0, [&](int64_t begin, int64_t end) {
          b.runs(begin, end, [&](int64_t at, const auto& from, int64_t n, const auto& step) {
            for (int64_t k = 0; k < n; ++k) {
              const C base = Element<T>::load(elements<T>(x)[from[0] + k * step[0]]);
              const double power = e[static_cast<size_t>(from[1] + k * step[1])];
              C r;
              if constexpr (kInt<C>) r = integer_power(base, power);
              else if constexpr (std::is_same_v<C, double>) r = std::pow(base, power);
              else r = static_cast<C>(real_power(static_cast<double>(base), power));
              mutable_elements<T>(out)[at + k] = Element<T>::store(r);
            }
          });
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(out));
  return ok_status();
}

}  // namespace oar::tensor

namespace oar {
#define OAR_CONDITION(op, function) \
  extern const OpDef op_##op = {    \
      .name = #op, .infer = condition_infer, .piecewise_constant = true, .evaluate = function}
OAR_STEP_OP(bit_shift, tensor::bit_shift);
OAR_STEP_OP(bitwise_and, tensor::bitwise_and);
OAR_STEP_OP(bitwise_or, tensor::bitwise_or);
OAR_STEP_OP(bitwise_xor, tensor::bitwise_xor);
OAR_CONDITION(equal, tensor::equal);
OAR_CONDITION(greater, tensor::greater);
OAR_CONDITION(greater_equal, tensor::greater_equal);
OAR_CONDITION(less, tensor::less);
OAR_CONDITION(less_equal, tensor::less_equal);
OAR_CONDITION(logical_and, tensor::logical_and);
OAR_CONDITION(logical_or, tensor::logical_or);
OAR_CONDITION(logical_xor, tensor::logical_xor);
OAR_TENSOR_OP(mod, tensor::mod);
OAR_CONDITION(not_equal, tensor::not_equal);
OAR_SMOOTH_OP(prelu, tensor::prelu);
#undef OAR_CONDITION
extern const OpDef op_where = {
    .name = "where", .infer = where_infer, .vjp = gradient::where, .evaluate = tensor::where};
}  // namespace oar
