// The row-wise kernels for AVX2 with FMA and F16C.
#define OAR_SIMD_NAMESPACE avx2
#include "kernels/cpu/elementwise_simd.h"

namespace oar {
void append_elementwise_avx2(KernelList& list) { avx2::append_elementwise(list, Isa::kAvx2); }
}  // namespace oar
