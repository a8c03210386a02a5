// Exact sums of 8-bit products through the kernel of kernels/quantized_conv.h, for ops whose operands' scales
// are not known before a run: MatMulInteger, ConvInteger and what quantizers make of them.
#pragma once

#include "engine/ops/tensor/conv.h"

namespace oar::tensor {

// M filters of K = taps C constant weights as i8: those of u8 less 128.
struct IntegerWeights {
  Tensor packed;
  std::vector<int32_t> sums;
  int64_t M = 0, K = 0;
  int32_t shift = 0;  // what was taken from each weight
};

// Where weight (m, tap, c) lies.
struct IntegerFilters {
  int64_t M, taps, C, stride_m, stride_tap, stride_c;
};
// Of constant bytes, operand `operand`, whose zero points are operand `zero`: IntegerWeights of the
// processor, else what lower_integers() takes; null where a device's would have to be computed.
Result<std::shared_ptr<const void>> prepare_integer_weights(PrepareContext& ctx, size_t operand, size_t zero,
                                                            const IntegerFilters& f);
// The call on a device whose result 0 is i32 (N, M, ...) and has `result` as its shape. The node's operands
// are x, weights, x's zero point and the weights'; ctx.prepared is from prepare_integer_weights().
Lowered lower_integers(LowerContext& ctx, const WindowShape& window, int64_t C, const Shape& result);
// i32 (pixels of the result, M) = sums of (x - x_zero)(w - w_zero), wrapping; x u8 or i8 (N, H, W, C).
// w_zero: one or M, empty: 0.
Result<Tensor> integer_sums(const KernelContext& ctx, const IntegerWeights& w, const WindowShape& window,
                            int64_t C, const Tensor& x, int32_t x_zero, const std::vector<int64_t>& w_zero);

// i32 (N, M, ...) = sums of (x - x_zero)(w - w_zero) over 8-bit operands, wrapping, by a plain loop.
Result<Tensor> integer_conv(const EvalContext& ctx, const Conv& c, const Tensor& x, const Tensor& w,
                            const std::vector<int64_t>& x_zero, const std::vector<int64_t>& w_zero);

// --- evaluation of layers that passes make, quantized_plain.cc ---

// quantized_add(a, b) {a_scale, a_zero, b_scale, b_zero, y_dtype, y_scale, y_zero, low, high}, broadcast:
// what dequantizing both, adding and quantizing compute.
Status quantized_add(EvalContext& ctx);
// quantized_conv(x, w (M, C, KH, KW), w_scale, bias?, other?, x_scale?, x_zero?, w_zero?) {those of conv,
// x_scale, x_zero, y_dtype, y_scale, y_zero, low, high}: x is u8 or i8 of real value (x - x_zero) x_scale, w
// i8 of value (w - w_zero[m]) w_scale[m], w_zero i8; bias i32 in units of x_scale w_scale[m], or f32. The
// operands x_scale and x_zero, each one number, stand for the attributes of a layer whose result is f32. The
// result is f32, or u8 or i8 of scale y_scale. `low` and `high` bound its value; `activation` (as of conv)
// follows, before any rounding to y_scale, and then there are no bounds where the result is u8 or i8. `other`
// of an f32 result is an f32 residual, added before the bounds. Else it is u8 or i8 and as the result, and
// quantized_add() of both follows, whose attributes are those of that op with "sum." before their names; `a`
// is the convolution.
Status quantized_conv(EvalContext& ctx);
// quantized_linear(x (..., K), w (N, K), w_scale, bias?, residual?, x_scale?, x_zero?, w_zero?): the same of
// a product, whose result beside a residual is f32; w (K, N) when `input_major`.
Status quantized_linear(EvalContext& ctx);

inline DType y_dtype(const Attrs& a) {
  const std::string name = a.get_string("y_dtype");
  return name == "i8" ? DType::kI8 : name == "u8" ? DType::kU8 : DType::kF32;
}
// The attributes of the quantized_add that follows within those of a quantized_conv: without "sum." in front.
Attrs sum_attrs(const Attrs& attrs);

inline bool is_byte(DType t) { return t == DType::kI8 || t == DType::kU8; }
inline bool is_byte(const Tensor& t) { return is_byte(dtype_of(t)); }
inline bool is_byte(const ValueInfo& v) { return v.given && v.format.plain() && is_byte(v.format.dtype()); }

}  // namespace oar::tensor
