// Attention over the paged cache and the append to it, for any processor, 4 lanes of compiler vector
// extensions.
#define OAR_SIMD_NAMESPACE generic
#include "kernels/cpu/attention/attention_entries.h"

namespace oar {
namespace {
constexpr auto kEntries = generic::attention_kernels(Isa::kGeneric);
}  // namespace

constinit const KernelTable kernels_attention_generic{kEntries};

}  // namespace oar
