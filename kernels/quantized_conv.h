// Convolution of 8-bit integers over pixels whose channels lie together, and products with 8-bit matrices
// (the case H = KH = KW = 1). Sums are exact in i32; each is scaled, bounded and rounded once. Every kernel
// gives the same bits.
//
//   s = bias[m] + sum over the window of (x - x_zero) w[m]                       (i32, wrapping)
//   t = clamp(float(s) scale[m] + shift[m], low, high)                           (f32, two roundings)
//   out = t (kF32), or round half to even (t) + y_zero (kU8, kI8), or s (kI32)
//
// Padding stands for x_zero. A window's K = KH KW C values are gathered into a row, so that one product of
// rows and panels serves every window; rows of 1x1 windows with C a multiple of 64 are read where they lie.
//
// Roofline: 2 N OH OW M K over the machine's int8 peak; gathering reads and writes N OH OW K bytes.
//
// Filters are packed into panels of 16 channels: (panels, Kp / 4, 16, 4) with k = (tap, channel) and
// Kp = K rounded up to 64, padded with zeros: the operand of VNNI and AMX alike.
#pragma once

#include "kernels/conv.h"

namespace oar {

enum class QuantizedOut : int32_t { kF32, kU8, kI8, kI32 };

struct QuantizedConvArgs {
  uint32_t size = sizeof(QuantizedConvArgs);
  uint32_t version = 1;
  void* out = nullptr;              // (N, OH, OW, M)
  const uint8_t* x = nullptr;       // (N, H, W, C): u8, or i8 when x_signed
  const int8_t* w = nullptr;        // packed by pack_quantized_filters(), 64-byte aligned
  const int32_t* w_sums = nullptr;  // [M]: sums of each filter's weights, from the same call
  const int32_t* bias = nullptr;    // [M] or null
  const float* scale = nullptr;     // [M]; not read for kI32
  const float* shift = nullptr;     // [M] or null
  WindowShape window;
  int64_t C = 0, M = 0;
  int32_t x_zero = 0, y_zero = 0;
  bool x_signed = false;
  QuantizedOut out_type = QuantizedOut::kU8;
  // For kU8 and kI8 integers within the type's range less y_zero.
  float low = 0.f, high = 0.f;
};

inline constexpr int64_t kQuantizedPanel = 16, kQuantizedStep = 64;

// K rounded up, and bytes of packed filters.
inline int64_t quantized_k(int64_t K) { return (K + kQuantizedStep - 1) / kQuantizedStep * kQuantizedStep; }
int64_t quantized_filter_bytes(int64_t M, int64_t K);
// From w[m * stride_m + tap * stride_tap + c * stride_c]; a file's (M, C, KH, KW) has strides C taps, 1 and
// taps, a matrix (C, M) has 1, 0 and M, its transpose (M, C) has C, 0 and 1. sums: [M].
void pack_quantized_filters(int8_t* dst, int32_t* sums, const int8_t* w, int64_t M, int64_t taps, int64_t C,
                            int64_t stride_m, int64_t stride_tap, int64_t stride_c);

}  // namespace oar
