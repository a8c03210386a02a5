// A block of threads per run of `block` elements, which lies in shared memory.
#include "kernels/cuda/hadamard.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/hadamard_run.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSharedFloats = 56 << 10;  // both buffers: 224 KiB of the 227 that a block may have

__global__ void __launch_bounds__(kThreads) hadamard_kernel(HadamardArgs a, float* scratch, float scale) {
  wait_for_launches();
  const int block = static_cast<int>(a.block);
  const int64_t runs = a.n / a.block, row = blockIdx.x / runs, run = blockIdx.x % runs;
  float* buffers =
      scratch != nullptr ? scratch + int64_t{blockIdx.x} * 2 * block : SharedMemory().take<float>(2 * block);
  transform_run<BlockTeam<kThreads>>(a, row, run, buffers, scale);
}

}  // namespace

uint64_t hadamard_scratch(const HadamardArgs& a) {
  if (2 * a.block <= kSharedFloats || a.block <= 0) return 0;
  return static_cast<uint64_t>(a.rows * (a.n / a.block) * 2 * a.block) * sizeof(float);
}

CudaStatus hadamard(const HadamardArgs& a, void* scratch, Stream stream) {
  if (a.rows <= 0 || a.n <= 0) return {};
  const dim3 grid(static_cast<unsigned>(a.rows * (a.n / a.block)));
  const bool fits = hadamard_scratch(a) == 0;
  const size_t shared = fits ? (2 * static_cast<size_t>(a.block) * sizeof(float) + 127) / 128 * 128 : 0;
  return {launch(hadamard_kernel, grid, kThreads, shared, stream, a,
                 fits ? nullptr : static_cast<float*>(scratch), hadamard_scale(a.block))};
}

}  // namespace oar::cuda
