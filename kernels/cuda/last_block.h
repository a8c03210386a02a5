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

// ---- blocks that follow one another in a launch ----

// The number of a piece of work, from 0 on, as blocks come: whoever has one, all before it are under way.
// Of all `count` each is taken once. The counter is zero again then. `place` is a word of shared memory.
OAR_DEVICE uint32_t take_ticket(uint32_t* counter, uint32_t count, uint32_t* place) {
  if (threadIdx.x == 0) *place = atomicInc(counter, count - 1);
  __syncthreads();
  return *place;
}
// All threads of the block: whoever waits for it sees what it did.
OAR_DEVICE void tell_finished(uint32_t* counter) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicInc(counter, ~0u);
  }
}
// A warp waits until so many blocks have finished, which all are under way, and sees what they did.
OAR_DEVICE void wait_for_blocks(const uint32_t* counter, uint32_t count) {
  const bool polls = lane() == 0;
  if (polls) {
    wait_for_count(counter, count);
    __threadfence();
  }
  __syncwarp();
}
// A block of the last of steps is done, of which there are `blocks`. The last of them leaves counters of
// steps zero: nobody waits any more.
OAR_DEVICE void end_chain(uint32_t* finished, int last, uint32_t blocks) {
  if (threadIdx.x != 0 || atomicInc(finished + last, blocks - 1) != blocks - 1) return;
  for (int s = 0; s < last; ++s) finished[s] = 0;
}

}  // namespace oar::cuda
