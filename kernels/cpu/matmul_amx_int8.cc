// Matmul on AMX tiles with integer weights: int8.panel16 as it lies, 4-bit weights expanded to it.
#include "kernels/cpu/int4_core.h"
#include "kernels/cpu/int4_vnni.h"
#include "kernels/cpu/int8_amx.h"

namespace oar {

void append_matmul_amx_int8(KernelList& list) {
  append_int8<AmxInt8Core>(list, Isa::kAmx);
  append_int4<VnniInt4Streams, AmxInt8Core>(list, Isa::kAmx);
}

}  // namespace oar
