// What the arithmetic of this machine can do right now, one roof that a kernel's speed is divided by (the
// other, memory, is oar::ReadProbe). A probe takes some tens of milliseconds so that it can be interleaved
// with what it is compared to.
#pragma once

#include "kernels/thread_pool.h"

namespace oar_bench {

enum class Arithmetic { kBf16, kInt8, kF32 };

// Operations per second (a multiply and an add are two) of the widest dot-product instruction of the level,
// operands in registers. Levels without an instruction for the type give their f32 FMA rate.
double peak(oar::ThreadPool& pool, Arithmetic arithmetic, oar::Isa isa);

}  // namespace oar_bench
