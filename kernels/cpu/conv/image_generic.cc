// Convolution and pooling for the baseline of the platform.
#define OAR_SIMD_NAMESPACE generic
#include "kernels/cpu/conv/image_simd.h"

namespace oar {
namespace {
constexpr auto kEntries = generic::image_kernels(Isa::kGeneric);
}  // namespace

constinit const KernelTable kernels_image_generic{kEntries};

}  // namespace oar
