// Kernels of clusters of blocks, right, and wrong in one way each; see box_kernels.h.
#pragma once

#include "kernels/cuda/hopper.h"

namespace oar_test {

enum class ClusterFault {
  kNone,
  kNoSyncBefore,     // others read before it is written
  kBlockSyncBefore,  // a barrier of the block where the cluster's is needed
  kNoSyncBehind,     // a block ends while others read its memory
  kNoFenceOfInit,
  kNoProxyFence,
  kNoSyncBehindInit,
  kForOneBlock,     // the box for the other does not come
  kNoArrivalThere,  // of the block that does not copy
  kNoWaitForEmpty,
  kWaitsWithinBlock,
};

constexpr int kClusterThreads = 96, kClusterBlocks = 2;

// out[block * 96 + t] = in of the same thread of the cluster's other block, plus 1.
__global__ void exchanges(uint32_t* out, const uint32_t* in, ClusterFault fault);
// out[block * 64 + t] = block + the sum of word t of `boxes` boxes of 16 x 16 bytes one below the other, for
// t <
// 64. The first block copies each box for both.
__global__ void sums_shared_boxes(uint32_t* out, OAR_GRID_CONSTANT oar::cuda::TensorMap map, int boxes,
                                  ClusterFault fault);

}  // namespace oar_test
