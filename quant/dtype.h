// Scalar numbers: the dtypes a tensor's elements may have, and the exact conversions between the narrow
// floats and f32. Usable from host and device code. What it is not: how elements are packed in blocks with
// scales; that is a Format (format.h).
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

#if defined(__CUDACC__)
#define OAR_HD __host__ __device__
#else
#define OAR_HD
#endif

namespace oar {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kE4M3,  // OCP "e4m3fn": bias 7, no infinity, one NaN per sign, largest 448
  kE5M2,  // OCP "e5m2": bias 15, infinities and NaN as IEEE, largest 57344
  kI4,    // two per byte, low nibble first
  kU4,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kBool,  // one byte, 0 or 1
  // What interchange formats (ONNX) carry besides; no kernel reads them, they are converted on the host.
  kE4M3Fnuz,  // bias 8, no infinity, no negative zero, NaN is 0x80, largest 240
  kE5M2Fnuz,  // bias 16, likewise, largest 57344
  kE8M0,      // a power of two: 2^(bits - 127), NaN is 0xff
  kE2M1,      // 4 bits: 0 0.5 1 1.5 2 3 4 6 and their negatives
  kI2,
  kU2,
  kString,  // std::string objects; host only
  kBytes,   // opaque bytes: the scalar of block formats, which only their Format can read
};
inline constexpr int kDTypeCount = static_cast<int>(DType::kBytes) + 1;

// "f32", "bf16", ..., "bytes".
constexpr const char* dtype_name(DType t) {
  constexpr const char* kNames[kDTypeCount] = {"f32", "f16", "bf16",   "f64",      "e4m3",     "e5m2", "i4",
                                               "u4",  "i8",  "u8",     "i16",      "u16",      "i32",  "u32",
                                               "i64", "u64", "bool",   "e4m3fnuz", "e5m2fnuz", "e8m0", "e2m1",
                                               "i2",  "u2",  "string", "bytes"};
  return kNames[static_cast<int>(t)];
}

constexpr OAR_HD int dtype_bits(DType t) {
  switch (t) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64: return 64;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32: return 32;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16: return 16;
    case DType::kI4:
    case DType::kU4:
    case DType::kE2M1: return 4;
    case DType::kI2:
    case DType::kU2: return 2;
    default: return 8;
  }
}

constexpr OAR_HD bool dtype_is_float(DType t) {
  return t <= DType::kE5M2 || (t >= DType::kE4M3Fnuz && t <= DType::kE2M1);
}
constexpr OAR_HD bool dtype_is_integer(DType t) {
  return (t >= DType::kI4 && t <= DType::kU64) || t == DType::kI2 || t == DType::kU2;
}

