// Threads that do something together: a block of so many, or a warp.
#pragma once

#include "kernels/cuda/device.h"

namespace oar::cuda {

template <int kCount>
struct BlockTeam {
  static constexpr int kThreads = kCount;
  OAR_DEVICE static int thread() { return static_cast<int>(threadIdx.x); }
  OAR_DEVICE static void meet() { __syncthreads(); }
};
struct WarpTeam {
  static constexpr int kThreads = kWarp;
  OAR_DEVICE static int thread() { return lane(); }
  OAR_DEVICE static void meet() { __syncwarp(); }
};

}  // namespace oar::cuda
