// Products of a warp group, for sm_90a: four warps multiply operands that lie in shared memory while they go
// on. In hopper.h's terms they read through the asynchronous proxy.
#pragma once

#include "kernels/cuda/hopper.h"

namespace oar::cuda {

// The operand [64 or 128, 32 bytes of k] within rows of `swizzle` bytes (32, 64 or 128) as copy_box leaves
// them, `offset` bytes along k, a multiple of 32. `box` lies as copy_box wants it.
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

// d (64 x 64 or 128) += a (64 x 32 bytes) b (64 or 128 x 32 bytes)^T. Warp w of the four has rows 16 w .. 16
// w
// + 15; its d[4 j + i] is accumulator i of mma_bf16 in columns 8 j .. 8 j + 7.
#if defined(__CUDACC__)
#define OAR_WGMMA(shape, registers, a_and_b, end, ...)                                           \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\nwgmma.mma_async.sync.aligned." shape \
               " {" registers "}, " a_and_b ", add" end ";\n}"                                   \
               : __VA_ARGS__                                                                     \
               : "l"(a), "l"(b))
#define OAR_8_OF(c, i)                                                                              \
  "+" c(d[i]), "+" c(d[i + 1]), "+" c(d[i + 2]), "+" c(d[i + 3]), "+" c(d[i + 4]), "+" c(d[i + 5]), \
      "+" c(d[i + 6]), "+" c(d[i + 7])
#define OAR_32_OF(c, i) OAR_8_OF(c, i), OAR_8_OF(c, i + 8), OAR_8_OF(c, i + 16), OAR_8_OF(c, i + 24)
#define OAR_32_REGISTERS                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OAR_64_REGISTERS                                                             \
  OAR_32_REGISTERS                                                                   \
  ", "                                                                               \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OAR_WGMMA_64(shape, end, c) OAR_WGMMA(shape, OAR_32_REGISTERS, "%32, %33", end, OAR_32_OF(c, 0))
#define OAR_WGMMA_128(shape, end, c) \
  OAR_WGMMA(shape, OAR_64_REGISTERS, "%64, %65", end, OAR_32_OF(c, 0), OAR_32_OF(c, 32))
#else
#define OAR_WGMMA_64(shape, end, c)
#define OAR_WGMMA_128(shape, end, c)
#endif
#define OAR_FLOATS "f"
#define OAR_INTEGERS "r"
OAR_DEVICE void wgmma_bf16(float (&d)[32], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA_64("m64n64k16.f32.bf16.bf16", ", 1, 1, 0, 0", OAR_FLOATS);
#else
  emulation::wgmma(emulation::WgmmaType::kBf16, 64, d, a, b, place);
#endif
}
OAR_DEVICE void wgmma_e4m3(float (&d)[32], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA_64("m64n64k32.f32.e4m3.e4m3", ", 1, 1", OAR_FLOATS);
#else
  emulation::wgmma(emulation::WgmmaType::kE4m3, 64, d, a, b, place);
#endif
}
OAR_DEVICE void wgmma_s8(int32_t (&d)[32], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA_64("m64n64k32.s32.s8.s8", "", OAR_INTEGERS);
#else
  emulation::wgmma(emulation::WgmmaType::kS8, 64, d, a, b, place);
#endif
}
OAR_DEVICE void wgmma_bf16(float (&d)[64], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA_128("m64n128k16.f32.bf16.bf16", ", 1, 1, 0, 0", OAR_FLOATS);
#else
  emulation::wgmma(emulation::WgmmaType::kBf16, 128, d, a, b, place);
#endif
}
OAR_DEVICE void wgmma_e4m3(float (&d)[64], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA_128("m64n128k32.f32.e4m3.e4m3", ", 1, 1", OAR_FLOATS);
#else
  emulation::wgmma(emulation::WgmmaType::kE4m3, 128, d, a, b, place);
#endif
}
OAR_DEVICE void wgmma_s8(int32_t (&d)[64], uint64_t a, uint64_t b OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  OAR_WGMMA_128("m64n128k32.s32.s8.s8", "", OAR_INTEGERS);
#else
  emulation::wgmma(emulation::WgmmaType::kS8, 128, d, a, b, place);
#endif
}
#if defined(__CUDACC__)
#undef OAR_WGMMA
#undef OAR_8_OF
#undef OAR_32_OF
#undef OAR_32_REGISTERS
#undef OAR_64_REGISTERS
#endif
#undef OAR_WGMMA_64
#undef OAR_WGMMA_128
#undef OAR_FLOATS
#undef OAR_INTEGERS

}  // namespace oar::cuda
