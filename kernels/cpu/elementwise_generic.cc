// The row-wise kernels for any processor, 4 lanes of compiler vector extensions.
#define OAR_SIMD_NAMESPACE generic
#include "kernels/cpu/elementwise_simd.h"

namespace oar {
void append_elementwise_generic(KernelList& list) { generic::append_elementwise(list, Isa::kGeneric); }
}  // namespace oar
