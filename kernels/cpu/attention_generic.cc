// Attention over the paged cache and the append to it, for any processor, 4 lanes of compiler vector
// extensions.
#define OAR_SIMD_NAMESPACE generic
#include "kernels/cpu/attention_entries.h"

namespace oar {
void append_attention_generic(KernelList& list) {
  using namespace generic;
  list.push_back({KernelFamily::kKvAppend, Isa::kGeneric, "kv_append.generic", std::nullopt, kv_append_plan,
                  kv_append_run});
  append_float_attention<LoadF32>(list, Isa::kGeneric, Format::f32(), "paged_attention.f32.generic");
  append_float_attention<LoadF16>(list, Isa::kGeneric, Format::f16(), "paged_attention.f16.generic");
  append_float_attention<LoadBf16>(list, Isa::kGeneric, Format::bf16(), "paged_attention.bf16.generic");
  append_quant_attention<FloatCodec<LoadBf16>>(list, Isa::kGeneric, "quant_paged_attention.generic");
  append_quant_kv_append(list, Isa::kGeneric, "quant_kv_append.generic");
}
}  // namespace oar
