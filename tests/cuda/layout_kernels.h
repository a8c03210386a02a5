// Single instructions on registers and shared memory as a test fills them. Compiled with every access seen.
#pragma once

#include <cstdint>

namespace oar_test {

enum class LayoutOf { kBf16, kS8, kE4m3, kF16, kTf32 };

// One warp: lane l's four results of mma at d + 4 l, from its registers at a + 4 l and b + 2 l.
void mma_of_registers(LayoutOf type, uint32_t* d, const uint32_t* a, const uint32_t* b);
// One warp: lane l's four registers at out + 4 l; its address is 16 l bytes behind 512 bytes of shared
// memory.
void ldmatrix_of_rows(uint32_t* out, const uint32_t* rows, bool transpose);

// A warp group: thread t's accumulators at d + columns / 2 * t, of shared memory that holds `image` and of
// `steps` pairs of descriptors, whose addresses count from its beginning.
void wgmma_of_image(LayoutOf type, int columns, uint32_t* d, const uint32_t* image, int words,
                    const uint64_t* descriptors, int steps);
// out[0], out[1], ...: what wgmma_operand makes of `at` bytes of shared memory and each 32 bytes of k.
void descriptors_of(uint64_t* out, int at, uint32_t swizzle);

}  // namespace oar_test
