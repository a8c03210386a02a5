// Convolution of narrow operands over pixels whose channels lie together, and products with narrow matrices
// (the case H = KH = KW = 1): 8-bit integers (int8_conv_key()) and bf16 (bf16_conv_key()).
//
// 8-bit integers: sums are exact in i32; each is scaled, bounded and rounded once, so that every kernel gives
// the same bits (but for `epilogue`, whose functions differ in the last places between instruction sets).
//
//   s = bias[m] + sum over the window of (x - zero) w[m]                         (i32, wrapping)
//   t = clamp(float(s) (scale[m] x_scale[n]) + shift[m] + residual, low, high)   (f32, each step rounded)
//   out = epilogue(t) (kF32), or round half to even (t) + y_zero (kU8, kI8), or s (kI32)
//
// Bytes behind an epilogue that is no clamp: t is not bounded, and
//   out = round half to even (clamp(epilogue(t) y_inverse, low, high)) + y_zero (kU8, kI8; no sum)
//
// bf16: s = sum over the window of x w[m], in f32, in an order that depends on K alone, subnormals taken for
// zero; t = s + shift[m] + residual, and on as above with kF32, or bounded and rounded to bf16 (kBF16).
// Against exact sums of the rounded operands the error is that of K additions in f32; bf16 itself rounds each
// operand by at most 2^-8 of its value.
//
// Depthwise (8-bit only): each channel has one filter of its own, C = M, the same formula; filters are (KH,
// KW, C) as they are, w_sums is not read, neither are x_scale and x_zeros.
//
// Padding stands for the zero point. A window's K = KH KW C values are gathered into a row, so that one
// product of rows and panels serves every window; rows of 1x1 windows with C values of a multiple of 64 bytes
// are read where they lie.
//
// Roofline: 2 N OH OW M K over the machine's int8 (bf16) peak; gathering reads and writes N OH OW K values.
//
// Filters are packed into panels of 16 channels: (panels, Kp / 4, 16, 4) bytes with k = (tap, channel) and Kp
// = the bytes of K values rounded up to 64, padded with zeros: the operand of VNNI, AVX512-BF16 and AMX
// alike.
#pragma once

#include "kernels/conv.h"

namespace oar {

enum class QuantizedOut : int32_t { kF32, kU8, kI8, kI32, kBF16 };

// What may follow an 8-bit result r: the sum with another 8-bit tensor, bounded and rounded once more, as
// dequantizing both, adding and quantizing compute:
//   out = round half to even (clamp(((r - y_zero) scale + (o - other_zero) other_scale) / sum_scale, low,
//   high))
//         + zero
struct QuantizedSum {
  const uint8_t* other = nullptr;  // as out, or null: no sum; may be `out` itself
  bool other_signed = false;
  float scale = 1.f, other_scale = 1.f, other_zero = 0.f, sum_scale = 1.f;
  float low = 0.f, high = 0.f;  // integers within the type's range less `zero`
  int32_t zero = 0;
};

struct QuantizedConvArgs {
  uint32_t size = sizeof(QuantizedConvArgs);
  uint32_t version = 1;
  void* out = nullptr;         // (N, OH, OW, M)
  const uint8_t* x = nullptr;  // (N, H, W, C): u8, i8 when x_signed, or bf16
  const int8_t* w = nullptr;   // packed by pack_quantized_filters() or pack_bf16_filters(), 64-byte aligned
  const int32_t* w_sums = nullptr;  // [M]: sums of each filter's weights, from the same call; not for bf16
  const int32_t* bias = nullptr;    // [M] or null; not for bf16
  const float* scale = nullptr;     // [M]; not read for kI32 and bf16
  const float* shift = nullptr;     // [M] or null
  WindowShape window;
  int64_t C = 0, M = 0;
  int32_t x_zero = 0, y_zero = 0;
  bool x_signed = false;
  bool depthwise = false;
  QuantizedOut out_type = QuantizedOut::kU8;
  // For kU8 and kI8 integers within the type's range less y_zero.
  float low = 0.f, high = 0.f;
  QuantizedSum sum;  // kU8 and kI8 only
  // Scale and zero point of each image instead of x_zero: [N], or null both. kF32 only.
  const float* x_scale = nullptr;
  const int32_t* x_zeros = nullptr;
  // As out, of f32, or null; may be an f32 `out` itself. kF32 and kBF16.
  const float* residual = nullptr;
  // What follows the bounds (kF32) or precedes them (kU8, kI8); kNone or kClamp: nothing.
  Epilogue epilogue = Epilogue::kNone;
  float alpha = 0.f, beta = 0.f;
  float y_inverse = 1.f;  // of bytes behind an epilogue: 1 / their scale
};

// What kernels of bf16 take as well; told by `size`.
struct Bf16ProductArgs : QuantizedConvArgs {
  Bf16ProductArgs() { size = sizeof(Bf16ProductArgs); }
  // Bytes from panel to panel of w, a multiple of 64; 0: as they are packed for K. So the first values of
  // longer filters are multiplied; those up to the next 32 are read and must be finite.
  int64_t panel = 0;
  int64_t ldo = 0;  // elements from pixel to pixel of `out` and `residual`; 0: M
  // x is packed as w is, of a matrix (K, rows): a product of its transpose. 1x1 windows alone.
  bool x_packed = false;
  static int64_t panel_of(const QuantizedConvArgs& a, int64_t packed) {
    return of(a) != nullptr && of(a)->panel > 0 ? of(a)->panel : packed;
  }
  static bool x_packed_of(const QuantizedConvArgs& a) { return of(a) != nullptr && of(a)->x_packed; }
  static int64_t ldo_of(const QuantizedConvArgs& a) {
    return of(a) != nullptr && of(a)->ldo > 0 ? of(a)->ldo : a.M;
  }

