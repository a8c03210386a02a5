// Attention over the paged cache and the append to it, for AVX-512 F, BW, VL, DQ.
#define OAR_SIMD_NAMESPACE avx512
#include "kernels/cpu/attention_entries.h"

namespace oar {
void append_attention_avx512(KernelList& list) {
  using namespace avx512;
  list.push_back({KernelFamily::kKvAppend, Isa::kAvx512, "kv_append.avx512", std::nullopt, kv_append_plan,
                  kv_append_run});
  append_float_attention<LoadF32>(list, Isa::kAvx512, Format::f32(), "paged_attention.f32.avx512");
  append_float_attention<LoadF16>(list, Isa::kAvx512, Format::f16(), "paged_attention.f16.avx512");
  append_float_attention<LoadBf16>(list, Isa::kAvx512, Format::bf16(), "paged_attention.bf16.avx512");
  append_quant_attention<FloatCodec<LoadBf16>>(list, Isa::kAvx512, "quant_paged_attention.avx512");
  append_quant_kv_append(list, Isa::kAvx512, "quant_kv_append.avx512");
}
}  // namespace oar
