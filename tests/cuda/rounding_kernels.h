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
// Of the first three types, a warp group a case: a and b are 64 rows of 128 bytes each; words as
// wgmma_kernels.h has them.
int launch_groups(uint32_t* words, const uint32_t* a, const uint32_t* b, MmaOf type, int cases);
// The functions whose last bits are the device's own, as kernels use them: y[3 i] = exp x[i], y[3 i + 1] =
// 1 / x[i] as __fdividef, y[3 i + 2] = exp x[i] of a softmax, which is ex2 of a product.
int launch_functions(float* y, const float* x, int n);
// Peaks: a launch of `blocks` blocks of `groups` warp groups, of either type; wgmma_kernels.h.
int launch_repeated(float* sums, int blocks, int groups, int rounds, bool bf16);
// Operations of it.
double repeated_operations(int blocks, int groups, int rounds, bool bf16);

}  // namespace oar_test
