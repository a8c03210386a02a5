// Single instructions with operands that a test chooses, for what the manual leaves open: how they round.
// Pointers are the device's; each launches and returns a cudaError_t.
#pragma once

#include <cstdint>

namespace oar_test {

enum class MmaOf { kBf16, kE4m3, kS8, kF16, kTf32 };

// One warp a case: d = a b + c. Lane l of case i has a[128 i + 4 l + ..], b[64 i + 2 l + ..], c and d[128 i +
// 4 l + ..].
int launch_fragments(uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c, MmaOf type,
                     int cases);
// A warp's four matrices of 8 rows of 16 bytes, copied while it goes on, of which those from `valid` on are
// zeros: lane l's registers of ldmatrix at out + 8 l, and those of the transposes behind them.
int launch_matrices(uint32_t* out, const uint32_t* rows, int valid);
// How x becomes operands: y[2 i] = pack_f16(x[i], -x[i]), y[2 i + 1] = round_tf32(x[i]).
int launch_operands(uint32_t* y, const float* x, int n);
// Of the first three types, a warp group: a and b are 64 rows of 128 bytes; words as wgmma_kernels.h has
// them.
int launch_group(uint32_t* words, const uint32_t* a, const uint32_t* b, MmaOf type);
// The functions whose last bits are the device's own: y[2 i] = exp x[i], y[2 i + 1] = 1 / x[i] as __fdividef.
int launch_functions(float* y, const float* x, int n);

}  // namespace oar_test
