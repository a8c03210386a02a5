// The attention kernel over a quantized cache of one instruction set, as a registry entry.
#pragma once

#include "kernels/cpu/attention_quant_simd.h"
#include "kernels/cpu/attention_register.h"
#include "kernels/kernel_list.h"

namespace oar::OAR_SIMD_NAMESPACE {

// fp8 has no integers: left to the reference.
inline const Kernel* other_kernel(const void* args) {
  const auto& shape = static_cast<const QuantPagedAttentionArgs*>(args)->shape;
  if (shape.keys != KvCode::kFp8 && shape.values != KvCode::kFp8) return nullptr;
  return KernelRegistry::cpu().find(KernelFamily::kQuantPagedAttention, Format::bf16(), Isa::kReference);
}

template <class Near, class Codes>
void quant_plan(const void* args, int workers, KernelPlan* out) {
  if (const Kernel* other = other_kernel(args)) return other->plan(args, workers, out);
  quant_attention_plan<Near, Codes>(args, workers, out);
}
template <class Near, class Codes>
void quant_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  if (const Kernel* other = other_kernel(args)) return other->run(args, phase, begin, end, scratch);
  quant_attention_run<Near, Codes>(args, phase, begin, end, scratch);
}

template <class Codec, class Codes = IntEngine>
void append_quant_attention(KernelList& list, Isa isa, const char* name) {
  using Near = RegisterEngine<Codec>;
  list.push_back({KernelFamily::kQuantPagedAttention, isa, name, std::nullopt, quant_plan<Near, Codes>,
                  quant_run<Near, Codes>});
}

}  // namespace oar::OAR_SIMD_NAMESPACE
