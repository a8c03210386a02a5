// Integer matmuls with smmla (Armv8.6), int8.panel16 as it lies and 4-bit weights expanded to it. Products
// are exact, so the values are those of the kernels without.
#include "kernels/cpu/matmul/int4_neon.h"
#include "kernels/cpu/matmul/int8_i8mm_neon.h"

namespace oar {
namespace {

using Int4 = NeonInt4<NeonDotInt8>;
static_assert(Int4::kTokens <= NeonI8mmCore::kPlainTokens, "it reads tokens that are not zipped");

constexpr auto kEntries = join(int8_kernels<NeonI8mmCore>(Isa::kNeon, "neon_i8mm"),
                               int4_kernels<Int4, NeonI8mmCore>(Isa::kNeon, "neon_i8mm"));

}  // namespace

constinit const KernelTable kernels_matmul_neon_i8mm{kEntries, &has_neon_i8mm};

}  // namespace oar
