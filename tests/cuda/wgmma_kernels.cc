#include "tests/cuda/wgmma_kernels.h"

namespace oar_test {

using namespace oar::cuda;

namespace {

template <class Sum, class Multiply>
OAR_DEVICE void run(uint32_t* words, const uint8_t* a, const uint8_t* b, uint32_t swizzle, WgmmaFault fault,
                    Multiply multiply) {
  constexpr int kRows = 64;
  SharedMemory shared;
  const int t = static_cast<int>(threadIdx.x), bytes = kRows * static_cast<int>(swizzle);
  auto* sa = shared.take<uint8_t>(bytes);
  auto* sb = shared.take<uint8_t>(bytes);
  for (int i = t; i < bytes; i += kWgmmaThreads) {
    const auto at = static_cast<uint32_t>(i);
    const uint32_t to = at ^ (((at >> 7) & (swizzle / 16 - 1)) << 4);
    sa[to] = a[i];
    sb[to] = b[i];
  }
  if (fault != WgmmaFault::kNoProxyFence) fence_proxy_async();
  __syncthreads();
  Sum d[32] = {};
  if (fault != WgmmaFault::kNoFence) wgmma_fence();
  for (uint32_t k = 0; k < swizzle; k += 32) {
    if (fault == WgmmaFault::kOneWarpLess && k > 0 && t / kWarp == 3) continue;
    multiply(d, wgmma_operand(sa, k, swizzle), wgmma_operand(sb, k, swizzle));
  }
  wgmma_commit();
  if (fault != WgmmaFault::kNoWait) wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < 32; ++i) memcpy(words + 32 * t + i, d + i, sizeof(uint32_t));
}

}  // namespace

__global__ void multiplies_group(uint32_t* words, const uint8_t* a, const uint8_t* b, uint32_t swizzle,
                                 WgmmaOf type, WgmmaFault fault) {
  wait_for_launches();
  if (type == WgmmaOf::kBf16) {
    run<float>(words, a, b, swizzle, fault,
               [](float(&d)[32], uint64_t x, uint64_t y) { wgmma_bf16(d, x, y); });
  } else if (type == WgmmaOf::kE4m3) {
    run<float>(words, a, b, swizzle, fault,
               [](float(&d)[32], uint64_t x, uint64_t y) { wgmma_e4m3(d, x, y); });
  } else {
    run<int32_t>(words, a, b, swizzle, fault,
                 [](int32_t(&d)[32], uint64_t x, uint64_t y) { wgmma_s8(d, x, y); });
  }
}

}  // namespace oar_test
