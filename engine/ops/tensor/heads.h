// Attention of single heads through the packed products, for whatever op and layout.
#pragma once

#include <functional>

#include "engine/ops/tensor/kernel_call.h"

namespace oar::tensor {

// Of one head of one batch entry: S queries and T keys of D, T values of DV. The next row of an operand is so
// many elements behind the one before.
struct HeadShape {
  int64_t S = 0, T = 0, D = 0, DV = 0;
  int64_t q_row = 0, k_row = 0, v_row = 0, out_row = 0;
  int64_t mask_row = 0;  // 0: one row of T for all queries
  float scale = 1.f;
};
struct Head {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* mask = nullptr;  // added to the scaled scores, or null
  float* out = nullptr;         // (S, DV)
};

// out = softmax(q k^T scale + mask) v for each of `heads`; `head` may be called from any worker.
Status attend_heads(const EvalContext& ctx, const HeadShape& s, int64_t heads,
                    const std::function<Head(int64_t)>& head);

}  // namespace oar::tensor
