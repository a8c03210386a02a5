// The 8-bit product of kernels/quantized_conv.h for ops whose operands' scales are not known before a run.
#pragma once

#include "engine/ops/tensor/util.h"

namespace oar::tensor {

// A constant i8 matrix (K, N) in the kernel's layout.
Result<std::shared_ptr<const void>> prepare_integer_matrix(const Tensor& w);
// i32 (..., N) = (x - x_zero) (..., K) . w, x u8 or i8 whose last axis is K; `prepared` is what
// prepare_integer_matrix made.
Result<Tensor> integer_product(const EvalContext& ctx, const Tensor& x, int32_t x_zero, const void* prepared);
// The inner extent of that matrix.
int64_t integer_matrix_k(const void* prepared);

}  // namespace oar::tensor
