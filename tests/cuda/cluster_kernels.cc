#include "tests/cuda/cluster_kernels.h"

namespace oar_test {

using namespace oar::cuda;

__global__ void exchanges(uint32_t* out, const uint32_t* in, ClusterFault fault) {
  auto* own = SharedMemory().take<uint32_t>(kClusterThreads);
  const int t = static_cast<int>(threadIdx.x), at = static_cast<int>(blockIdx.x) * kClusterThreads + t;
  own[t] = in[at] + 1;
  if (fault == ClusterFault::kBlockSyncBefore) __syncthreads();
  else if (fault != ClusterFault::kNoSyncBefore) cluster_sync();
  out[at] = cluster_map(own, 1 - cluster_rank())[t];
  if (fault != ClusterFault::kNoSyncBehind) cluster_sync();
}

__global__ void sums_shared_boxes(uint32_t* out, OAR_GRID_CONSTANT TensorMap map, int boxes,
                                  ClusterFault fault) {
  constexpr int kRows = 16, kBytes = 256, kStages = 2, kWords = kBytes / 4, kReaders = 2;
  SharedMemory shared;
  auto* ring = shared.take<uint32_t>(kStages * kWords);
  auto* full = shared.take<Mbarrier>(kStages);
  auto* empty = shared.take<Mbarrier>(kStages);  // that of the first block is for both
  const int t = static_cast<int>(threadIdx.x), warp = t / kWarp, rank = cluster_rank();
  if (t == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(full + s, 1);
      mbarrier_init(empty + s, kReaders * kClusterBlocks);
    }
    if (fault != ClusterFault::kNoProxyFence) fence_proxy_async();
    if (fault != ClusterFault::kNoFenceOfInit) fence_mbarrier_init();
  }
  if (fault != ClusterFault::kNoSyncBehindInit) cluster_sync();
  else __syncthreads();
  if (warp == kReaders && t % kWarp == 0) {
    for (int i = 0; i < boxes; ++i) {
      const int s = i % kStages;
      // Each block expects its own copy, and the first sends it when both are done with what was there.
      if (rank == 0 && i >= kStages && fault != ClusterFault::kNoWaitForEmpty) {
        const auto turn = static_cast<uint32_t>(i / kStages + 1) % 2;
        if (fault == ClusterFault::kWaitsWithinBlock) mbarrier_wait(empty + s, turn);
        else mbarrier_wait_cluster(empty + s, turn);
      }
      if (rank != 0 && i >= kStages) mbarrier_wait(full + s, static_cast<uint32_t>(i / kStages + 1) % 2);
      mbarrier_arrive_expect(full + s, kBytes);
      if (rank == 0)
        copy_box_to_all(ring + s * kWords, &map, 0, i * kRows, full + s,
                        fault == ClusterFault::kForOneBlock ? 1 : 3);
    }
  }
  if (warp < kReaders) {
    uint32_t sum = static_cast<uint32_t>(blockIdx.x);
    for (int i = 0; i < boxes; ++i) {
      const int s = i % kStages;
      mbarrier_wait(full + s, static_cast<uint32_t>(i / kStages % 2));
      sum += ring[s * kWords + t];
      __syncwarp();
      const bool arrives = fault != ClusterFault::kNoArrivalThere || rank == 0;
      if (t % kWarp == 0 && arrives) mbarrier_arrive_at(empty + s, 0);
    }
    out[static_cast<int>(blockIdx.x) * kWords + t] = sum;
  }
  if (fault != ClusterFault::kNoSyncBehind) cluster_sync();
}

}  // namespace oar_test
