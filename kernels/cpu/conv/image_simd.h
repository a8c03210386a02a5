// The families of ordinary models (kernels/conv.h, kernels/recurrent.h, kernels/resize.h) and the scan of
// those with a state (kernels/state_scan.h, which shares its products with recurrent layers), and what
// training adds (kernels/softmax_grad.h, kernels/optimizer.h), of one instruction set as registry entries.
// image_<isa>.cc names the set and includes this.
#pragma once

#include "kernels/cpu/conv/conv_simd.h"
#include "kernels/cpu/conv/depthwise_simd.h"
#include "kernels/cpu/conv/resize_simd.h"
#include "kernels/cpu/conv/winograd_simd.h"
#include "kernels/cpu/elementwise/narrow_simd.h"
#include "kernels/cpu/elementwise/optimizer_simd.h"
#include "kernels/cpu/elementwise/recurrent_simd.h"
#include "kernels/cpu/elementwise/softmax_grad_simd.h"
#include "kernels/cpu/elementwise/softmax_simd.h"
#include "kernels/cpu/elementwise/state_scan_simd.h"
#include "kernels/kernel_list.h"

namespace oar::OAR_SIMD_NAMESPACE {

constexpr std::array<KernelEntry, 15> image_kernels(Isa isa) {
  return {{{KernelFamily::kConv, isa, conv_plan, conv_run},
           {KernelFamily::kWinograd, isa, winograd_plan, winograd_run},
           {KernelFamily::kDepthwise, isa, depthwise_plan, depthwise_run},
           {KernelFamily::kPool, isa, pool_plan, pool_run},
           {KernelFamily::kSoftmax, isa, softmax_plan, softmax_run},
           {KernelFamily::kSeenSoftmax, isa, softmax_grad_plan<SeenSoftmaxArgs>, seen_softmax_run},
           {KernelFamily::kSoftmaxGrad, isa, softmax_grad_plan<SoftmaxGradArgs>, softmax_grad_run},
           {KernelFamily::kCrossEntropy, isa, softmax_grad_plan<CrossEntropyArgs>, cross_entropy_run},
           {KernelFamily::kSquares, isa, optimizer_plan, squares_run},
           {KernelFamily::kAdamw, isa, optimizer_plan, adamw_run},
           {KernelFamily::kActivate, isa, activate_plan, activate_run},
           {KernelFamily::kNarrow, isa, narrow_plan, narrow_run},
           {KernelFamily::kRecurrent, isa, recurrent_plan, recurrent_run},
           {KernelFamily::kResize, isa, resize_plan, resize_run},
           {KernelFamily::kStateScan, isa, state_scan_plan, state_scan_run}}};
}

}  // namespace oar::OAR_SIMD_NAMESPACE
