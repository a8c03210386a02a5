// Narrow convolution for AVX-512 VNNI and BF16.
#define OAR_SIMD_NAMESPACE quantized_avx512vnni
#include "kernels/cpu/quantized_conv_vnni.h"

namespace oar {

void append_quantized_conv_avx512vnni(KernelList& list) {
  append_quantized_conv<DotQuantizedCore<1>>(list, Isa::kAvx512Vnni, "quantized_conv.avx512vnni");
  append_quantized_conv<DotQuantizedCore<2>>(list, Isa::kAvx512Vnni, "bf16_conv.avx512vnni");
}

}  // namespace oar