// The inverse of dtype_name(); nullopt for any other word.
inline std::optional<DType> parse_dtype(std::string_view name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (name == dtype_name(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// Storage of the narrow floats. No arithmetic: convert to f32, compute, convert back.
struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
struct e5m2 {
  uint8_t bits;
};

// The rarer ones, and integers narrower than a byte, each in a byte of its own (integers sign-extended).
struct e4m3fnuz {
  uint8_t bits;
};
struct e5m2fnuz {
  uint8_t bits;
};
struct i4 {
  int8_t value;
};
struct u4 {
  uint8_t value;
};
struct i2 {
  int8_t value;
};
struct u2 {
  uint8_t value;
};

namespace detail {

inline OAR_HD uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
inline OAR_HD float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

// |x| rounded to nearest even in a float with `Exp` exponent and `Man` mantissa bits, IEEE bias, as if the
// exponent had no upper bound: the caller clamps what overflows. x is not NaN; infinity gives a value past
// every clamp.
template <int Exp, int Man>
OAR_HD uint32_t round_magnitude(float x) {
  constexpr int kBias = (1 << (Exp - 1)) - 1;
  constexpr int kShift = 23 - Man;  // mantissa bits dropped from a normal number
  const uint32_t u = bits_of(x) & 0x7fffffffu;
  const int e = static_cast<int>(u >> 23) - 127;
  if (e >= 1 - kBias) {
    const uint32_t even = (u >> kShift) & 1u;
    return ((u + (1u << (kShift - 1)) - 1u + even) >> kShift) - (static_cast<uint32_t>(127 - kBias) << Man);
  }
  // Subnormal in the target: shift the full 24-bit significand further right. At a shift of 25 or more it
  // lies below half of the smallest subnormal. Subnormals of f32 itself end there for every type this is used
  // with.
  const int shift = kShift + (1 - kBias - e);
  if (shift > 24) return 0;
  const uint32_t m = (u & 0x7fffffu) | 0x800000u;
  const uint32_t even = (m >> shift) & 1u;
  return (m + (1u << (shift - 1)) - 1u + even) >> shift;
}

// The finite value of a magnitude (no sign bit) in such a float.
template <int Exp, int Man>
OAR_HD float expand_magnitude(uint32_t m) {
  constexpr int kBias = (1 << (Exp - 1)) - 1;
  if ((m >> Man) == 0) {  // zero and subnormals: m * 2^(1 - bias - man), exact in f32
    return static_cast<float>(m) * float_of(static_cast<uint32_t>(127 + 1 - kBias - Man) << 23);
  }
  return float_of((m << (23 - Man)) + (static_cast<uint32_t>(127 - kBias) << 23));
}

inline OAR_HD bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }
inline OAR_HD uint32_t sign_of(float x) { return bits_of(x) >> 31; }
inline OAR_HD float with_sign(float x, uint32_t sign) { return float_of(bits_of(x) | (sign << 31)); }

}  // namespace detail

inline OAR_HD float to_f32(float x) { return x; }

inline OAR_HD float to_f32(bf16 x) { return detail::float_of(static_cast<uint32_t>(x.bits) << 16); }

inline OAR_HD float to_f32(f16 x) {
  const uint32_t sign = x.bits >> 15, m = x.bits & 0x7fffu;
  if (m >= 0x7c00u) return detail::float_of((sign << 31) | 0x7f800000u | ((m & 0x3ffu) << 13));
  return detail::with_sign(detail::expand_magnitude<5, 10>(m), sign);
}

inline OAR_HD float to_f32(e4m3 x) {
  const uint32_t sign = x.bits >> 7, m = x.bits & 0x7fu;
  if (m == 0x7fu) return detail::float_of((sign << 31) | 0x7fc00000u);
  return detail::with_sign(detail::expand_magnitude<4, 3>(m), sign);
}

inline OAR_HD float to_f32(e5m2 x) { return to_f32(f16{static_cast<uint16_t>(x.bits << 8)}); }

// Round to nearest even; overflow becomes infinity; a NaN stays a (quiet) NaN and keeps its upper payload
// bits.
inline OAR_HD bf16 to_bf16(float x) {
  const uint32_t u = detail::bits_of(x);
  if (detail::is_nan(x)) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// Round to nearest even; overflow becomes infinity; a NaN stays a (quiet) NaN and keeps its upper payload
// bits.
inline OAR_HD f16 to_f16(float x) {
  const uint32_t u = detail::bits_of(x), sign = (u >> 31) << 15;
  if (detail::is_nan(x)) return {static_cast<uint16_t>(sign | 0x7e00u | ((u >> 13) & 0x3ffu))};
  const uint32_t m = detail::round_magnitude<5, 10>(x);
  return {static_cast<uint16_t>(sign | (m < 0x7c00u ? m : 0x7c00u))};
}

// Round to nearest even and saturate: beyond the largest finite value, infinity included, comes that value
// (what the hardware's satfinite conversions do, and what a quantizer wants). NaN stays NaN.
inline OAR_HD e4m3 to_e4m3(float x) {
  const uint32_t sign = detail::sign_of(x) << 7;
  if (detail::is_nan(x)) return {static_cast<uint8_t>(sign | 0x7fu)};
  const uint32_t m = detail::round_magnitude<4, 3>(x);
  return {static_cast<uint8_t>(sign | (m < 0x7eu ? m : 0x7eu))};
}
inline OAR_HD e5m2 to_e5m2(float x) {
  const uint32_t sign = detail::sign_of(x) << 7;
  if (detail::is_nan(x)) return {static_cast<uint8_t>(sign | 0x7fu)};
  const uint32_t m = detail::round_magnitude<5, 2>(x);
  return {static_cast<uint8_t>(sign | (m < 0x7bu ? m : 0x7bu))};
}

inline OAR_HD float to_f32(e4m3fnuz x) {
  if (x.bits == 0x80u) return detail::float_of(0x7fc00000u);
  const uint32_t m = x.bits & 0x7fu;  // bias 8: half of what the same bits mean with bias 7
  return detail::with_sign(0.5f * detail::expand_magnitude<4, 3>(m), x.bits >> 7);
}
inline OAR_HD float to_f32(e5m2fnuz x) {
  if (x.bits == 0x80u) return detail::float_of(0x7fc00000u);
  const uint32_t m = x.bits & 0x7fu;  // bias 16
  return detail::with_sign(0.5f * detail::expand_magnitude<5, 2>(m), x.bits >> 7);
}
// Round to nearest even and saturate, as to_e4m3() does; NaN and what has no negative zero follow the format.
inline OAR_HD e4m3fnuz to_e4m3fnuz(float x) {
  if (detail::is_nan(x)) return {0x80u};
  const uint32_t m = detail::round_magnitude<4, 3>(2.0f * x), top = m < 0x7fu ? m : 0x7fu;
  return {static_cast<uint8_t>(top == 0 ? 0 : (detail::sign_of(x) << 7) | top)};
}
inline OAR_HD e5m2fnuz to_e5m2fnuz(float x) {
  if (detail::is_nan(x)) return {0x80u};
  const uint32_t m = detail::round_magnitude<5, 2>(2.0f * x), top = m < 0x7fu ? m : 0x7fu;
  return {static_cast<uint8_t>(top == 0 ? 0 : (detail::sign_of(x) << 7) | top)};
}

// The two scalars of block formats (OCP MX).
// e2m1: four bits in the low nibble of a byte; 0 0.5 1 1.5 2 3 4 6 with either sign, no infinity or NaN.
// e8m0: the power of two 2^(bits - 127); 255 is NaN.
struct e2m1 {
  uint8_t bits;
};
struct e8m0 {
  uint8_t bits;
};

inline OAR_HD float to_f32(e2m1 x) {
  return detail::with_sign(detail::expand_magnitude<2, 1>(x.bits & 7u), (x.bits >> 3) & 1u);
}
// Round to nearest even and saturate at 6; NaN becomes 0.
inline OAR_HD e2m1 to_e2m1(float x) {
  if (detail::is_nan(x)) return {0};
  const uint32_t m = detail::round_magnitude<2, 1>(x);
  return {static_cast<uint8_t>(detail::sign_of(x) << 3 | (m < 7u ? m : 7u))};
}

inline OAR_HD float to_f32(e8m0 x) {
  if (x.bits == 255) return detail::float_of(0x7fc00000u);
  return detail::float_of(x.bits == 0 ? 0x400000u : static_cast<uint32_t>(x.bits) << 23);
}

// DTypeOf<float>::value and so on: the dtype of a C++ element type.
template <class T>
struct DTypeOf;
#define OAR_DTYPE_OF(type, dtype)                \
  template <>                                    \
  struct DTypeOf<type> {                         \
    static constexpr DType value = DType::dtype; \
  }
OAR_DTYPE_OF(float, kF32);
OAR_DTYPE_OF(double, kF64);
OAR_DTYPE_OF(f16, kF16);
OAR_DTYPE_OF(bf16, kBF16);
OAR_DTYPE_OF(e4m3, kE4M3);
OAR_DTYPE_OF(e5m2, kE5M2);
OAR_DTYPE_OF(int8_t, kI8);
OAR_DTYPE_OF(uint8_t, kU8);
OAR_DTYPE_OF(int16_t, kI16);
OAR_DTYPE_OF(uint16_t, kU16);
OAR_DTYPE_OF(int32_t, kI32);
OAR_DTYPE_OF(uint32_t, kU32);
OAR_DTYPE_OF(int64_t, kI64);
OAR_DTYPE_OF(uint64_t, kU64);
OAR_DTYPE_OF(bool, kBool);
OAR_DTYPE_OF(e4m3fnuz, kE4M3Fnuz);
OAR_DTYPE_OF(e5m2fnuz, kE5M2Fnuz);
OAR_DTYPE_OF(e8m0, kE8M0);
OAR_DTYPE_OF(e2m1, kE2M1);
OAR_DTYPE_OF(i4, kI4);
OAR_DTYPE_OF(u4, kU4);
OAR_DTYPE_OF(i2, kI2);
OAR_DTYPE_OF(u2, kU2);
#undef OAR_DTYPE_OF

}  // namespace oar
