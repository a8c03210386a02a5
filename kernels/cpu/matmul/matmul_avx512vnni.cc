// Matmul with AVX-512 VNNI and BF16 (Zen 4 and 5, Cooper Lake and later).
#include "kernels/cpu/matmul/bf16_avx512.h"
#include "kernels/cpu/matmul/int4_groups_vnni.h"
#include "kernels/cpu/matmul/int4_vnni.h"
#include "kernels/cpu/matmul/matmul_rowdot.h"

namespace oar {
namespace {

constexpr auto kEntries = join(MatmulDriver<RowDotCore<Bf16Arch>>::kernels("bf16", Isa::kAvx512Vnni),
                               int8_kernels<Int8Core<VnniInt8>>(Isa::kAvx512Vnni),
                               int4_groups_kernels<VnniInt4Groups>(Isa::kAvx512Vnni),
                               int4_kernels<VnniInt4, Int8Core<VnniInt8>>(Isa::kAvx512Vnni));

}  // namespace

constinit const KernelTable kernels_matmul_avx512vnni{kEntries};

}  // namespace oar
