// The attention kernels of one instruction set whose cache is widened to f32, as registry entries.
#pragma once

#include "kernels/cpu/attention_float.h"
#include "kernels/cpu/attention_quant_entries.h"
#include "kernels/cpu/attention_register.h"
#include "kernels/cpu/kv_append_simd.h"
#include "kernels/kernel_list.h"

namespace oar::OAR_SIMD_NAMESPACE {

template <class Loader>
void append_float_attention(KernelList& list, Isa isa, Format format, const char* name) {
  using Engine = RegisterEngine<FloatCodec<Loader>>;
  list.push_back(
      {KernelFamily::kPagedAttention, isa, name, format, attention_plan<Engine>, attention_run<Engine>});
}

}  // namespace oar::OAR_SIMD_NAMESPACE
