// The attention kernels of one instruction set whose cache is widened to f32, as registry entries.
#pragma once

#include "kernels/cpu/attention/attention_dense.h"
#include "kernels/cpu/attention/attention_float.h"
#include "kernels/cpu/attention/attention_quant_entries.h"
#include "kernels/cpu/attention/attention_register.h"
#include "kernels/cpu/attention/attention_segments.h"
#include "kernels/cpu/attention/kv_append_simd.h"
#include "kernels/kernel_list.h"

namespace oar::OAR_SIMD_NAMESPACE {

template <class Loader>
constexpr KernelEntry float_attention(const char* format, Isa isa) {
  using Engine = RegisterEngine<FloatCodec<Loader>>;
  return {KernelFamily::kPagedAttention, isa, attention_plan<Engine>, attention_run<Engine>, format};
}

constexpr std::array<KernelEntry, 8> attention_kernels(Isa isa) {
  return {{{KernelFamily::kKvAppend, isa, kv_append_plan, kv_append_run},
           {KernelFamily::kSegmentAttention, isa, segment_attention_plan, segment_attention_run},
           {KernelFamily::kDenseAttention, isa, dense_attention_plan, dense_attention_run},
           float_attention<LoadF32>("f32", isa),
           float_attention<LoadF16>("f16", isa),
           float_attention<LoadBf16>("bf16", isa),
           quant_attention<FloatCodec<LoadBf16>>(isa),
           {KernelFamily::kQuantKvAppend, isa, quant_kv_append_plan, quant_kv_append_run}}};
}

}  // namespace oar::OAR_SIMD_NAMESPACE
