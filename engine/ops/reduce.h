// Reductions by their kernel, for the ops that are one.
#pragma once

#include "engine/graph/lowering.h"
#include "kernels/reduce.h"

namespace oar {

// The call for a node {axes, keepdims, noop_with_empty_axes} over f32 whose reduced axes lie together; of
// other nodes none.
Lowered reduce_lower(LowerContext& ctx, ReduceOp op);

inline constexpr const char* kComputedAxes = "computed axes";  // OpDef::no_gradient_of

}  // namespace oar
