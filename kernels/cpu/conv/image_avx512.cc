// Convolution and pooling for AVX-512 F, BW, VL, DQ.
#define OAR_SIMD_NAMESPACE avx512
#include "kernels/cpu/conv/image_simd.h"

namespace oar {
namespace {
constexpr auto kEntries = avx512::image_kernels(Isa::kAvx512);
}  // namespace

constinit const KernelTable kernels_image_avx512{kEntries};

}  // namespace oar
