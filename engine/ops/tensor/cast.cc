// Conversions between dtypes: cast (rounding to nearest even, to integers truncating) and bit_cast. Floats
// beyond an integer's range saturate; into 8-bit floats they saturate or become NaN/infinity as `saturate`
// says.
#include <charconv>

#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

// What an 8-bit float becomes of a value beyond its range when it must not saturate.
template <class U>
U unsaturated(float x, U rounded) {
  if constexpr (std::is_same_v<U, e4m3>) {
    if (std::abs(x) > 464.0f)
      return {static_cast<uint8_t>(std::signbit(x) ? 0xff : 0x7f)};  // 448 + half a step
  } else if constexpr (std::is_same_v<U, e5m2>) {
    if (std::abs(x) >= 61440.0f) return {static_cast<uint8_t>(std::signbit(x) ? 0xfc : 0x7c)};
  } else if constexpr (std::is_same_v<U, e4m3fnuz>) {
    if (std::abs(x) >= 248.0f) return {0x80};
  } else if constexpr (std::is_same_v<U, e5m2fnuz>) {
    if (std::abs(x) >= 61440.0f) return {0x80};
  }
  return rounded;
}
// Infinity stays one, or becomes NaN where there is none, even when finite values saturate... in e4m3 and
// e5m2 ONNX saturates it too.

e8m0 to_e8m0(float x, const std::string& mode) {
  if (std::isnan(x) || x < 0) return {0xff};
  if (x == 0) return {0};
  if (std::isinf(x)) return {0xfe};
  int e = 0;
  const float m = std::frexp(x, &e);
  int power = e - 1;  // down
  if (mode == "up" && m > 0.5f) ++power;
  if (mode == "nearest" && m >= 0.75f) ++power;
  return {static_cast<uint8_t>(std::clamp(power + 127, 0, 254))};
}

template <class T>
std::string to_text(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(x)) return "NaN";
    if (std::isinf(x)) return x > 0 ? "INF" : "-INF";
    char buf[64];
    // Shortest that reads back; plain notation within NumPy's range.
    const double a = std::abs(static_cast<double>(x));
    const auto r = a != 0 && (a < 1e-4 || a >= 1e16)
                       ? std::to_chars(buf, buf + sizeof buf, x, std::chars_format::scientific)
                       : std::to_chars(buf, buf + sizeof buf, x, std::chars_format::fixed);
    std::string s(buf, r.ptr);
    if (s.find('.') == std::string::npos && s.find('e') == std::string::npos) s += ".0";
    return s;
  } else {
    return cat(x);
  }
}

Result<double> number_of(const std::string& text) {
  size_t b = text.find_first_not_of(" \t\n"), e = text.find_last_not_of(" \t\n");
  std::string s = b == std::string::npos ? "" : text.substr(b, e - b + 1);
  if (!s.empty() && s[0] == '+') s.erase(0, 1);
  double v = 0;
  const auto r = std::from_chars(s.data(), s.data() + s.size(), v);
  if (s.empty() || r.ec == std::errc::invalid_argument || r.ptr != s.data() + s.size()) {
    return invalid_argument(cat("'", text, "' is no number"));
  }
  return v;
}

template <class T, class U>
U convert(T in, bool saturate, const std::string& mode) {
  using C = typename Element<T>::Compute;
  using D = typename Element<U>::Compute;
  const C x = Element<T>::load(in);
  if constexpr (std::is_same_v<U, e8m0>) {
    return to_e8m0(static_cast<float>(x), mode);
  } else if constexpr (std::is_integral_v<D>) {
    if constexpr (std::is_floating_point_v<C>) {
      // Narrow integers keep the low bits of the wider one, as a cast through i32 would.
      if constexpr (sizeof(D) < 4) return Element<U>::store(static_cast<D>(saturate_cast<int64_t>(x)));
      else return Element<U>::store(saturate_cast<D>(x));
    } else {
      return Element<U>::store(static_cast<D>(x));
    }
  } else {
    const U rounded = Element<U>::store(static_cast<D>(x));
    if constexpr (sizeof(U) == 1) {
      if (!saturate) return unsaturated(static_cast<float>(x), rounded);
    }
    return rounded;
  }
}

// Floats of 8 bits and integers of less are converted by way of a wide type, or there would be 484 loops of
// which most never run. As a source it holds each of their values; as a target the cast from it is the same
// as from any other: such floats are rounded from f32, such integers keep the low bits of i64.
template <class T>
using WideSource = typename Element<T>::Compute;
template <class U>
using WideTarget = std::conditional_t<std::is_integral_v<typename Element<U>::Compute>, int64_t, float>;

