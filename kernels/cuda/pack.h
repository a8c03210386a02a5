// A thread's elements of f32 where four neighbours are one access of 16 bytes if all rows are aligned so, and
// one is one access else.
#pragma once

#include "kernels/cuda/device.h"

namespace oar::cuda {

constexpr int kPackThreads = 256;
constexpr int kWide = 4;

template <int kWidth>
struct Pack {
  float v[kWidth];
};
template <int kWidth>
OAR_DEVICE Pack<kWidth> load_pack(const float* p) {
  if constexpr (kWidth == kWide) {
    const float4 q = load(reinterpret_cast<const float4*>(p));
    return {{q.x, q.y, q.z, q.w}};
  } else {
    return {{load(p)}};
  }
}
template <int kWidth>
OAR_DEVICE void store_pack(float* p, const Pack<kWidth>& x) {
  if constexpr (kWidth == kWide) store_wide(p, make_float4(x.v[0], x.v[1], x.v[2], x.v[3]));
  else store(p, x.v[0]);
}

// The first element of the thread's pack, of a grid along x.
template <int kWidth>
OAR_DEVICE int64_t first_element() {
  return (int64_t{blockIdx.x} * kPackThreads + threadIdx.x) * kWidth;
}

inline bool wide(const float* p, int64_t ld) {
  return reinterpret_cast<uintptr_t>(p) % (kWide * sizeof(float)) == 0 && ld % kWide == 0;
}
// Of kPackThreads, for n elements of packs of `width`.
inline unsigned blocks_of(int64_t n, int width) {
  const int64_t each = int64_t{kPackThreads} * width;
  return static_cast<unsigned>((n + each - 1) / each);
}

}  // namespace oar::cuda
