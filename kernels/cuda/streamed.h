// Accesses of what nobody reads again soon, beside the words of device.h: where they are `streamed`, their
// lines are the first that leave L2, before those that other blocks come back to. One access of sizeof(T)
// bytes, aligned so.
#pragma once

#include "kernels/cuda/device.h"

namespace oar::cuda {

template <class T>
OAR_DEVICE T load_streamed(const T* p, bool streamed) {
#if defined(__CUDACC__)
  return streamed ? __ldcs(p) : *p;
#else
  T value;
  emulation::copy_traced(&value, p, sizeof value, p, false, streamed);
  return value;
#endif
}
template <class T>
OAR_DEVICE void store_streamed(T* p, T value, bool streamed) {
#if defined(__CUDACC__)
  if (streamed) __stcs(p, value);
  else *p = value;
#else
  emulation::copy_traced(p, &value, sizeof value, p, true, streamed);
#endif
}

}  // namespace oar::cuda
