#include "kernels/cuda/rope.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/rope_head.h"

namespace oar::cuda {
namespace {

constexpr int kWarps = 4;

__global__ void __launch_bounds__(kWarps* kWarp) rope_kernel(RopeArgs a) {
  wait_for_launches();
  const int64_t item = int64_t{blockIdx.x} * kWarps + warp();
  if (item >= a.T * a.heads) return;
  rotate_head(a, item / a.heads, item % a.heads);
}

}  // namespace

CudaStatus rope(const RopeArgs& a, Stream stream) {
  const int64_t items = a.T * a.heads;
  if (items <= 0 || a.D <= 0) return {};
  return {launch(rope_kernel, static_cast<unsigned>((items + kWarps - 1) / kWarps), kWarps * kWarp, 0, stream,
                 with_steps(a))};
}

}  // namespace oar::cuda
