// Integer matmuls with sdot (Armv8.2 and later, in practice every Arm server and phone since 2018) and, where
// the processor has it, with smmla (Armv8.6). Dots are exact, so the values are those of the kernels without.
#include <sys/auxv.h>

#include "kernels/cpu/int4_neon.h"

namespace oar {

void append_kquant_neon_dot(KernelList& list);   // kquant_neon_dot.cc
void append_matmul_neon_i8mm(KernelList& list);  // matmul_neon_i8mm.cc

void append_matmul_neon_dot(KernelList& list) {
  // HWCAP_ASIMDDP and HWCAP2_I8MM, asm/hwcap.h
  constexpr unsigned long kAsimdDotProduct = 1ul << 20, kI8mm = 1ul << 13;
  if ((getauxval(AT_HWCAP) & kAsimdDotProduct) == 0) return;
  if ((getauxval(AT_HWCAP2) & kI8mm) != 0) append_matmul_neon_i8mm(list);  // the first of equals is found
  append_int8<Int8Core<NeonDotInt8>>(list, Isa::kNeon, "neon_dot");
  append_int4<NeonInt4<NeonDotInt8>, Int8Core<NeonDotInt8>>(list, Isa::kNeon, "neon_dot");
  append_kquant_neon_dot(list);
}

}  // namespace oar
