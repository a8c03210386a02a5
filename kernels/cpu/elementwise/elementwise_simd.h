// All the row-wise families of one instruction set as registry entries. elementwise_<isa>.cc names the set
// and includes this.
#pragma once

#include "kernels/cpu/elementwise/activation_simd.h"
#include "kernels/cpu/elementwise/causal_conv_simd.h"
#include "kernels/cpu/elementwise/embedding_simd.h"
#include "kernels/cpu/elementwise/hadamard_simd.h"
#include "kernels/cpu/elementwise/lora_simd.h"
#include "kernels/cpu/elementwise/moe_simd.h"
#include "kernels/cpu/elementwise/norm_simd.h"
#include "kernels/cpu/elementwise/reduce_simd.h"
#include "kernels/cpu/elementwise/rope_simd.h"
#include "kernels/kernel_list.h"

namespace oar::OAR_SIMD_NAMESPACE {

constexpr std::array<KernelEntry, 15> elementwise_kernels(Isa isa) {
  return {{{KernelFamily::kRmsNorm, isa, norm_plan<RmsNormArgs>, rms_norm_run},
           {KernelFamily::kLayerNorm, isa, norm_plan<LayerNormArgs>, layer_norm_run},
           {KernelFamily::kRope, isa, rope_plan, rope_run},
           {KernelFamily::kSwiGlu, isa, swiglu_plan, swiglu_run},
           {KernelFamily::kUnary, isa, unary_plan, unary_run},
           {KernelFamily::kBinary, isa, binary_plan, binary_run},
           {KernelFamily::kEmbedding, isa, embedding_plan, embedding_run},
           {KernelFamily::kGatherRows, isa, gather_plan, gather_run},
           {KernelFamily::kHadamard, isa, hadamard_plan, hadamard_run},
           {KernelFamily::kMoeRoute, isa, route_plan, route_run},
           {KernelFamily::kMoeCombine, isa, combine_plan, combine_run},
           {KernelFamily::kReduce, isa, reduce_plan, reduce_run},
           {KernelFamily::kCausalConv, isa, causal_conv_plan, causal_conv_run},
           {KernelFamily::kLora, isa, lora_plan, lora_run<float>, "f32"},
           {KernelFamily::kLora, isa, lora_plan, lora_run<bf16>, "bf16"}}};
}

}  // namespace oar::OAR_SIMD_NAMESPACE
