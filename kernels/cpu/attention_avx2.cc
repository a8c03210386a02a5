// Attention over the paged cache and the append to it, for AVX2 with FMA and F16C.
#define OAR_SIMD_NAMESPACE avx2
#include "kernels/cpu/attention_entries.h"

namespace oar {
void append_attention_avx2(KernelList& list) {
  using namespace avx2;
  list.push_back(
      {KernelFamily::kKvAppend, Isa::kAvx2, "kv_append.avx2", std::nullopt, kv_append_plan, kv_append_run});
  append_float_attention<LoadF32>(list, Isa::kAvx2, Format::f32(), "paged_attention.f32.avx2");
  append_float_attention<LoadF16>(list, Isa::kAvx2, Format::f16(), "paged_attention.f16.avx2");
  append_float_attention<LoadBf16>(list, Isa::kAvx2, Format::bf16(), "paged_attention.bf16.avx2");
  append_quant_attention<FloatCodec<LoadBf16>>(list, Isa::kAvx2, "quant_paged_attention.avx2");
  append_quant_kv_append(list, Isa::kAvx2, "quant_kv_append.avx2");
}
}  // namespace oar
