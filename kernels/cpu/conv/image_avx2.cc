// Convolution and pooling for AVX2 and FMA.
#define OAR_SIMD_NAMESPACE avx2
#include "kernels/cpu/conv/image_simd.h"

namespace oar {
namespace {
constexpr auto kEntries = avx2::image_kernels(Isa::kAvx2);
}  // namespace

constinit const KernelTable kernels_image_avx2{kEntries};

}  // namespace oar
