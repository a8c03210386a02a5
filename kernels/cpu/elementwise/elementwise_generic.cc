// The row-wise kernels for any processor, 4 lanes of compiler vector extensions.
#define OAR_SIMD_NAMESPACE generic
#include "kernels/cpu/elementwise/elementwise_simd.h"

namespace oar {
namespace {
constexpr auto kEntries = generic::elementwise_kernels(Isa::kGeneric);
}  // namespace

constinit const KernelTable kernels_elementwise_generic{kEntries};

}  // namespace oar
