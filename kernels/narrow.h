// f32 values in fewer bits: bf16 and f16, or the 8-bit operands of kernels/quantized_conv.h with a scale and
// a zero point per row (an image, or a row of a product). These are found from its values or given as one
// range.
//
//   bf16:    out = round half to even (x); a NaN stays one
//   f16:     the same; what rounds beyond 65504 becomes infinite
//   u8:      scale = (high - low) / 255, zero = round(-low / scale),
//            out = clamp(round(x inverse) + zero, 0, 255)
//            with inverse = 1 / scale, low = min(0, least of the row) and high = max(0, largest): a real 0 is
//            exact, and |x - (out - zero) scale| <= scale for every x of the row. Given a range, what lies
//            beyond it becomes its end. A row with a value that is not finite gets the scale NaN, which then
//            reaches every result of that row; given a range, NaN becomes an end of it.
//   given a scale (`divisor` above 0, as QuantizeLinear has it): out = clamp(round half even (x / divisor) +
//            offset, least, least + 255) as a u8 (least 0) or i8 (least -128); NaN gives 0
//   with an own range (`own_scale`), as DynamicQuantizeLinear has it: the same of u8, with scale = (high -
//   low)
//            / 255 and offset = clamp(round half even (-low / scale), 0, 255), low and high over all values
//            and 0; a NaN is neither. Where the scale is 0 or infinite all codes are 0, and the offset.
//
// Roofline: bytes of x, twice where a row's range is looked for, and of out, over memory bandwidth.
#pragma once

#include <cmath>

#include "kernels/kernel.h"

namespace oar {

struct NarrowArgs {
  uint32_t size = sizeof(NarrowArgs);
  uint32_t version = 4;
  void* out = nullptr;       // [rows, n] of u8, bf16 or f16
  const float* x = nullptr;  // [rows, n]
  int64_t rows = 0, n = 0;
  bool bf16 = false;
  float* scale = nullptr;       // [rows]: written; u8 only
  int32_t* zero = nullptr;      // [rows]: written; u8 only
  float low = 1.f, high = 0.f;  // the range, low <= 0 <= high; low > high: each row's own
  float divisor = 0.f;          // above 0: the scale, and then nothing is written to `scale` and `zero`
  int32_t offset = 0, least = 0;
  bool f16 = false;
  // One number each, written: the scale and the offset of all rows together. Null, or both.
  float* own_scale = nullptr;
  uint8_t* own_zero = nullptr;
};

struct NarrowScale {
  float scale, inverse;
  int32_t zero;
};
// Of an own range; `inverse` is 0 where all codes are.
inline NarrowScale range_scale(float low, float high) {
  const float scale = (high - low) / 255.f;
  if (!(scale > 0.f && scale <= 3.4028235e38f)) return {scale, 0.f, 0};
  const float zero = std::nearbyint(-low / scale);
  return {scale, 1.f / scale, static_cast<int32_t>(zero < 255.f ? zero : 255.f)};
}
// Of a range low <= 0 <= high.
inline NarrowScale narrow_scale(float low, float high) {
  const float scale = (high - low) / 255.f;
  constexpr float kLeast = 1e-37f;  // beneath it a quotient may overflow: such values count as 0
  if (scale >= kLeast && scale < 3e36f) {
    const float zero = -low / scale + 0.5f;
    return {scale, 1.f / scale, static_cast<int32_t>(zero)};
  }
  if (scale < kLeast) return {1.f, 1.f, 0};
  return {scale - scale, 0.f, 0};  // infinite or NaN: NaN
}

}  // namespace oar
