// Kernel calls of ops that move elements and compute nothing (kernels/strided_copy.h): lower() of them. What
// sizes of the run's values decide, text, and results of which nothing moves stay with evaluate().
#pragma once

#include "engine/graph/lowering.h"

namespace oar::tensor {

Lowered lower_transpose(LowerContext& ctx);
Lowered lower_slice(LowerContext& ctx);
Lowered lower_split(LowerContext& ctx);
Lowered lower_concat(LowerContext& ctx);
Lowered lower_pad(LowerContext& ctx);
Lowered lower_expand(LowerContext& ctx);
Lowered lower_tile(LowerContext& ctx);
Lowered lower_depth_to_space(LowerContext& ctx);
Lowered lower_space_to_depth(LowerContext& ctx);

}  // namespace oar::tensor
