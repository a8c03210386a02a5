// Matmul with AVX-512 VNNI and BF16 (Zen 4 and 5, Cooper Lake and later).
#include "kernels/cpu/bf16_avx512.h"
#include "kernels/cpu/int4_groups_vnni.h"
#include "kernels/cpu/int4_vnni.h"
#include "kernels/cpu/matmul_rowdot.h"

namespace oar {

void append_matmul_f8_vbmi(KernelList& list);  // matmul_f8_vbmi.cc

void append_matmul_avx512vnni(KernelList& list) {
  MatmulDriver<RowDotCore<Bf16Arch>>::append(list, Format::bf16(), Isa::kAvx512Vnni);
  append_int8<Int8Core<VnniInt8>>(list, Isa::kAvx512Vnni);
  append_int4_groups<VnniInt4Groups>(list, Isa::kAvx512Vnni);
  append_int4<VnniInt4, Int8Core<VnniInt8>>(list, Isa::kAvx512Vnni);
  if (has_avx512_vbmi()) append_matmul_f8_vbmi(list);
}

}  // namespace oar
