// Exact sums of 8-bit products through the kernel of kernels/quantized_conv.h, for ops whose operands' scales
// are not known before a run: MatMulInteger, ConvInteger and what quantizers make of them.
#pragma once

#include "engine/ops/tensor/util.h"
#include "kernels/conv.h"

namespace oar::tensor {

// M filters of K = taps C constant weights as i8: those of u8 less 128.
struct IntegerWeights {
  Tensor packed;
  std::vector<int32_t> sums;
  int64_t M = 0, K = 0;
  int32_t shift = 0;  // what was taken from each weight
  // One more filter of ones, where weights have zero points: it tells the sum of each window, which they are
  // multiplied by.
  bool ones = false;
  int64_t columns() const { return M + (ones ? 1 : 0); }
};

// Where weight (m, tap, c) lies.
struct IntegerFilters {
  int64_t M, taps, C, stride_m, stride_tap, stride_c;
};
// `zero`: the weights' zero points where they are constant; null where they are computed.
Result<std::shared_ptr<const void>> prepare_integer_weights(const Tensor& w, const Tensor* zero,
                                                            const IntegerFilters& f);
// For it: operand i of zero points, 0 where it is left out.
const Tensor* zero_of(const PrepareContext& ctx, size_t i);
// What the zero points of a run come to, [M]: to subtract times the window's sum. `zero`: one or M, empty: 0.
std::vector<int32_t> left_zeros(const IntegerWeights& w, const std::vector<int64_t>& zero);
// i32 (pixels of the result, columns()) = sums of (x - x_zero) w, wrapping; x u8 or i8 (N, H, W, C).
Result<Tensor> integer_sums(const EvalContext& ctx, const IntegerWeights& w, const WindowShape& window,
                            int64_t C, const Tensor& x, int32_t x_zero);

// The attributes of the quantized_add that follows within those of a quantized_conv: without "sum." in front.
Attrs sum_attrs(const Attrs& attrs);

// a - zero b, wrapping.
inline int32_t less_zero(int32_t sum, int32_t zero, int32_t window_sum) {
  return static_cast<int32_t>(static_cast<uint32_t>(sum) -
                              static_cast<uint32_t>(zero) * static_cast<uint32_t>(window_sum));
}
inline bool is_byte(const Tensor& t) { return dtype_of(t) == DType::kI8 || dtype_of(t) == DType::kU8; }

}  // namespace oar::tensor
