// Products of matrices whatever the operands are: by the kernels of kernels/matmul.h and kernels/conv.h, and
// plainly. A row of a result does not depend on how many other rows there are.
#pragma once

#include "engine/ops/tensor/util.h"

namespace oar::tensor {

// C (M, N) = A (M, K) . B (N, K)^T of f32, B stored as `format` (f32, f16 or bf16), decoded exactly. Rows of
// A and C are lda and ldc apart, B is dense.
Status gemm_nt(const KernelContext& ctx, int64_t M, int64_t N, int64_t K, const float* A, int64_t lda,
               const void* B, Format format, float* C, int64_t ldc);

// dst (cols, rows) = src (rows, cols)^T
void transpose_f32(const float* src, float* dst, int64_t rows, int64_t cols);

// Products of equal sizes whose second operands are no constants: each is packed on the way.
struct Products {
  int64_t M = 0, N = 0, K = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  float* out = nullptr;             // (at_a.size(), M, N), dense
  int64_t lda = 0;                  // from row to row of a
  int64_t b_row = 0, b_col = 0;     // from element (k, n) of b to (k + 1, n) and to (k, n + 1)
  std::vector<int64_t> at_a, at_b;  // where each product's operands begin
  bool add = false;                 // out += the products
};
Status packed_products(const KernelContext& ctx, const Products& p);

// The general product, batched and broadcast as numpy.matmul does. Of any numeric dtype by a plain loop: in
// double, integers wrap.
Result<Tensor> matmul_tensors(const EvalContext& ctx, const Tensor& a, const Tensor& b);
// The same of f32, f16 and bf16 by kernels; `b_transposed` is a constant second operand already turned, or
// null.
Result<Tensor> matmul_by_kernels(const KernelContext& ctx, const Tensor& a, const Tensor& b,
                                 const Tensor* b_transposed);
// Whether that has kernels for a dtype.
bool has_product_kernel(DType t);

}  // namespace oar::tensor
