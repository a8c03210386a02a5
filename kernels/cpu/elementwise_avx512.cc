// The row-wise kernels for AVX-512 F, BW, VL, DQ.
#define OAR_SIMD_NAMESPACE avx512
#include "kernels/cpu/elementwise_simd.h"

namespace oar {
void append_elementwise_avx512(KernelList& list) { avx512::append_elementwise(list, Isa::kAvx512); }
}  // namespace oar
