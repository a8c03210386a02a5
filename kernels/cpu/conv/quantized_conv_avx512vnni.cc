// Narrow convolution for AVX-512 VNNI and BF16.
#define OAR_SIMD_NAMESPACE quantized_avx512vnni
#include "kernels/cpu/conv/quantized_conv_vnni.h"

namespace oar {

namespace {
constexpr KernelEntry kEntries[] = {quantized_conv<DotQuantizedCore<1>>(Isa::kAvx512Vnni),
                                    quantized_conv<DotQuantizedCore<2>>(Isa::kAvx512Vnni)};
}  // namespace

constinit const KernelTable kernels_quantized_conv_avx512vnni{kEntries};

}  // namespace oar
