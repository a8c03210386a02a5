// Convolutions and products of 8-bit integers whose zero points come with a run (ConvInteger, MatMulInteger),
// channels in front of pixels. Of devices; the processor has kernels/quantized_conv.h.
//
//   out[n, m, o] = sum over the window of (x - x_zero) (w[m] - w_zeros[m])          (i32, wrapping)
//
// Padding stands for the zero point. A product of rows is the case H = W = OH = OW = 1, of N rows.
//
// Roofline: as quantized_conv.h.
#pragma once

#include "kernels/quantized_conv.h"

namespace oar {

struct IntegerConvArgs {
  uint32_t size = sizeof(IntegerConvArgs);
  uint32_t version = 1;
  int32_t* out = nullptr;            // (N, M, OH, OW)
  const uint8_t* x = nullptr;        // (N, C, H, W): u8, or i8 when x_signed
  const int8_t* w = nullptr;         // packed by pack_quantized_filters()
  const int32_t* w_sums = nullptr;   // [M], from the same call
  const int32_t* w_zeros = nullptr;  // [M]; null: 0
  const uint8_t* x_zero = nullptr;   // one byte as those of x; null: 0
  WindowShape window;
  int64_t C = 0, M = 0;
  bool x_signed = false;
};

inline KernelKey integer_conv_key() {
  static const Format u8 = Format::of(DType::kU8);
  return {.family = KernelFamily::kQuantizedConv, .weight = u8, .input = u8, .sum = Accumulation::kI32};
}

}  // namespace oar
