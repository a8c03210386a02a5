// Attention over the paged cache and the append to it, for AVX2 with FMA and F16C.
#define OAR_SIMD_NAMESPACE avx2
#include "kernels/cpu/attention/attention_entries.h"

namespace oar {
namespace {
constexpr auto kEntries = avx2::attention_kernels(Isa::kAvx2);
}  // namespace

constinit const KernelTable kernels_attention_avx2{kEntries};

}  // namespace oar
