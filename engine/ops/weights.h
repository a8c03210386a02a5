// Weights of linear layers on their way to a kernel: the mapped bytes where the kernel reads them in place,
// otherwise a packed copy made in parallel, one tensor at a time. Shared by linear and grouped_linear.
#pragma once

#include "engine/ops/op_util.h"
#include "kernels/matmul.h"

namespace oar {

// The format a weight is computed in: `wanted` when given and the weight's shape allows it, otherwise as
// stored.
Format compute_format(const Tensor& w, const std::string& wanted, Backend& backend);

// Row-major copy of a matrix in another format that has an encoder, rows in parallel.
Result<Tensor> reencode(LowerContext& ctx, const Tensor& w, Format format);

// Weights of one op as they are prepared.
struct PreparedBytes {
  uint64_t owned = 0;  // packed or converted
  uint64_t all = 0;    // read by the kernel, owned or in place
  void give(LoweredOp& op) const { op.owned_bytes = owned, op.weight_bytes = all; }
};

// Device pointer to `w` in the layout the matmul kernel of `format` wants; `bytes` grows. The pages of a
// mapped weight that was copied are released.
Result<const void*> prepare_weight(LowerContext& ctx, const Tensor& w, Format format, PreparedBytes& bytes);

}  // namespace oar
