// Products of a warp group, for sm_90a: four warps multiply operands that lie in shared memory while they go
// on. In hopper.h's terms they read through the asynchronous proxy.
#pragma once

#include "kernels/cuda/hopper.h"

namespace oar::cuda {

// The operand [64, 32 bytes of k] within rows of `swizzle` bytes (32, 64 or 128) as copy_box leaves them,
// `offset` bytes along k, a multiple of 32. `box` lies as copy_box wants it.
OAR_DEVICE uint64_t wgmma_operand(const void* box, uint32_t offset, uint32_t swizzle) {
#if defined(__CUDACC__)
  const uint32_t at = shared_address(box) + offset;
#else
  const auto at = static_cast<uint32_t>(static_cast<const std::byte*>(box) -
                                        static_cast<const std::byte*>(emulation::shared_memory())) +
                  offset;
#endif
  const uint64_t mode = swizzle == 128 ? 1 : swizzle == 64 ? 2 : 3;
  return uint64_t{(at & 0x3ffffu) >> 4} | uint64_t{1} << 16 | uint64_t{8 * swizzle >> 4} << 32 | mode << 62;
}

// Before the first product, and before one whose accumulators the threads have touched since the last.
OAR_DEVICE void wgmma_fence() {
#if defined(__CUDACC__)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  emulation::wgmma_fence();
#endif
}
// Makes a group of the products since the last call.
OAR_DEVICE void wgmma_commit() {
#if defined(__CUDACC__)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulation::wgmma_commit();
#endif
}
// Waits until at most kLeft groups are under way. Nobody touches accumulators or operands of the others.
template <int kLeft>
OAR_DEVICE void wgmma_wait() {
#if defined(__CUDACC__)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#else
  emulation::wgmma_wait(kLeft);
#endif
}

// d (64 x 64) += a (64 x 32 bytes) b (64 x 32 bytes)^T. Warp w of the four has rows 16 w .. 16 w + 15; its
// d[4 j + i] is accumulator i of mma_bf16 in columns 8 j .. 8 j + 7.
#if defined(__CUDACC__)
#define OAR_WGMMA(shape, end, c)                                                                          \
  asm volatile(                                                                                           \
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\nwgmma.mma_async.sync.aligned." shape                   \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "      \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, add" end ";\n}"             \
      : "+" c(d[0]), "+" c(d[1]), "+" c(d[2]), "+" c(d[3]), "+" c(d[4]), "+" c(d[5]), "+" c(d[6]),        \
        "+" c(d[7]), "+" c(d[8]), "+" c(d[9]), "+" c(d[10]), "+" c(d[11]), "+" c(d[12]), "+" c(d[13]),    \
        "+" c(d[14]), "+" c(d[15]), "+" c(d[16]), "+" c(d[17]), "+" c(d[18]), "+" c(d[19]), "+" c(d[20]), \
        "+" c(d[21]), "+" c(d[22]), "+" c(d[23]), "+" c(d[24]), "+" c(d[25]), "+" c(d[26]), "+" c(d[27]), \
        "+" c(d[28]), "+" c(d[29]), "+" c(d[30]), "+" c(d[31])                                            \
      : "l"(a), "l"(b))
#else
#define OAR_WGMMA(shape, end, c)
#endif
#define OAR_FLOATS "f"
#define OAR_INTEGERS "r"
OAR_DEVICE void wgmma_bf16(float (&d)[32], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA("m64n64k16.f32.bf16.bf16", ", 1, 1, 0, 0", OAR_FLOATS);
#else
  emulation::wgmma(emulation::WgmmaType::kBf16, d, a, b, place);
#endif
}
OAR_DEVICE void wgmma_e4m3(float (&d)[32], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA("m64n64k32.f32.e4m3.e4m3", ", 1, 1", OAR_FLOATS);
#else
  emulation::wgmma(emulation::WgmmaType::kE4m3, d, a, b, place);
#endif
}
OAR_DEVICE void wgmma_s8(int32_t (&d)[32], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA("m64n64k32.s32.s8.s8", "", OAR_INTEGERS);
#else
  emulation::wgmma(emulation::WgmmaType::kS8, d, a, b, place);
#endif
}
#undef OAR_WGMMA
#undef OAR_FLOATS
#undef OAR_INTEGERS

}  // namespace oar::cuda
