// All the row-wise families of one instruction set as registry entries. elementwise_<isa>.cc names the set
// and includes this.
#pragma once

#include "kernels/cpu/activation_simd.h"
#include "kernels/cpu/embedding_simd.h"
#include "kernels/cpu/hadamard_simd.h"
#include "kernels/cpu/moe_simd.h"
#include "kernels/cpu/norm_simd.h"
#include "kernels/cpu/rope_simd.h"
#include "kernels/kernel_list.h"

#define OAR_STRING_(x) #x
#define OAR_STRING(x) OAR_STRING_(x)

namespace oar::OAR_SIMD_NAMESPACE {

inline void append_elementwise(KernelList& list, Isa isa) {
#define OAR_ENTRY(family, name, plan, run) \
  list.push_back(                          \
      {KernelFamily::family, isa, name "." OAR_STRING(OAR_SIMD_NAMESPACE), std::nullopt, plan, run})
  OAR_ENTRY(kRmsNorm, "rms_norm", norm_plan<RmsNormArgs>, rms_norm_run);
  OAR_ENTRY(kLayerNorm, "layer_norm", norm_plan<LayerNormArgs>, layer_norm_run);
  OAR_ENTRY(kRope, "rope", rope_plan, rope_run);
  OAR_ENTRY(kSwiGlu, "swiglu", swiglu_plan, swiglu_run);
  OAR_ENTRY(kUnary, "unary", unary_plan, unary_run);
  OAR_ENTRY(kBinary, "binary", binary_plan, binary_run);
  OAR_ENTRY(kEmbedding, "embedding", embedding_plan, embedding_run);
  OAR_ENTRY(kGatherRows, "gather_rows", gather_plan, gather_run);
  OAR_ENTRY(kHadamard, "hadamard", hadamard_plan, hadamard_run);
  OAR_ENTRY(kMoeRoute, "moe_route", route_plan, route_run);
  OAR_ENTRY(kMoeCombine, "moe_combine", combine_plan, combine_run);
#undef OAR_ENTRY
}

}  // namespace oar::OAR_SIMD_NAMESPACE
