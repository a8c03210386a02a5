// A block has one row of entries that lie together, or a warp's width of columns beside each other, whose
// entries its warps take in turn. In double: sums in an order that n decides, and whether there are columns.
#include "kernels/cuda/reduce.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr size_t kSharedBytes = kThreads * sizeof(double);

// Of two parts one; a NaN stays.
OAR_DEVICE double joined(ReduceOp op, double a, double b) {
  if (op == ReduceOp::kMax) return b > a || b != b ? b : a;
  if (op == ReduceOp::kMin) return b < a || b != b ? b : a;
  return a + b;
}

template <bool kColumns>
__global__ void __launch_bounds__(kThreads) reduce_kernel(ReduceArgs a, int64_t blocks) {
  wait_for_launches();
  double* partial = SharedMemory().take<double>(kThreads);
  const int64_t o = int64_t{blockIdx.x} / blocks,
                i = kColumns ? int64_t{blockIdx.x} % blocks * kWarp + lane() : 0;
  const float* x = a.x + o * a.n * a.inner + i;
  const ReduceOp op = a.op;
  double sum = op == ReduceOp::kMax ? -INFINITY : op == ReduceOp::kMin ? INFINITY : 0;
  const int64_t step = kColumns ? kWarps : kThreads;
#pragma unroll 4
  for (int64_t k = kColumns ? warp() : threadIdx.x; k < a.n && i < a.inner; k += step) {
    const double v = load(x + k * a.inner);
    sum = joined(op, sum, op == ReduceOp::kSumOfSquares ? v * v : v);
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (warp() != 0) return;
  for (int w = 1; w < kWarps; ++w) sum = joined(op, sum, partial[w * kWarp + lane()]);
  if (!kColumns) {  // all lanes have parts of one row
    partial[lane()] = sum;
    __syncwarp();
    if (lane() != 0) return;
    for (int l = 1; l < kWarp; ++l) sum = joined(op, sum, partial[l]);
  }
  if (i >= a.inner) return;
  if (op == ReduceOp::kMean) sum /= static_cast<double>(a.n);
  store(a.out + o * a.inner + i, static_cast<float>(sum));
}

}  // namespace

CudaStatus reduce(const ReduceArgs& a, Stream stream) {
  if (a.outer <= 0 || a.inner <= 0) return {};
  const bool columns = a.inner > 1;
  const int64_t blocks = columns ? (a.inner + kWarp - 1) / kWarp : 1;
  if (a.n < 0 || a.outer * blocks > INT32_MAX) return {cudaErrorInvalidValue};
  return {launch(columns ? reduce_kernel<true> : reduce_kernel<false>,
                 static_cast<unsigned>(a.outer * blocks), kThreads, kSharedBytes, stream, a, blocks)};
}

}  // namespace oar::cuda
