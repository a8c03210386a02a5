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
  words += size_t{blockIdx.x} * 32 * kWgmmaThreads;
  a += size_t{blockIdx.x} * static_cast<size_t>(bytes);
  b += size_t{blockIdx.x} * static_cast<size_t>(bytes);
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

template <class Multiply>
OAR_DEVICE void repeat(float* sums, int rounds, Multiply multiply) {
  constexpr uint32_t kSwizzle = 128, kStep = 32;
  SharedMemory shared;
  auto* a = shared.take<uint8_t>(64 * kSwizzle);
  auto* b = shared.take<uint8_t>(128 * kSwizzle);
  const int t = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  // Finite in either type, and not all the same: what zeros draw is no peak.
  for (int i = t; i < 64 * static_cast<int>(kSwizzle); i += threads)
    a[i] = static_cast<uint8_t>(i * 41 & 0x37);
  for (int i = t; i < 128 * static_cast<int>(kSwizzle); i += threads)
    b[i] = static_cast<uint8_t>(i * 29 & 0x37);
  fence_proxy_async();
  __syncthreads();
  float d[64] = {};
  for (int round = 0; round < rounds; ++round) {
    wgmma_fence();
#pragma unroll
    for (uint32_t i = 0; i < kProductsOfRound; ++i) {
      const uint32_t k = i * kStep % kSwizzle;
      multiply(d, wgmma_operand(a, k, kSwizzle), wgmma_operand(b, k, kSwizzle));
    }
    wgmma_commit();
    wgmma_wait<0>();
  }
  sums[size_t{blockIdx.x} * blockDim.x + threadIdx.x] = d[0];
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

__global__ void repeats_products(float* sums, int rounds, WgmmaOf type) {
  wait_for_launches();
  if (type == WgmmaOf::kBf16)
    repeat(sums, rounds, [](float(&d)[64], uint64_t x, uint64_t y) { wgmma_bf16(d, x, y); });
  else repeat(sums, rounds, [](float(&d)[64], uint64_t x, uint64_t y) { wgmma_e4m3(d, x, y); });
}

}  // namespace oar_test
