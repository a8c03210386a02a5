// Attention of one query and head over a paged cache, whatever its pages hold: attention.h says in which
// order. A cache is a struct with
//   const void* head(a, b, kv, pos, at)        the head's part of the page that a query at pos reads position
//   at
//                                              from
//   KvScales scales(head, pos, at)             with kScaled: what the codes of a position are multiplied by
//   void key(head, pos, at, d, scales, k)      dims d .. d + 7 of the key there
//   void values(head, pos, at, d, scales, v)   values of kTogether positions from at on, a multiple of it, at
//                                              dim d; their scales
// None of them is asked of what the query does not see, but for some of the values together. Where keys hold
// values (kLatents) these have fewer dims, and are read as keys are: positions side by side.
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

// Values that keys hold, of 32 positions and kCount dims, between reading them and adding them up: a position
// each row, so far apart that four numbers of eight rows have banks of their own.
template <int kCount>
struct StagedValues {
  static constexpr int kRow = kCount + 4, kFloats = kWarp * kRow;
  float* rows;

  // Dims [d0, end) of this lane's position, of 8 at a time every `step`th from `first` on; zeros where it is
  // not seen.
  template <class Cache>
  OAR_DEVICE void take(const Cache& cache, const void* head, int pos, int at, bool seen,
                       const KvScales& scales, int d0, int end, int first, int step) const {
#pragma unroll 1
    for (int d = d0 + first * kKeyDims; d < end; d += step * kKeyDims) {
      float k[kKeyDims] = {};
      if (seen) cache.key(head, pos, at, d, scales, k);
      auto* const to = reinterpret_cast<float4*>(rows + lane() * kRow + d - d0);
      store(to, make_float4(k[0], k[1], k[2], k[3]));
      store(to + 1, make_float4(k[4], k[5], k[6], k[7]));
    }
  }
  OAR_DEVICE float at(int position, int d) const { return rows[position * kRow + d]; }
};
constexpr int kStagedDims = 64;  // of a warp's

// One query and head a block; warps take spans in turn. Lanes are positions for scores, dims for values.
// kDims: of a lane, at least D / 32.
template <class Cache, int kDims>
__global__ void __launch_bounds__(kAttentionThreads, kDims > 16 ? 3 : 5)
    attention_kernel(PagedAttentionArgs a, Cache cache) {
  wait_for_launches();
  constexpr int kMaxD = kDims * kWarp, kTogether = Cache::kTogether;
  const int D = a.shape.head_dim, DV = a.shape.value_dim(), K = a.shape.kv_heads;
  SharedMemory shared;
  float* q = shared.take<float>(kMaxD);
  float* weights = shared.take<float>(kAttentionWarps * kWarp) + warp() * kWarp;
  float* sums = shared.take<float>(kAttentionWarps * kMaxD);  // of the spans of a turn
  float* totals = shared.take<float>(2 * kAttentionWarps);    // largest score and sum of weights of each
  using Staged = StagedValues<kStagedDims>;
  [[maybe_unused]] const Staged staged{
      shared.take<float>(Cache::kLatents ? kAttentionWarps * Staged::kFloats : 0) + warp() * Staged::kFloats};
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
      const bool seen = at >= from && at <= pos;
      const void* where = nullptr;
      KvScales scales = {};
      if (seen) {
        where = cache.head(a, b, kv, pos, at);
        if constexpr (Cache::kScaled) scales = cache.scales(where, pos, at);
        float dot = 0.f;
        for (int d = 0; d < D; d += kKeyDims) {
          float k[kKeyDims];
          cache.key(where, pos, at, d, scales, k);
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
      // From the first on whose values lie together with one that the query sees.
      const int its_first = from > first ? (from - first) / kTogether * kTogether : 0,
                end = min(kWarp, pos + 1 - first);
      if constexpr (Cache::kLatents) {
#pragma unroll
        for (int part = 0; part < kMaxD / kStagedDims; ++part) {
          const int d0 = part * kStagedDims;
          if (d0 >= DV) break;
          staged.take(cache, where, pos, at, seen, scales, d0, min(d0 + kStagedDims, DV), 0, 1);
          __syncwarp();
#pragma unroll 1
          for (int p = its_first; p < end; ++p) {
            const float w = weights[p];
#pragma unroll
            for (int i = 0; i < kStagedDims / kWarp; ++i) {
              float& sum = o[part * (kStagedDims / kWarp) + i];
              sum = __fmaf_rn(w, staged.at(p, lane() + i * kWarp), sum);
            }
          }
          __syncwarp();
        }
      } else {
#pragma unroll 1
        for (int p = its_first; p < end; p += kTogether) {
          const int p0 = first + p;
          const uint64_t its =
              __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(where), max(p, from - first));
          const auto* head = reinterpret_cast<const void*>(its);
          float w[kTogether];
          float2 of_codes[kTogether] = {};
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            w[j] = weights[p + j];
            if constexpr (Cache::kScaled) {
              of_codes[j] = make_float2(__shfl_sync(kAllLanes, scales.value.x, p + j),
                                        __shfl_sync(kAllLanes, scales.value.y, p + j));
            }
          }
#pragma unroll
          for (int i = 0; i < kDims; ++i) {
            const int d = lane() + i * kWarp;
            float v[kTogether] = {};
            if (d < DV) cache.values(head, pos, p0, d, of_codes, v);
              // What is not seen may be anything, NaN included.
#pragma unroll
            for (int j = 0; j < kTogether; ++j)
              o[i] = __fmaf_rn(w[j], p0 + j >= from && p0 + j <= pos ? v[j] : 0.f, o[i]);
          }
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
  constexpr size_t kFloats = kDims * kWarp * (1 + kAttentionWarps) + kAttentionWarps * kWarp +
                             2 * kAttentionWarps +
                             (Cache::kLatents ? kAttentionWarps * StagedValues<kStagedDims>::kFloats : 0);
  constexpr size_t kPieces = 5, kPiece = 128;  // a piece takes a multiple of it
  return launch(attention_kernel<Cache, kDims>, dim3(static_cast<unsigned>(a.T), static_cast<unsigned>(a.H)),
                kAttentionThreads, kFloats * sizeof(float) + kPieces * kPiece, stream, a, cache);
}

}  // namespace oar::cuda
