// Products of a warp group, right and wrong; see box_kernels.h.
#pragma once

#include "kernels/cuda/wgmma.h"

namespace oar_test {

enum class WgmmaFault { kNone, kNoFence, kNoWait, kNoProxyFence, kOneWarpLess };
enum class WgmmaOf { kBf16, kE4m3, kS8 };
constexpr int kWgmmaThreads = 128;

// words[32 t + i] = word i of thread t's accumulators after all of a and b: 64 rows of `swizzle` bytes each.
// Block i has the i-th of each.
__global__ void multiplies_group(uint32_t* words, const uint8_t* a, const uint8_t* b, uint32_t swizzle,
                                 WgmmaOf type, WgmmaFault fault);

// What the matrix units reach when nothing else holds them up: every warp group of a block multiplies 64 and
// 128 rows of 128 bytes in shared memory, `rounds` times kProductsOfRound products. sums[t] = an accumulator
// of thread t of all, the same of every group. kBf16 or kE4m3.
constexpr uint32_t kProductsOfRound = 32;
constexpr size_t kRepeatShared = (64 + 128) * 128;
__global__ void repeats_products(float* sums, int rounds, WgmmaOf type);

}  // namespace oar_test
