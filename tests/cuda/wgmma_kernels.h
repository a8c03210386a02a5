// Products of a warp group, right and wrong; see box_kernels.h.
#pragma once

#include "kernels/cuda/wgmma.h"

namespace oar_test {

enum class WgmmaFault { kNone, kNoFence, kNoWait, kNoProxyFence, kOneWarpLess };
enum class WgmmaOf { kBf16, kE4m3, kS8 };
constexpr int kWgmmaThreads = 128;

// words[32 t + i] = word i of thread t's accumulators after all of a and b: 64 rows of `swizzle` bytes each.
__global__ void multiplies_group(uint32_t* words, const uint8_t* a, const uint8_t* b, uint32_t swizzle,
                                 WgmmaOf type, WgmmaFault fault);

}  // namespace oar_test
