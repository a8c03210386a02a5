// Matmul on AMX tiles with integer weights: int8.panel16 as it lies, 4-bit weights expanded to it.
#include "kernels/cpu/matmul/int4_core.h"
#include "kernels/cpu/matmul/int4_vnni.h"
#include "kernels/cpu/matmul/int8_amx.h"

namespace oar {
namespace {

constexpr auto kEntries =
    join(int8_kernels<AmxInt8Core>(Isa::kAmx), int4_kernels<VnniInt4Streams, AmxInt8Core>(Isa::kAmx));

}  // namespace

constinit const KernelTable kernels_matmul_amx_int8{kEntries};

}  // namespace oar
