// Kernels of mbarriers and box copies, right, and wrong in one way each. Compiled like kernels/cuda: as C++
// with every access seen, and by nvcc, whose instructions instructions_test.py reads.
#pragma once

#include "kernels/cuda/hopper.h"

namespace oar_test {

enum class BoxFault {
  kNone,
  kNoFenceBehindInit,
  kNoBarrierBehindInit,
  kNoWait,
  kOtherParity,
  kTooFewBytes,
  kTooManyBytes,
  kTooManyArrivals,
  kMisaligned,
  kNoWaitForEmpty,
  kOtherEmptyParity,
  kNoArrival,
  kOneWarpDoesNotArrive,
  kNoFenceBeforeStore,
  kNoBarrierBeforeStore,
  kNoWaitForStore,
  kOverwritesBeforeStored,
};

constexpr int kBoxThreads = 96;  // of all these: a warp that copies and two that read

// out[i] = byte i of the box at (x, y) or (x, y, z), as it lies in shared memory.
__global__ void reads_box(uint8_t* out, OAR_GRID_CONSTANT oar::cuda::TensorMap map, int rank, int x, int y,
                          int z, int bytes, bool streamed, BoxFault fault);
// out[t] = the sum of word t of `boxes` boxes of 16 x 16 bytes one below the other, for t < 64. `again`: the
// last box is the first once more; `streamed`: those between are.
__global__ void sums_boxes(uint32_t* out, OAR_GRID_CONSTANT oar::cuda::TensorMap map, int boxes, bool again,
                           bool streamed, BoxFault fault);
// Writes a box of `bytes` bytes at (x, y) or (x, y, z): byte i of shared memory is i % 251.
__global__ void writes_box(OAR_GRID_CONSTANT oar::cuda::TensorMap map, int rank, int x, int y, int z,
                           int bytes, BoxFault fault);

}  // namespace oar_test
