// f32 products through the matmul kernels of kernels/matmul.h, for evaluations: C (M, N) = A (M, K) . B (N,
// K)^T.
#pragma once

#include "engine/ops/tensor/util.h"

namespace oar::tensor {

// C += A . B^T when `accumulate`, else C = A . B^T. Rows of A and C are lda and ldc apart, B is dense.
Status gemm_nt(const EvalContext& ctx, int64_t M, int64_t N, int64_t K, const float* A, int64_t lda,
               const float* B, float* C, int64_t ldc, bool accumulate);

// dst (cols, rows) = src (rows, cols)^T
void transpose_f32(const float* src, float* dst, int64_t rows, int64_t cols);

// The general product of any numeric dtype, batched and broadcast as numpy.matmul does; `b_transposed` is a
// constant second operand already turned, or null.
Result<Tensor> matmul_tensors(const EvalContext& ctx, const Tensor& a, const Tensor& b,
                              const Tensor* b_transposed);

}  // namespace oar::tensor
