// Convolution and pooling for AVX-512 F, BW, VL, DQ.
#define OAR_SIMD_NAMESPACE avx512
#include "kernels/cpu/image_simd.h"

namespace oar {
void append_image_avx512(KernelList& list) { avx512::append_image(list, Isa::kAvx512); }
}  // namespace oar
