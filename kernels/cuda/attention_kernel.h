// Attention of one query and head over a paged cache, whatever its pages hold: attention.h says in which
// order. A cache is a struct with
//   const void* head(a, b, kv, pos, at)        the head's part of the page that a query at pos reads position
//   at
//                                              from
//   KvScales scales(head, pos, at)             with kScaled: what the codes of a position are multiplied by
//   void key(head, pos, at, d, scales, k)      dims d .. d + 7 of the key there
//   float2 values(head, pos, at, d, v0, v1)    values at and at + 1, at even, at dim d; their scales
// None of them is asked of what the query does not see, but for one of the two values. Where keys hold values
// these have fewer dims.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/sequences.h"

namespace oar::cuda {

// Of a position's codes; without kScaled of no meaning. A mean's factor is that of the page.
struct KvScales {
  float2 value;  // scale and minimum
  float scale, minimum, mean;
};

constexpr int kSpan = 256;          // positions with a softmax of their own
constexpr int kAttentionWarps = 4;  // spans at a time
constexpr int kAttentionThreads = kAttentionWarps * kWarp;

// One query and head a block; warps take spans in turn. Lanes are positions for scores, dims for values.
// kDims: of a lane, at least D / 32.
template <class Cache, int kDims>
__global__ void __launch_bounds__(kAttentionThreads, kDims > 16 ? 3 : 5)
    attention_kernel(PagedAttentionArgs a, Cache cache) {
  wait_for_launches();
  constexpr int kMaxD = kDims * kWarp;
  const int D = a.shape.head_dim, DV = a.shape.value_dim(), K = a.shape.kv_heads;
  SharedMemory shared;
  float* q = shared.take<float>(kMaxD);
  float* weights = shared.take<float>(kAttentionWarps * kWarp) + warp() * kWarp;
  float* sums = shared.take<float>(kAttentionWarps * kMaxD);  // of the spans of a turn
  float* totals = shared.take<float>(2 * kAttentionWarps);    // largest score and sum of weights of each
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t t = blockIdx.x;
  const int h = static_cast<int>(blockIdx.y), kv = h / (static_cast<int>(a.H) / K);
  const int64_t b = sequence_of(a.seq_start, a.B, t);
  const int pos = a.context_len[b] - (a.seq_start[b + 1] - static_cast<int>(t));
  const int from = static_cast<int>(first_seen(a, pos));

  for (int d = thread; d < D; d += kAttentionThreads) q[d] = a.q[t * a.ldq + h * D + d];
  __syncthreads();

  // What this thread merges: dims thread, thread + kAttentionThreads, ...
  static_assert(kMaxD % kAttentionThreads == 0);
  constexpr int kMine = kMaxD / kAttentionThreads;
  float largest = -INFINITY, total = 0.f, mine[kMine] = {};
  for (int turn = from / kSpan; turn <= pos / kSpan; turn += kAttentionWarps) {
    const int begin = (turn + warp()) * kSpan;
    float m = -INFINITY, l = 0.f, o[kDims] = {};
    for (int first = begin; first < begin + kSpan && first <= pos; first += kWarp) {
      if (first + kWarp <= from) continue;
      const int at = first + lane();
      float score = -INFINITY;
      uint64_t where = 0;  // a pointer, as shuffles take it
      KvScales scales = {};
      if (at >= from && at <= pos) {
        const void* head = cache.head(a, b, kv, pos, at);
        where = reinterpret_cast<uint64_t>(head);
        if constexpr (Cache::kScaled) scales = cache.scales(head, pos, at);
        float dot = 0.f;
        for (int d = 0; d < D; d += kKeyDims) {
          float k[kKeyDims];
          cache.key(head, pos, at, d, scales, k);
#pragma unroll
          for (int i = 0; i < kKeyDims; ++i) dot = __fmaf_rn(q[d + i], k[i], dot);
        }
        score = dot * a.scale;
        if (a.softcap > 0.f) score = a.softcap * tanhf(__fdividef(score, a.softcap));
      }
      const float most = fmaxf(m, warp_max(score));
      const float old = softmax_shrink(m, most), weight = softmax_shrink(score, most);  // 0 where not seen
      m = most;
      l = __fmaf_rn(l, old, warp_sum(weight));
      weights[lane()] = weight;
#pragma unroll
      for (float& x : o) x *= old;
      __syncwarp();
      // Pairs of which the query sees one token at least.
      const int end = min(kWarp, pos + 1 - first);
#pragma unroll 1
      for (int pair = from > first ? (from - first) / 2 * 2 : 0; pair < end; pair += 2) {
        const int p0 = first + pair;
        const uint64_t its = __shfl_sync(kAllLanes, where, p0 >= from ? pair : pair + 1);
        const bool first_seen = p0 >= from, second_seen = p0 + 1 <= pos;
        const auto* head = reinterpret_cast<const void*>(its);
        const float w0 = weights[pair], w1 = weights[pair + 1];
        float2 v0 = {}, v1 = {};
        if constexpr (Cache::kScaled) {
          v0 = make_float2(__shfl_sync(kAllLanes, scales.value.x, pair),
                           __shfl_sync(kAllLanes, scales.value.y, pair));
          v1 = make_float2(__shfl_sync(kAllLanes, scales.value.x, pair + 1),
                           __shfl_sync(kAllLanes, scales.value.y, pair + 1));
        }
#pragma unroll
        for (int i = 0; i < kDims; ++i) {
          const int d = lane() + i * kWarp;
          const float2 v = d < DV ? cache.values(head, pos, p0, d, v0, v1) : make_float2(0.f, 0.f);
          // What is not seen may be anything, NaN included.
          o[i] = __fmaf_rn(w0, first_seen ? v.x : 0.f, o[i]);
          o[i] = __fmaf_rn(w1, second_seen ? v.y : 0.f, o[i]);
        }
      }
      __syncwarp();
    }
    if (lane() == 0) {
      totals[2 * warp()] = m;
      totals[2 * warp() + 1] = l;
    }
#pragma unroll
    for (int i = 0; i < kDims; ++i) sums[warp() * kMaxD + lane() + i * kWarp] = o[i];
    __syncthreads();
    for (int w = 0; w < kAttentionWarps && (turn + w) * kSpan <= pos; ++w) {
      const float next = fmaxf(largest, totals[2 * w]);
      const float old = softmax_shrink(largest, next), add = softmax_shrink(totals[2 * w], next);
      largest = next;
      total = __fmaf_rn(total, old, totals[2 * w + 1] * add);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        mine[i] = __fmaf_rn(mine[i], old, sums[w * kMaxD + thread + i * kAttentionThreads] * add);
      }
    }
    __syncthreads();
  }
  if (a.sink_logits != nullptr) {  // one more logit, of value zero
    const float sink = a.sink_logits[h], next = fmaxf(largest, sink), old = softmax_shrink(largest, next);
    total = __fmaf_rn(total, old, softmax_shrink(sink, next));
#pragma unroll
    for (float& x : mine) x *= old;
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int d = thread + i * kAttentionThreads;
    if (d < DV) a.out[t * a.ldo + h * DV + d] = quotient(mine[i], total);
  }
}

// A cudaError_t.
template <class Cache, int kDims>
int launch_attention(const PagedAttentionArgs& a, const Cache& cache, void* stream) {
  constexpr size_t kFloats =
      kDims * kWarp * (1 + kAttentionWarps) + kAttentionWarps * kWarp + 2 * kAttentionWarps;
  constexpr size_t kPieces = 4, kPiece = 128;  // a piece takes a multiple of it
  return launch(attention_kernel<Cache, kDims>, dim3(static_cast<unsigned>(a.T), static_cast<unsigned>(a.H)),
                kAttentionThreads, kFloats * sizeof(float) + kPieces * kPiece, stream, a, cache);
}

}  // namespace oar::cuda
