// What the arithmetic of this machine can do right now: one roof that a kernel's speed is divided by (the
// other, memory, is ReadProbe). A probe takes some tens of milliseconds so that it can be interleaved with
// what it is compared to.
#pragma once

#include "kernels/kernel.h"
#include "kernels/thread_pool.h"

namespace oar {

enum class Arithmetic : uint8_t { kBf16, kInt8, kF32 };

// Operations per second of all workers (a multiply and an add are two) of the widest dot-product instruction
// of the level, operands in registers. Levels without an instruction for the type give their f32 FMA rate; 0
// where there is no probe (processors other than x86-64).
double arithmetic_peak(ThreadPool& pool, Arithmetic arithmetic, Isa isa);

}  // namespace oar
