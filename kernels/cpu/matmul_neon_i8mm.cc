// Integer matmuls with smmla, int8.panel16 as it lies and 4-bit weights expanded to it. matmul_neon_dot.cc
// says which processors have it.
#include "kernels/cpu/int4_neon.h"
#include "kernels/cpu/int8_i8mm_neon.h"

namespace oar {

void append_matmul_neon_i8mm(KernelList& list) {
  using Int4 = NeonInt4<NeonDotInt8>;
  static_assert(Int4::kTokens <= NeonI8mmCore::kPlainTokens, "it reads tokens that are not zipped");
  append_int8<NeonI8mmCore>(list, Isa::kNeon, "neon_i8mm");
  append_int4<Int4, NeonI8mmCore>(list, Isa::kNeon, "neon_i8mm");
}

}  // namespace oar
