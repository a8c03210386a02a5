// A warp has one head of one token: first those of queries, then those of keys, whose warp has the value too.
// Of keys and values it has two tokens, where they share sectors of a page (kv_store.h).
#include "kernels/cuda/heads.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/cuda/hadamard_run.h"
#include "kernels/cuda/kv_store.h"
#include "kernels/cuda/last_block.h"
#include "kernels/cuda/quantize_page.h"
#include "kernels/cuda/rope_head.h"

namespace oar::cuda {
namespace {

constexpr int kWarps = 4;
// Rows of a launch that brings pages to codes, too: it takes registers that prompts need for more warps.
constexpr int64_t kMostCodedRows = 256;

// A head as a row of a transform has it: its block number h.
OAR_DEVICE void do_steps(const RopeArgs& rope, const HadamardArgs& hadamard, int64_t t, int64_t h,
                         float* buffers, float scale) {
  if (rope.T > 0) {
    rotate_head(rope, t, h);
    __syncwarp();
  }
  if (hadamard.rows > 0) transform_run<WarpTeam>(hadamard, t, h, buffers, scale);
}

// What becomes of a page behind its last token: of 16 and 32 bits nothing.
struct NoCodes {
  static constexpr bool kThere = false;
  size_t floats() const { return 0; }
};

// Of a quantized cache its codes. Whichever row's warp comes last brings a head of the page to codes: the
// page has up to as many rows of this launch as it has tokens.
template <bool kLatent>
struct PageCodes {
  static constexpr bool kThere = true;
  QuantKvLayout layout;
  KvCode keys, values;
  int tokens, dims;
  uint32_t* counters;  // [T, heads of keys], of rows that fill a page: rows of it that are stored

  size_t floats() const { return static_cast<size_t>(PageShared::floats(tokens, dims)); }
  OAR_DEVICE bool in_page(const QuantKvAppendArgs& a, int64_t t, int page) const {
    return t >= 0 && t < a.T && a.slots[t] >= 0 && a.slots[t] / tokens == page;
  }
  // Row t's head h is stored.
  OAR_DEVICE void stored(const QuantKvAppendArgs& a, int64_t t, int h, float* shared) const {
    if (a.slots[t] < 0) return;
    const int page = a.slots[t] / tokens;
    // The row that fills the page is at most so many rows behind, and those of the page in front of it.
    int64_t last = -1;
    for (int i = 0; i < tokens && last < 0; i += kWarp) {
      const int64_t its = t + i + lane();
      const bool fills = i + lane() < tokens && in_page(a, its, page) && fills_page(a, its);
      if (const uint32_t found = __ballot_sync(kAllLanes, fills); found != 0) last = t + i + __ffs(found) - 1;
    }
    if (last < 0) return;
    int rows = 0;
    for (int i = 0; i < tokens; i += kWarp) {
      rows += __popc(__ballot_sync(kAllLanes, i + lane() < tokens && in_page(a, last - i - lane(), page)));
    }
    if (!is_last_warp(counters + last * a.shape.kv_heads + h, rows)) return;
    quantize_page<WarpTeam, kLatent>(a, layout, keys, values, last, h, PageShared(shared, tokens, dims));
  }
};

template <class Rows, class Codes>
__global__ void __launch_bounds__(kWarps* kWarp)
    heads_kernel(Heads a, Rows rows, Codes codes, float scale, int buffer) {
  wait_for_launches();
  const int kv_heads = rows.a.shape.kv_heads, D = rows.a.shape.head_dim;
  const int64_t heads = a.query_heads + kv_heads, item = int64_t{blockIdx.x} * kWarps + warp();
  float* buffers = SharedMemory().take<float>(kWarps * buffer) + warp() * buffer;
  if (item >= rows.a.T * heads) return;
  const int64_t t = item / heads, h = item % heads - a.query_heads;
  if (h < 0) {
    do_steps(a.q.rope, a.q.hadamard, t, h + a.query_heads, buffers, scale);
    return;
  }
  const int together = rows_together(rows, t);
  for (int r = 0; r < together; ++r) {
    do_steps(a.k.rope, a.k.hadamard, t + r, h, buffers, scale);
    do_steps(a.v.rope, a.v.hadamard, t + r, h, buffers, scale);
  }
  __syncwarp();
  if (together > 0) store_rows(rows, t, together, static_cast<int>(h), 0, D);
  if constexpr (Codes::kThere) {
    for (int r = 0; r < together; ++r) codes.stored(rows.a, t + r, static_cast<int>(h), buffers);
  }
}

template <class Rows, class Codes>
int launch_heads(Heads a, const Rows& rows, const Codes& codes, Stream stream) {
  const int64_t D = rows.a.shape.head_dim, items = rows.a.T * (a.query_heads + rows.a.shape.kv_heads);
  if (items <= 0 || D <= 0) return 0;
  for (HeadSteps* steps : {&a.q, &a.k, &a.v}) steps->rope = with_steps(steps->rope);
  const bool transforms = a.q.transforms() || a.k.transforms() || a.v.transforms();
  const int buffer = std::max(transforms ? 2 * static_cast<int>(D) : 0, static_cast<int>(codes.floats()));
  const size_t shared = (static_cast<size_t>(kWarps * buffer) * sizeof(float) + 127) / 128 * 128;
  return launch(heads_kernel<Rows, Codes>, static_cast<unsigned>((items + kWarps - 1) / kWarps),
                kWarps * kWarp, shared, stream, a, rows, codes, hadamard_scale(D), buffer);
}

}  // namespace

template <KvType kType>
CudaStatus append_heads(const Heads& heads, const KvAppendArgs& a, Stream stream) {
  return {a.shape.latent > 0 ? launch_heads(heads, PlainRows<kType, true>{a}, NoCodes{}, stream)
                             : launch_heads(heads, PlainRows<kType, false>{a}, NoCodes{}, stream)};
}
template CudaStatus append_heads<KvType::kF32>(const Heads&, const KvAppendArgs&, Stream);
template CudaStatus append_heads<KvType::kF16>(const Heads&, const KvAppendArgs&, Stream);
template CudaStatus append_heads<KvType::kBF16>(const Heads&, const KvAppendArgs&, Stream);

namespace {

template <bool kLatent>
CudaStatus append_quantized(const Heads& heads, const QuantKvAppendArgs& a, KvCode keys, KvCode values,
                            Stream stream) {
  const OpenRows<kLatent> rows{a};
  if (a.T > std::min(kMostCodedRows, kCounters / std::max(a.shape.kv_heads, 1))) {
    if (const int error = launch_heads(heads, rows, NoCodes{}, stream); error != 0) return {error};
    return quantize_full_pages(a, keys, values, stream);
  }
  PageCodes<kLatent> codes{QuantKvLayout(with_codes(a.shape, keys, values)),
                           keys,
                           values,
                           a.shape.page_tokens,
                           a.shape.head_dim,
                           nullptr};
  if (const int error = counters_of(stream, &codes.counters); error != 0) return {error};
  return {launch_heads(heads, rows, codes, stream)};
}

}  // namespace

CudaStatus quant_append_heads(const Heads& heads, const QuantKvAppendArgs& a, KvCode keys, KvCode values,
                              Stream stream) {
  const bool latent = a.shape.latent > 0;
  if (a.shape.head_dim > (latent ? kMaxLatentDim : kMaxHeadDim)) return {cudaErrorInvalidValue};
  return latent ? append_quantized<true>(heads, a, keys, values, stream)
                : append_quantized<false>(heads, a, keys, values, stream);
}

}  // namespace oar::cuda
