// Attention over a bf16 cache for processors with AVX512-BF16.
#define OAR_SIMD_NAMESPACE avx512vnni
#include "kernels/cpu/attention_bf16.h"
#include "kernels/cpu/attention_quant_entries.h"
#include "kernels/cpu/attention_register.h"
#include "kernels/kernel_list.h"

namespace oar {
void append_attention_avx512vnni(KernelList& list) {
  using namespace avx512vnni;
  using Engine = RegisterEngine<Bf16Codec>;
  list.push_back({KernelFamily::kPagedAttention, Isa::kAvx512Vnni, "paged_attention.bf16.avx512vnni",
                  Format::bf16(), attention_plan<Engine>, attention_run<Engine>});
  append_quant_attention<Bf16Codec>(list, Isa::kAvx512Vnni, "quant_paged_attention.avx512vnni");
}
}  // namespace oar
