#include "tests/cuda/box_kernels.h"

namespace oar_test {

using namespace oar::cuda;

__global__ void reads_box(uint8_t* out, OAR_GRID_CONSTANT TensorMap map, int rank, int x, int y, int z,
                          int bytes, bool streamed, BoxFault fault) {
  SharedMemory shared;
  auto* box = shared.take<uint8_t>(bytes);
  auto* full = shared.take<Mbarrier>(1);
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) {
    mbarrier_init(full, 1);
    if (fault != BoxFault::kNoFenceBehindInit) fence_proxy_async();
  }
  if (fault != BoxFault::kNoBarrierBehindInit) __syncthreads();
  if (t == 0) {
    const int more = fault == BoxFault::kTooFewBytes ? -16 : fault == BoxFault::kTooManyBytes ? 16 : 0;
    mbarrier_arrive_expect(full, static_cast<uint32_t>(bytes + more));
    if (fault == BoxFault::kTooManyArrivals) mbarrier_arrive(full);
    uint8_t* to = fault == BoxFault::kMisaligned ? box + 16 : box;
    if (rank == 2) copy_box(to, &map, x, y, full, streamed);
    else copy_box(to, &map, x, y, z, full, streamed);
  }
  if (fault != BoxFault::kNoWait) mbarrier_wait(full, fault == BoxFault::kOtherParity ? 1 : 0);
  for (int i = t; i < bytes; i += kBoxThreads) out[i] = box[i];
}

__global__ void sums_boxes(uint32_t* out, OAR_GRID_CONSTANT TensorMap map, int boxes, bool again,
                           bool streamed, BoxFault fault) {
  constexpr int kRows = 16, kBytes = 256, kStages = 2, kWords = kBytes / 4, kReaders = 2;
  SharedMemory shared;
  auto* ring = shared.take<uint32_t>(kStages * kWords);
  auto* full = shared.take<Mbarrier>(kStages);
  auto* empty = shared.take<Mbarrier>(kStages);
  const int t = static_cast<int>(threadIdx.x), warp = t / kWarp;
  if (t == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + s, 1);
      mbarrier_init(empty + s, kReaders);
    }
    fence_proxy_async();
  }
  __syncthreads();
  if (warp == kReaders) {
    if (t % kWarp == 0) {
      for (int i = 0; i < boxes; ++i) {
        const int s = i % kStages;
        const bool wait = i >= kStages && fault != BoxFault::kNoWaitForEmpty;
        const int turn = fault == BoxFault::kOtherEmptyParity ? i / kStages : i / kStages + 1;
        if (wait) mbarrier_wait(empty + s, turn % 2);
        mbarrier_arrive_expect(full + s, kBytes);
        const bool last = i + 1 == boxes;
        copy_box(ring + s * kWords, &map, 0, again && last ? 0 : i * kRows, full + s,
                 streamed && i > 0 && !last);
      }
    }
    return;
  }
  uint32_t sum = 0;
  for (int i = 0; i < boxes; ++i) {
    const int s = i % kStages;
    mbarrier_wait(full + s, i / kStages % 2);
    sum += ring[s * kWords + t];
    __syncwarp();
    const bool arrives =
        fault != BoxFault::kNoArrival && (fault != BoxFault::kOneWarpDoesNotArrive || warp == 0);
    if (t % kWarp == 0 && arrives) mbarrier_arrive(empty + s);
  }
  out[t] = sum;
}

__global__ void writes_box(OAR_GRID_CONSTANT TensorMap map, int rank, int x, int y, int z, int bytes,
                           BoxFault fault) {
  constexpr int kPeriod = 251;
  auto* box = SharedMemory().take<uint8_t>(bytes);
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < bytes; i += kBoxThreads) box[i] = static_cast<uint8_t>(i % kPeriod);
  if (fault != BoxFault::kNoFenceBeforeStore) fence_proxy_async();
  if (fault != BoxFault::kNoBarrierBeforeStore) __syncthreads();
  if (t == 0) {
    if (rank == 2) store_box(&map, x, y, box);
    else store_box(&map, x, y, z, box);
    store_box_commit();
    if (fault == BoxFault::kOverwritesBeforeStored) box[0] = 77;
    if (fault != BoxFault::kNoWaitForStore) store_box_wait<0>();
  }
}

}  // namespace oar_test
