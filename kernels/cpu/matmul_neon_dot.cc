// Integer matmuls with sdot (Armv8.2 and later, in practice every Arm server and phone since 2018). Dots are
// exact, so the values are those of the kernel without it.
#include <sys/auxv.h>

#include "kernels/cpu/int4_neon.h"

namespace oar {
namespace {

struct NeonDotInt8 : NeonInt8Base {
  static Dot dot(Dot d, WReg w, XReg x) { return vdotq_s32(d, w, x); }
};

}  // namespace

void append_kquant_neon_dot(KernelList& list);  // kquant_neon_dot.cc

void append_matmul_neon_dot(KernelList& list) {
  constexpr unsigned long kAsimdDotProduct = 1ul << 20;  // HWCAP_ASIMDDP, asm/hwcap.h
  if ((getauxval(AT_HWCAP) & kAsimdDotProduct) == 0) return;
  append_int8<Int8Core<NeonDotInt8>>(list, Isa::kNeon, "neon_dot");
  append_int4<NeonInt4<NeonDotInt8>, Int8Core<NeonDotInt8>>(list, Isa::kNeon, "neon_dot");
  append_kquant_neon_dot(list);
}

}  // namespace oar
