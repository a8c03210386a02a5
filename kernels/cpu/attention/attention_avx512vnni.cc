// Attention over a bf16 cache for processors with AVX512-BF16.
#define OAR_SIMD_NAMESPACE avx512vnni
#include "kernels/cpu/attention/attention_bf16.h"
#include "kernels/cpu/attention/attention_quant_entries.h"
#include "kernels/cpu/attention/attention_register.h"
#include "kernels/kernel_list.h"

namespace oar {
namespace {
using Engine = avx512vnni::RegisterEngine<avx512vnni::Bf16Codec>;
constexpr KernelEntry kEntries[] = {
    {KernelFamily::kPagedAttention, Isa::kAvx512Vnni, avx512vnni::attention_plan<Engine>,
     avx512vnni::attention_run<Engine>, "bf16"},
    avx512vnni::quant_attention<avx512vnni::Bf16Codec>(Isa::kAvx512Vnni),
};
}  // namespace

constinit const KernelTable kernels_attention_avx512vnni{kEntries};

}  // namespace oar
