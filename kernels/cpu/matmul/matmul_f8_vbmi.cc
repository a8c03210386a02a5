// Matmul of 8-bit floats with AVX-512 BF16 dot products and VBMI (Zen 4 and 5, Sapphire Rapids).
#include "kernels/cpu/matmul/bf16_avx512.h"
#include "kernels/cpu/matmul/f8_vbmi.h"
#include "kernels/cpu/matmul/matmul_f8.h"

namespace oar {
namespace {

constexpr auto kEntries = f8_kernels<Bf16Arch, VbmiWiden>(Isa::kAvx512Vnni);

}  // namespace

constinit const KernelTable kernels_matmul_f8_vbmi{kEntries, &has_avx512_vbmi};

}  // namespace oar
