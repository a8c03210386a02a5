// Plain formats: one scalar per element, nothing shared. Floats decode exactly (f64 rounds to f32); integers
// convert with their usual rounding to f32, and encode by rounding to nearest even and saturating, NaN to 0.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "quant/format.h"

namespace oar::formats {

// A bool's byte, read as a number: C++ bool may not hold anything but 0 and 1, a file may.
struct BoolByte {
  uint8_t value;
};

template <class T>
OAR_HD void decode_plain(const T& in, float* out) {
  if constexpr (std::is_same_v<T, BoolByte>) *out = in.value ? 1.0f : 0.0f;
  else if constexpr (std::is_arithmetic_v<T>) *out = static_cast<float>(in);
  else *out = to_f32(in);
}

template <class T>
void encode_plain(const float* in, T& out) {
  const float x = *in;
  if constexpr (std::is_same_v<T, BoolByte>) {
    out.value = x != 0.0f;
  } else if constexpr (std::is_floating_point_v<T>) {
    out = x;
  } else if constexpr (std::is_integral_v<T>) {
    // The largest T may round up to 2^n in f32: compare with 2^n itself, which is exact.
    const float upper = std::ldexp(1.0f, std::numeric_limits<T>::digits);
    const float r = std::nearbyint(x);
    if (!(r < upper)) out = std::isnan(x) ? T{0} : std::numeric_limits<T>::max();
    else if (r <= static_cast<float>(std::numeric_limits<T>::min())) out = std::numeric_limits<T>::min();
    else out = static_cast<T>(r);
  } else if constexpr (std::is_same_v<T, oar::bf16>) {
    out = to_bf16(x);
  } else if constexpr (std::is_same_v<T, oar::f16>) {
    out = to_f16(x);
  } else if constexpr (std::is_same_v<T, oar::e4m3>) {
    out = to_e4m3(x);
  } else {
    static_assert(std::is_same_v<T, oar::e5m2>);
    out = to_e5m2(x);
  }
}

template <class T>
constexpr FormatInfo plain_format(const char* name, DType dtype) {
  FormatInfo info = block_format<T, 1, &decode_plain<T>, &encode_plain<T>>(name);
  info.scalar = dtype;
  info.plain = true;
  return info;
}

#define OAR_PLAIN_FORMAT(name, type, dtype)                                    \
  namespace name {                                                             \
  inline constexpr FormatInfo kInfo = plain_format<type>(#name, DType::dtype); \
  }
OAR_PLAIN_FORMAT(f32, float, kF32)
OAR_PLAIN_FORMAT(f16, ::oar::f16, kF16)
OAR_PLAIN_FORMAT(bf16, ::oar::bf16, kBF16)
OAR_PLAIN_FORMAT(f64, double, kF64)
OAR_PLAIN_FORMAT(e4m3, ::oar::e4m3, kE4M3)
OAR_PLAIN_FORMAT(e5m2, ::oar::e5m2, kE5M2)
OAR_PLAIN_FORMAT(i8, int8_t, kI8)
OAR_PLAIN_FORMAT(u8, uint8_t, kU8)
OAR_PLAIN_FORMAT(i16, int16_t, kI16)
OAR_PLAIN_FORMAT(u16, uint16_t, kU16)
OAR_PLAIN_FORMAT(i32, int32_t, kI32)
OAR_PLAIN_FORMAT(u32, uint32_t, kU32)
OAR_PLAIN_FORMAT(i64, int64_t, kI64)
OAR_PLAIN_FORMAT(u64, uint64_t, kU64)
namespace boolean {
inline constexpr FormatInfo kInfo = plain_format<BoolByte>("bool", DType::kBool);
}
#undef OAR_PLAIN_FORMAT

}  // namespace oar::formats
