// Convolution and pooling for AVX2 and FMA.
#define OAR_SIMD_NAMESPACE avx2
#include "kernels/cpu/image_simd.h"

namespace oar {
void append_image_avx2(KernelList& list) { avx2::append_image(list, Isa::kAvx2); }
}  // namespace oar
