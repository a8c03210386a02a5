// Packed rows of sequences, as paged attention and recurrent states have them.
#pragma once

#include "kernels/cuda/device.h"

namespace oar::cuda {

// The sequence of row t: the last one that begins at or before it. seq_start: [B + 1], ascending.
OAR_DEVICE int64_t sequence_of(const int32_t* seq_start, int64_t B, int64_t t) {
  int64_t low = 0, high = B - 1;
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (seq_start[middle] <= t) low = middle;
    else high = middle - 1;
  }
  return low;
}

}  // namespace oar::cuda
