// Work that follows when several blocks of a launch are done, in the same launch: whichever block is the last
// does it. It reads what the others wrote in an order of its own, so nothing depends on which one it is.
#pragma once

#include "kernels/cuda/counters.h"
#include "kernels/cuda/device.h"

namespace oar::cuda {

// Whether this block is the last of `count` that come to `counter`, which is zero again then; it sees what
// they did. All threads of the block come; `flag` is a word of its shared memory.
OAR_DEVICE bool is_last_block(uint32_t* counter, int count, uint32_t* flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    const auto last = static_cast<uint32_t>(count - 1);
    *flag = atomicInc(counter, last) == last ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  return *flag != 0;
}
constexpr size_t kLastBlockShared = 128;  // bytes of the flag

// The same of warps, of any blocks.
OAR_DEVICE bool is_last_warp(uint32_t* counter, int count) {
  __syncwarp();
  uint32_t is_last = 0;
  if (lane() == 0) {
    __threadfence();
    const auto last = static_cast<uint32_t>(count - 1);
    is_last = atomicInc(counter, last) == last ? 1 : 0;
    __threadfence();
  }
  __syncwarp();
  return __shfl_sync(kAllLanes, is_last, 0) != 0;
}

}  // namespace oar::cuda
