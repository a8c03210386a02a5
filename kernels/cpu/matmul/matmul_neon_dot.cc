// Integer matmuls with sdot (Armv8.2 and later, in practice every Arm server and phone since 2018). Dots are
// exact, so the values are those of the kernels without.
#include "kernels/cpu/matmul/int4_neon.h"

namespace oar {
namespace {

constexpr auto kEntries =
    join(int8_kernels<Int8Core<NeonDotInt8>>(Isa::kNeon, "neon_dot"),
         int4_kernels<NeonInt4<NeonDotInt8>, Int8Core<NeonDotInt8>>(Isa::kNeon, "neon_dot"));

}  // namespace

constinit const KernelTable kernels_matmul_neon_dot{kEntries, &has_neon_dot};

}  // namespace oar
