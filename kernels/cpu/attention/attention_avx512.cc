// Attention over the paged cache and the append to it, for AVX-512 F, BW, VL, DQ.
#define OAR_SIMD_NAMESPACE avx512
#include "kernels/cpu/attention/attention_entries.h"

namespace oar {
namespace {
constexpr auto kEntries = avx512::attention_kernels(Isa::kAvx512);
}  // namespace

constinit const KernelTable kernels_attention_avx512{kEntries};

}  // namespace oar
