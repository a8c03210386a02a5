// Weights of linear layers on their way to a kernel: the mapped bytes where the kernel reads them in place,
// otherwise a packed copy made in parallel, one tensor at a time. Shared by linear and grouped_linear.
#pragma once

#include "engine/ops/op_util.h"
#include "kernels/matmul.h"

namespace oar {

// The format that a weight of this format and shape (rows, columns) is computed in: `wanted` when given and
// the shape allows it, otherwise as stored.
Format compute_format(Format stored, const Shape& shape, const std::string& wanted, const Backend& backend);
inline Format compute_format(const LowerContext& ctx, size_t input, const std::string& wanted) {
  return compute_format(ctx.weight_format(input), ctx.weight_shape(input), wanted, ctx.backend);
}

// Weight operand `input` in rows, one behind the other, of a format: as an embedding reads it, and a matmul
// kernel whose format is used in place.
Result<const StoredWeight*> weight_rows(const LowerContext& ctx, size_t input, Format format);

// Whether a linear layer of the graph reads its weights, of format `own`, in panels of the convolution
// kernel: those with the attribute `many_rows`, whose rows always come in numbers (an encoder's), of f32 and
// f16. Panels multiply many rows faster than rows in the file's layout, but take a copy of the weights, and
// a single row, which decoding consists of, gains nothing.
bool in_panels(const Node& linear, Format own, const Backend& backend);
uint64_t panel_bytes(int64_t n, int64_t K, const Backend& backend);
// The layer with all its segments in one call.
Lowered lower_in_panels(LowerContext& ctx);

// In the layout that the matmul kernel of `format` wants. The pages of a mapped weight that was copied are
// released.
Result<const StoredWeight*> matmul_weight(const LowerContext& ctx, size_t input, Format format);

}  // namespace oar
