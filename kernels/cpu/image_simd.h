// The families of ordinary models (kernels/conv.h, kernels/recurrent.h) of one instruction set as registry
// entries. image_<isa>.cc names the set and includes this.
#pragma once

#include "kernels/cpu/conv_simd.h"
#include "kernels/cpu/depthwise_simd.h"
#include "kernels/cpu/narrow_simd.h"
#include "kernels/cpu/recurrent_simd.h"
#include "kernels/cpu/softmax_simd.h"
#include "kernels/cpu/winograd_simd.h"
#include "kernels/kernel_list.h"

#define OAR_IMAGE_STRING_(x) #x
#define OAR_IMAGE_STRING(x) OAR_IMAGE_STRING_(x)

namespace oar::OAR_SIMD_NAMESPACE {

inline void append_image(KernelList& list, Isa isa) {
#define OAR_ENTRY(family, name, plan, run) \
  list.push_back(                          \
      {KernelFamily::family, isa, name "." OAR_IMAGE_STRING(OAR_SIMD_NAMESPACE), std::nullopt, plan, run})
  OAR_ENTRY(kConv, "conv", conv_plan, conv_run);
  OAR_ENTRY(kWinograd, "winograd", winograd_plan, winograd_run);
  OAR_ENTRY(kDepthwise, "depthwise", depthwise_plan, depthwise_run);
  OAR_ENTRY(kPool, "pool", pool_plan, pool_run);
  OAR_ENTRY(kSoftmax, "softmax", softmax_plan, softmax_run);
  OAR_ENTRY(kActivate, "activate", activate_plan, activate_run);
  OAR_ENTRY(kNarrow, "narrow", narrow_plan, narrow_run);
  OAR_ENTRY(kRecurrent, "recurrent", recurrent_plan, recurrent_run);
#undef OAR_ENTRY
}

}  // namespace oar::OAR_SIMD_NAMESPACE
