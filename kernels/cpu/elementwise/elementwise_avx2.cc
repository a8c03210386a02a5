// The row-wise kernels for AVX2 with FMA and F16C.
#define OAR_SIMD_NAMESPACE avx2
#include "kernels/cpu/elementwise/elementwise_simd.h"

namespace oar {
namespace {
constexpr auto kEntries = avx2::elementwise_kernels(Isa::kAvx2);
}  // namespace

constinit const KernelTable kernels_elementwise_avx2{kEntries};

}  // namespace oar
