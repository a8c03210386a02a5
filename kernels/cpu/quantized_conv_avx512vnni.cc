// 8-bit convolution for AVX-512 VNNI.
#include "kernels/cpu/quantized_conv_vnni.h"

namespace oar {

void append_quantized_conv_avx512vnni(KernelList& list) {
  append_quantized_conv<VnniQuantizedCore>(list, Isa::kAvx512Vnni, "quantized_conv.avx512vnni");
}

}  // namespace oar
