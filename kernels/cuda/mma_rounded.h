// Matrix products of f16 and of TF32 by tensor cores, and how numbers become such operands: what layers of
// ordinary models have beside the words of device.h. Fragments lie as there; TF32 is f32 of which the first
// 19 bits count, one to a register.
#pragma once

#include "kernels/cuda/device.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#else
#include "kernels/cuda/emulation/mma_rounded.h"
#endif

namespace oar::cuda {

// Two floats as f16, the first in the low half; rounded to nearest even, infinite from 65520 on.
OAR_DEVICE uint32_t pack_f16(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

// Rounded to nearest, and away from zero between two.
OAR_DEVICE uint32_t round_tf32(float x) {
#if defined(__CUDACC__)
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  return x != x ? 0x7fffffffu : (__float_as_uint(x) + 0x1000u) & ~0x1fffu;
#endif
}

// c (16 x 8) += a (16 x 16) b (16 x 8).
OAR_DEVICE void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulation::mma_f16(c, a, b, place);
#endif
}

// c (16 x 8) += a (16 x 8) b (8 x 8); a register's k is t.
OAR_DEVICE void mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2] OAR_PLACE_PARAMETER) {
#if defined(__CUDACC__)
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  emulation::mma_tf32(c, a, b, place);
#endif
}

}  // namespace oar::cuda