Result<Tensor> converted(const EvalContext& ctx, Tensor x, DType to) {
  const bool saturate = ctx.attrs().get_int("saturate", 1) != 0;
  const std::string mode = ctx.attrs().get_string("round_mode", "up");
  const int64_t n = x.numel();
  const DType from = dtype_of(x);
  DType wide = from;
  dispatch_narrow(from, [&](auto tag) { wide = DTypeOf<WideSource<typename decltype(tag)::type>>::value; });
  const bool narrow_source = wide != from;
  if (narrow_source && wide != to) {
    OAR_ASSIGN(x, converted(ctx, x, wide));
    return converted(ctx, std::move(x), to);
  }
  wide = to;
  dispatch_narrow(to, [&](auto tag) { wide = DTypeOf<WideTarget<typename decltype(tag)::type>>::value; });
  const bool narrow_target = wide != to;
  if (narrow_target && wide != from && from != DType::kString) {
    OAR_ASSIGN(x, converted(ctx, x, wide));
    return converted(ctx, std::move(x), to);
  }
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), to));
  if (from == DType::kString) {
    for (int64_t k = 0; k < n; ++k) {
      OAR_ASSIGN(const double v, number_of(elements<std::string>(x)[k]));
      dispatch_number(to, [&](auto tag) {
        using U = typename decltype(tag)::type;
        mutable_elements<U>(y)[k] = to == DType::kBool ? U(convert<uint8_t, U>(v != 0, true, mode))
                                                       : convert<double, U>(v, saturate, mode);
      });
    }
    return y;
  }
  const auto convert_all = [&](auto source, auto target) {
    using T = typename decltype(source)::type;
    using U = typename decltype(target)::type;
    const T* in = elements<T>(x);
    U* out = mutable_elements<U>(y);
    ctx.parallel(n, 1, [&](int64_t b, int64_t e) {
      for (int64_t k = b; k < e; ++k) out[k] = convert<T, U>(in[k], saturate, mode);
    });
  };
  if (narrow_source) {
    dispatch_narrow(from, [&](auto source) {
      convert_all(source, TypeTag<WideSource<typename decltype(source)::type>>{});
    });
    return y;
  }
  if (narrow_target) {
    dispatch_narrow(to, [&](auto target) {
      convert_all(TypeTag<WideTarget<typename decltype(target)::type>>{}, target);
    });
    return y;
  }
  dispatch_numeric(from == DType::kBool ? DType::kU8 : from, [&](auto source) {
    using T = typename decltype(source)::type;
    const T* in = elements<T>(x);
    if (to == DType::kString) {
      for (int64_t k = 0; k < n; ++k) mutable_elements<std::string>(y)[k] = to_text(Element<T>::load(in[k]));
    } else if (to == DType::kBool) {
      for (int64_t k = 0; k < n; ++k) mutable_elements<uint8_t>(y)[k] = Element<T>::load(in[k]) != 0;
    } else {
      dispatch_numeric(to, [&](auto target) { convert_all(source, target); });
    }
  });
  return y;
}

Status cast_to(EvalContext& ctx, DType to) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  if (dtype_of(x) != to) { OAR_ASSIGN(x, converted(ctx, std::move(x), to)); }
  ctx.set(0, std::move(x));
  return ok_status();
}

// Between f32 and 16-bit floats.
Result<bool> cast_by_kernel(KernelContext& ctx, DType to) {
  const auto is_half = [](DType t) { return t == DType::kF16 || t == DType::kBF16; };
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  if (dtype_of(x) == DType::kF32 && is_half(to)) {
    OAR_ASSIGN(x, from_f32(ctx, x, to));
  } else if (is_half(dtype_of(x)) && to == DType::kF32) {
    OAR_ASSIGN(x, as_f32(ctx, x));
  } else {
    return false;
  }
  ctx.set(0, std::move(x));
  return true;
}

// cast(x, like or none) {to}: to the type named, or to that of `like`, whose values are not read.
Result<DType> target(const EvalContext& ctx) {
  if (!ctx.has(1)) return dtype_attr(ctx, "to", DType::kF32);
  OAR_ASSIGN(const Tensor like, ctx.tensor(1));
  return dtype_of(like);
}

// The same bits under another dtype of the same width.
Status bit_cast(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const DType to, dtype_attr(ctx, "to", dtype_of(x)));
  const Format format = element_format(to);
  if (to == DType::kString || dtype_of(x) == DType::kString || dtype_bits(to) != dtype_bits(dtype_of(x))) {
    return invalid_argument(cat("the bits of ", x.format().name(), " are no ", format.name()));
  }
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), to));
  if (x.bytes() > 0) std::memcpy(y.mutable_data(), x.data(), x.bytes());
  if (dtype_bits(to) < 8) {  // signed ones are kept sign-extended, the others without upper bits
    dispatch_narrow(to, [&](auto tag) {
      using U = typename decltype(tag)::type;
      for (int64_t k = 0; k < y.numel(); ++k) {
        uint8_t& b = mutable_elements<uint8_t>(y)[k];
        b = static_cast<uint8_t>(b & ((1 << dtype_bits(to)) - 1));
        if constexpr (std::is_same_v<U, i4> || std::is_same_v<U, i2>) {
          b = static_cast<uint8_t>(Element<U>::store(static_cast<int8_t>(b)).value);
        }
      }
    });
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace

Status cast(EvalContext& ctx) {
  OAR_ASSIGN(const DType to, target(ctx));
  return cast_to(ctx, to);
}
Result<bool> cast_by_kernel(KernelContext& ctx) {
  OAR_ASSIGN(const DType to, target(ctx));
  return cast_by_kernel(ctx, to);
}

}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(bit_cast, tensor::bit_cast);
}  // namespace oar