 private:
  static const Bf16ProductArgs* of(const QuantizedConvArgs& a) {
    return a.size == sizeof(Bf16ProductArgs) ? static_cast<const Bf16ProductArgs*>(&a) : nullptr;
  }
};
static_assert(sizeof(Bf16ProductArgs) > sizeof(QuantizedConvArgs));

// What the processor's kernels of 8-bit integers take as well, told by `size`: operands that are quantized by
// their range in the run, and weights with zero points. With these
//   s = bias[m] + sum over the window of (x - zero)(w[m] - w_zeros[m])
struct RunConvArgs : QuantizedConvArgs {
  RunConvArgs() { size = sizeof(RunConvArgs); }
  const int32_t* w_zeros = nullptr;   // [M], or null: 0. Without x_zeros
  const float* run_scale = nullptr;   // one number that `scale` is multiplied by, or null: 1. kF32
  const uint8_t* run_zero = nullptr;  // one number as those of x, instead of x_zero; or null
  // Null where a is none.
  static const RunConvArgs* of(const QuantizedConvArgs& a) {
    return a.size == sizeof(RunConvArgs) ? static_cast<const RunConvArgs*>(&a) : nullptr;
  }
  // What they come to, as arguments without them.
  static int32_t zero_of(const QuantizedConvArgs& a) {
    const RunConvArgs* const run = of(a);
    if (run == nullptr || run->run_zero == nullptr) return a.x_zero;
    return a.x_signed ? static_cast<int8_t>(*run->run_zero) : *run->run_zero;
  }
  static float scale_of(const QuantizedConvArgs& a) {
    return of(a) != nullptr && of(a)->run_scale != nullptr ? *of(a)->run_scale : 1.f;
  }
  static const int32_t* w_zeros_of(const QuantizedConvArgs& a) {
    return of(a) != nullptr ? of(a)->w_zeros : nullptr;
  }
};
static_assert(sizeof(RunConvArgs) > sizeof(QuantizedConvArgs));

inline constexpr int64_t kQuantizedPanel = 16, kQuantizedStep = 64;

// Bytes of K values of one filter rounded up, and of packed filters; `width`: bytes of a value.
inline int64_t quantized_k(int64_t K, int64_t width = 1) {
  return (K * width + kQuantizedStep - 1) / kQuantizedStep * kQuantizedStep;
}
int64_t quantized_filter_bytes(int64_t M, int64_t K, int64_t width = 1);
// From w[m * stride_m + tap * stride_tap + c * stride_c]; a file's (M, C, KH, KW) has strides C taps, 1 and
// taps. A matrix (C, M) has 1, 0 and M; its transpose (M, C) has C, 0 and 1. sums: [M].
void pack_quantized_filters(int8_t* dst, int32_t* sums, const int8_t* w, int64_t M, int64_t taps, int64_t C,
                            int64_t stride_m, int64_t stride_tap, int64_t stride_c);
// The same of f32 filters rounded to bf16, and to 8-bit integers with one scale per filter: the largest
// weight becomes 127 or -127. scale: [M]; 0 for a filter of zeros. Weights must be finite.
void pack_bf16_filters(int8_t* dst, const float* w, int64_t M, int64_t taps, int64_t C, int64_t stride_m,
                       int64_t stride_tap, int64_t stride_c);
void pack_rounded_filters(int8_t* dst, int32_t* sums, float* scale, const float* w, int64_t M, int64_t taps,
                          int64_t C, int64_t stride_m, int64_t stride_tap, int64_t stride_c);

}  // namespace oar
