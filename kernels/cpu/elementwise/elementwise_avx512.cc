// The row-wise kernels for AVX-512 F, BW, VL, DQ.
#define OAR_SIMD_NAMESPACE avx512
#include "kernels/cpu/elementwise/elementwise_simd.h"

namespace oar {
namespace {
constexpr auto kEntries = avx512::elementwise_kernels(Isa::kAvx512);
}  // namespace

constinit const KernelTable kernels_elementwise_avx512{kEntries};

}  // namespace oar
