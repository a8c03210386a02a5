// A warp has one head of one token: first those of queries, then those of keys, whose warp has the value too.
#include "kernels/cuda/heads.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/hadamard_run.h"
#include "kernels/cuda/kv_store.h"
#include "kernels/cuda/rope_head.h"

namespace oar::cuda {
namespace {

constexpr int kWarps = 4;

// A head as a row of a transform has it: its block number h.
OAR_DEVICE void do_steps(const RopeArgs& rope, const HadamardArgs& hadamard, int64_t t, int64_t h,
                         float* buffers, float scale) {
  if (rope.T > 0) {
    rotate_head(rope, t, h);
    __syncwarp();
  }
  if (hadamard.rows > 0) {
    transform_run<WarpTeam>(hadamard, t, h, buffers, scale);
    __syncwarp();
  }
}

template <class Rows>
__global__ void __launch_bounds__(kWarps* kWarp) heads_kernel(Heads a, Rows rows, float scale, int buffer) {
  const int kv_heads = rows.a.shape.kv_heads, D = rows.a.shape.head_dim;
  const int64_t heads = a.query_heads + kv_heads, item = int64_t{blockIdx.x} * kWarps + warp();
  float* buffers = SharedMemory().take<float>(kWarps * buffer) + warp() * buffer;
  if (item >= rows.a.T * heads) return;
  const int64_t t = item / heads, h = item % heads - a.query_heads;
  if (h < 0) {
    do_steps(a.q.rope, a.q.hadamard, t, h + a.query_heads, buffers, scale);
    return;
  }
  do_steps(a.k.rope, a.k.hadamard, t, h, buffers, scale);
  do_steps(a.v.rope, a.v.hadamard, t, h, buffers, scale);
  for (int d = lane(); d < D; d += kWarp) rows.store(t, static_cast<int>(h), d);
}

template <class Rows>
int launch_heads(const Heads& a, const Rows& rows, Stream stream) {
  const int64_t D = rows.a.shape.head_dim, items = rows.a.T * (a.query_heads + rows.a.shape.kv_heads);
  if (items <= 0 || D <= 0) return 0;
  const bool transforms = a.q.transforms() || a.k.transforms() || a.v.transforms();
  const int buffer = transforms ? 2 * static_cast<int>(D) : 0;
  const size_t shared = (static_cast<size_t>(kWarps * buffer) * sizeof(float) + 127) / 128 * 128;
  return launch(heads_kernel<Rows>, static_cast<unsigned>((items + kWarps - 1) / kWarps), kWarps * kWarp,
                shared, stream, a, rows, hadamard_scale(D), buffer);
}

}  // namespace

template <KvType kType>
CudaStatus append_heads(const Heads& heads, const KvAppendArgs& a, Stream stream) {
  return {launch_heads(heads, PlainRows<kType, false>{a}, stream)};
}
template CudaStatus append_heads<KvType::kF32>(const Heads&, const KvAppendArgs&, Stream);
template CudaStatus append_heads<KvType::kF16>(const Heads&, const KvAppendArgs&, Stream);
template CudaStatus append_heads<KvType::kBF16>(const Heads&, const KvAppendArgs&, Stream);

CudaStatus quant_append_heads(const Heads& heads, const QuantKvAppendArgs& a, KvCode keys, KvCode values,
                              Stream stream) {
  if (const int error = launch_heads(heads, OpenRows<false>{a}, stream); error != 0) return {error};
  return quantize_full_pages(a, keys, values, stream);
}

}  // namespace oar::cuda
