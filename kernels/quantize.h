// Linear quantization as QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear have it, with scales and
// zero points in memory, where a run may have put them. Of devices; the processor has kernels/narrow.h.
//
//   to codes:  code = clamp(round half to even (value / scale) + zero, least, least + 255), of a NaN 0
//   to values: value = float(code - zero) scale
//
// with least = -128 of i8, else 0. An own range goes from low to high, the least and the largest of the
// values and 0; a NaN is neither. Its scale is (high - low) / 255, its zero point clamp(round half to even
// (-low / scale), 0, 255). Without a range all is 0. Each step is rounded to f32, so that every kernel gives
// the same bits.
//
// Roofline: 5 bytes an element over memory bandwidth, 9 with an own range.
#pragma once

#include "kernels/kernel.h"

namespace oar {

struct QuantizeArgs {
  uint32_t size = sizeof(QuantizeArgs);
  uint32_t version = 1;
  float* values = nullptr;  // [n]; written to where `to_values`, else read
  void* codes = nullptr;    // [n] of u8, or i8 where `is_signed`; of i32, with integers_key()
  int64_t n = 0;
  const float* scale = nullptr;   // [count]; null: 1
  const uint8_t* zero = nullptr;  // [count], bytes as the codes are; null: 0
  int64_t count = 1, inner = 1;   // element i has scale i / inner % count
  bool to_values = false, is_signed = false;
  // An own range: both are written, and `scale` and `zero` are not read. To codes of u8 only.
  float* own_scale = nullptr;
  uint8_t* own_zero = nullptr;
};

// Codes of 8 bits, both ways, and integers of 32 to values, without scale and zero point.
inline KernelKey quantize_key() {
  return {.family = KernelFamily::kNarrow, .weight = Format::of(DType::kU8)};
}
inline KernelKey integers_key() {
  return {.family = KernelFamily::kNarrow, .weight = Format::of(DType::kI32)};
}

}  // namespace oar
