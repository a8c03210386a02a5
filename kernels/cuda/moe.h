// Routing to experts on a CUDA device, without a host round trip (kernels/moe.h); their products: matmul.h.
// Roofline: memory, logits and what is chosen once; combining, the rows of a token's experts and its own.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/moe.h"
#include "kernels/norm.h"

namespace oar::cuda {

// Two floats a warp and expert fit shared memory.
inline constexpr int64_t kMostExperts = 4096, kMostExpertGroups = 1024;
// Bytes that moe_route needs beside its outputs.
uint64_t moe_route_scratch(const MoeRouteArgs& args);
CudaStatus moe_route(const MoeRouteArgs& args, void* scratch, Stream stream);
CudaStatus moe_combine(const MoeCombineArgs& args, Stream stream);
// And a norm of as many rows and columns, whose x or residual they are, in one launch. Nobody but a row's
// block meets what it writes.
CudaStatus moe_combine_norm(const MoeCombineArgs& args, const RmsNormArgs& norm, Stream stream);

}  // namespace oar::cuda
