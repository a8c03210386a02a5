#include "kernels/cuda/rope.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/hopper.h"
#include "kernels/cuda/rope_head.h"

namespace oar::cuda {
namespace {

constexpr int kWarps = 4;

struct Ropes {
  RopeArgs args[kMostRopes];
  int count = 0;
};

__global__ void __launch_bounds__(kWarps* kWarp) rope_kernel(OAR_GRID_CONSTANT Ropes all) {
  wait_for_launches();
  int64_t item = int64_t{blockIdx.x} * kWarps + warp();
#pragma unroll 1
  for (int k = 0; k < all.count; ++k) {
    const RopeArgs& a = all.args[k];
    const int64_t items = a.T * a.heads;
    if (item < items) return rotate_head(a, item / a.heads, item % a.heads);
    item -= items;
  }
}

}  // namespace

CudaStatus ropes(std::span<const RopeArgs> some, Stream stream) {
  Ropes all;
  int64_t items = 0;
  for (const RopeArgs& a : some) {
    if (a.T <= 0 || a.heads <= 0 || a.D <= 0) continue;
    all.args[all.count++] = with_steps(a);
    items += a.T * a.heads;
  }
  if (items == 0) return {};
  return {launch(rope_kernel, static_cast<unsigned>((items + kWarps - 1) / kWarps), kWarps * kWarp, 0, stream,
                 all)};
}
CudaStatus rope(const RopeArgs& a, Stream stream) { return ropes({&a, 1}, stream); }

}  // namespace oar::cuda
