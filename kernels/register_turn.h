// Square blocks of a matrix turned in registers of 16 bytes, which every processor has: packing of matrices
// reads and writes whole lines by them. And the rounding to bf16 of quant/dtype.h, four numbers at a time.
#pragma once

#include <cstdint>
#include <cstring>

namespace oar {

using Lanes32 = uint32_t __attribute__((vector_size(16)));
using Lanes16 = uint16_t __attribute__((vector_size(16)));

template <class V>
inline V load_lanes(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
inline void store_lanes(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// a0 b0 a1 b1 ..., of the lower and of the upper halves.
inline Lanes32 interleave_low(Lanes32 a, Lanes32 b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
inline Lanes32 interleave_high(Lanes32 a, Lanes32 b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
inline Lanes16 interleave_low(Lanes16 a, Lanes16 b) {
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
}
inline Lanes16 interleave_high(Lanes16 a, Lanes16 b) {
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

// m = m^T: rows i and i + N/2 interleaved, as often as N can be halved.
template <class V, int N>
inline void turn_block(V (&m)[N]) {
  static_assert(sizeof(V) / sizeof(m[0][0]) == N);
  for (int width = N; width > 1; width /= 2) {
    V next[N];
    for (int i = 0; i < N / 2; ++i) {
      next[2 * i] = interleave_low(m[i], m[i + N / 2]);
      next[2 * i + 1] = interleave_high(m[i], m[i + N / 2]);
    }
    for (int i = 0; i < N; ++i) m[i] = next[i];
  }
}

// Bits of f32 rounded to bf16, in the upper halves; the lower ones are left over.
inline Lanes32 rounded_to_bf16(Lanes32 x) {
  const Lanes32 nan = (x & 0x7fffffffu) > 0x7f800000u;
  return (nan & (x | 0x400000u)) | (~nan & (x + 0x7fffu + ((x >> 16) & 1u)));
}

}  // namespace oar
