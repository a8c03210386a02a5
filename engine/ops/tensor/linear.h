// What engine/ops/linear.cc has of ordinary models, whose sizes are known when they run.
#pragma once

#include "engine/graph/evaluate.h"
#include "engine/graph/lowering.h"

namespace oar::tensor {

Status linear(EvalContext& ctx);
Result<bool> linear_by_kernels(KernelContext& ctx);
Result<std::shared_ptr<const void>> prepare_linear(PrepareContext& ctx);
Lowered lower_linear(LowerContext& ctx);

}  // namespace oar::tensor
