// Convolution and pooling for the baseline of the platform.
#define OAR_SIMD_NAMESPACE generic
#include "kernels/cpu/image_simd.h"

namespace oar {
void append_image_generic(KernelList& list) { generic::append_image(list, Isa::kGeneric); }
}  // namespace oar
