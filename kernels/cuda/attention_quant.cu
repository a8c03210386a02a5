#include "kernels/cuda/attention_quant.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/attention_codes.h"
#include "kernels/cuda/attention_spans.h"
#include "kernels/cuda/kv_store.h"
#include "kernels/cuda/quantize_page.h"
#include "kernels/cuda/quantized_pages.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 128;

// ---- append

template <bool kLatent>
__global__ void __launch_bounds__(kThreads) rows_kernel(QuantKvAppendArgs a) {
  wait_for_launches();
  append_rows(OpenRows<kLatent>{a}, int64_t{blockIdx.x} * (kThreads / kWarp) + warp());
}

// A block per row and head, most of which have nothing to do.
template <bool kLatent>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(QuantKvAppendArgs a, QuantKvLayout layout, KvCode keys, KvCode values) {
  wait_for_launches();
  const int P = a.shape.page_tokens, D = a.shape.head_dim;
  const PageShared shared(SharedMemory().take<float>(PageShared::floats(P, D)), P, D);
  if (!fills_page(a, blockIdx.x)) return;
  quantize_page<BlockTeam<kThreads>, kLatent>(a, layout, keys, values, blockIdx.x,
                                              static_cast<int>(blockIdx.y), shared);
}

// ---- attention

template <bool kLatent, int kMaxD>
int attend_pages(const QuantPagedAttentionArgs& a, KvCode keys, KvCode values, void* scratch, Stream stream,
                 const HeadTransform& then) {
  const QuantizedPages<kLatent> pages{a.common.pool,
                                      a.open,
                                      a.sinks,
                                      a.open_tables,
                                      a.sink_tables,
                                      a.open_max_blocks,
                                      a.sink_max_blocks,
                                      QuantKvLayout(with_codes(a.shape, keys, values)),
                                      a.shape.page_tokens,
                                      a.shape.head_dim,
                                      a.shape.kv_heads,
                                      keys,
                                      values};
  if constexpr (!kLatent && kMaxD <= 128) {
    const bool tensor = quant_by_tensor_cores(keys, values, a.common.shape);
    if (tensor) return attend_codes(a.common, pages, keys, values, scratch, stream, then);
  }
  return attend<QuantizedPages<kLatent>, kMaxD>(a.common, pages, scratch, stream, then);
}

}  // namespace

CudaStatus quant_kv_append(const QuantKvAppendArgs& a, KvCode keys, KvCode values, Stream stream) {
  const bool latent = a.shape.latent > 0;
  constexpr int kWarps = kThreads / kWarp;
  const int64_t D = a.shape.head_dim, warps = append_warps(a.T, a.shape.kv_heads, D);
  if (warps <= 0) return {};
  if (D > (latent ? kMaxLatentDim : kMaxHeadDim)) return {cudaErrorInvalidValue};
  const int error = launch(latent ? rows_kernel<true> : rows_kernel<false>,
                           static_cast<unsigned>((warps + kWarps - 1) / kWarps), kThreads, 0, stream, a);
  return error != 0 ? CudaStatus{error} : quantize_full_pages(a, keys, values, stream);
}

CudaStatus quantize_full_pages(const QuantKvAppendArgs& a, KvCode keys, KvCode values, Stream stream) {
  const bool latent = a.shape.latent > 0;
  const int64_t K = a.shape.kv_heads;
  const size_t shared =
      (PageShared::floats(a.shape.page_tokens, a.shape.head_dim) * sizeof(float) + 127) / 128 * 128;
  return {launch(latent ? quantize_kernel<true> : quantize_kernel<false>,
                 dim3(static_cast<unsigned>(a.T), static_cast<unsigned>(K)), kThreads, shared, stream, a,
                 QuantKvLayout(with_codes(a.shape, keys, values)), keys, values)};
}

uint64_t quant_paged_attention_scratch(const QuantPagedAttentionArgs& a) {
  return tensor_attention_scratch(a.common);  // no less than what other kernels take
}

CudaStatus quant_paged_attention(const QuantPagedAttentionArgs& a, KvCode keys, KvCode values, void* scratch,
                                 Stream stream, const HadamardArgs* transform) {
  const HeadTransform then = transform != nullptr ? HeadTransform(*transform) : HeadTransform();
  const PagedAttentionArgs& c = a.common;
  if (c.T <= 0 || c.H <= 0) return {};
  const int D = a.shape.head_dim;
  if (a.shape.latent > 0 && D <= kMaxLatentDim)
    return {attend_pages<true, kLatentDims>(a, keys, values, scratch, stream, then)};
  if (a.shape.latent == 0 && D <= 128)
    return {attend_pages<false, 128>(a, keys, values, scratch, stream, then)};
  if (a.shape.latent == 0 && D <= 256)
    return {attend_pages<false, 256>(a, keys, values, scratch, stream, then)};
  if (a.shape.latent == 0 && D <= kMaxHeadDim)
    return {attend_pages<false, kMaxHeadDim>(a, keys, values, scratch, stream, then)};
  return {cudaErrorInvalidValue};
}

}  // namespace oar::cuda
