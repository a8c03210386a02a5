// Products with a layer's matrix (N, K) in whatever format it is stored, forwards and back; what the ops of
// ops.h share.
#pragma once

#include "engine/graph/evaluate.h"

namespace oar::train {

// A constant matrix in the layout of its kernel; null where that reads it in place.
struct StoredMatrix {
  Tensor packed;
};
Result<std::shared_ptr<const void>> prepare_matrix(PrepareContext& ctx, size_t operand);
template <size_t kOperand>
Result<std::shared_ptr<const void>> prepare_stored_matrix(PrepareContext& ctx) {
  return prepare_matrix(ctx, kOperand);
}

// out (rows, N) = x (rows, K) . w^T + bias, by the kernel that serves. `stored`: as prepare_matrix() gave it.
Status stored_product(const KernelContext& ctx, const float* x, int64_t rows, const Tensor& w,
                      const StoredMatrix* stored, const float* bias, float* out);
// out (rows, K) = dy (rows, N) . w; rows of dy are `ldy` apart, 0: N.
Status product_back(const KernelContext& ctx, const float* dy, int64_t rows, const Tensor& w, float* out,
                    int64_t ldy = 0);

}  // namespace oar::train
