// The kernels over a quantized cache of one instruction set, as registry entries.
#pragma once

#include "kernels/cpu/attention/attention_quant_fp8.h"
#include "kernels/cpu/attention/attention_quant_simd.h"
#include "kernels/cpu/attention/attention_register.h"
#include "kernels/cpu/attention/kv_quant_append_simd.h"
#include "kernels/kernel_list.h"

namespace oar::OAR_SIMD_NAMESPACE {

// Both sides of a cache are fp8 or neither is; other mixtures, which no tier has, are left to the reference.
// Keys that hold values (a latent) are widened as fp8 is.
enum class CodeKind { kIntegers, kFp8, kLatent, kMixed };
inline CodeKind code_kind(const void* args) {
  const auto& shape = static_cast<const QuantPagedAttentionArgs*>(args)->shape;
  const bool keys = shape.keys == KvCode::kFp8, values = shape.values == KvCode::kFp8;
  if (shape.latent > 0) {
    const bool known = shape.keys == shape.values &&
                       (keys || shape.keys == KvCode::kInt8 || shape.keys == KvCode::kInt4Mean);
    return known ? CodeKind::kLatent : CodeKind::kMixed;
  }
  return keys != values ? CodeKind::kMixed : keys ? CodeKind::kFp8 : CodeKind::kIntegers;
}
inline const Kernel& reference_kernel() {
  return *KernelRegistry::cpu().find({KernelFamily::kQuantPagedAttention, Format::bf16()}, Isa::kReference);
}

// Near, Codes: the engines of 16 bits and of integers. Wide: of codes that are widened to what Near
// multiplies.
template <class Near, class Codes, class Wide>
void quant_plan(const void* args, int workers, KernelPlan* out) {
  switch (code_kind(args)) {
    case CodeKind::kIntegers: return quant_attention_plan<Near, Codes>(args, workers, out);
    case CodeKind::kFp8:
    case CodeKind::kLatent: return quant_attention_plan<Near, Wide>(args, workers, out);
    case CodeKind::kMixed: return reference_kernel().plan(args, workers, out);
  }
}
template <class Near, class Codes, class Wide>
void quant_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  switch (code_kind(args)) {
    case CodeKind::kIntegers: return quant_attention_run<Near, Codes>(args, phase, begin, end, scratch);
    case CodeKind::kFp8:
    case CodeKind::kLatent: return quant_attention_run<Near, Wide>(args, phase, begin, end, scratch);
    case CodeKind::kMixed: return reference_kernel().run(args, phase, begin, end, scratch);
  }
}

template <class Codec>
constexpr KernelEntry quant_attention(Isa isa) {
  using Near = RegisterEngine<Codec>;
  using Wide = WidenedEngine<Near, Codec>;
  return {KernelFamily::kQuantPagedAttention, isa, quant_plan<Near, IntEngine, Wide>,
          quant_run<Near, IntEngine, Wide>};
}

}  // namespace oar::OAR_SIMD_NAMESPACE
