// The emulated instructions of kernels/cuda/mma_rounded.h.
#pragma once

#include "kernels/cuda/emulation/emulation.h"

namespace oar::cuda::emulation {

void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place);
// What the other 13 bits of an operand do is left open: where they are not 0 it is NaN here.
void mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place);

}  // namespace oar::cuda::emulation
