// The same attention for few rows, one block a span of positions: a long context is spread over the device
// however few sequences there are, and query heads that share keys read them once. Partial results of spans
// lie in scratch, and the last block of a row and its heads merges them in ascending order.
//
// Spans are those of attention_kernel.h, counted from position 0, and every operation is the same in the same
// order. So both give a row the same bits, and which of them runs may follow from the number of rows. Of a
// cache it also asks kMostHeads: heads that a block may have (4 or 8).
#pragma once

#include "kernels/cuda/attention_kernel.h"
#include "kernels/cuda/hadamard.h"
#include "kernels/cuda/hadamard_run.h"
#include "kernels/cuda/last_block.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

constexpr int kSteps = kSpan / kWarp;  // of a span
// Of kernels whose keys hold values: kMaxLatentDim and what fills up a block's threads.
constexpr int kLatentDims = 640;
constexpr int64_t kMostSplitRows = 256;
constexpr int64_t kMostPartialBytes = int64_t{128} << 20;

// Of one row, head and span: sums of values, and the largest score and the sum of weights.
struct Partials {
  float* sums;                   // [T, H, spans, dims of values]
  float* totals;                 // [T, H, spans, 2]
  int64_t first = 0;             // row of the arguments that is the first here
  uint32_t* counters = nullptr;  // [T, blocks of a row's heads]: spans that are done

  OAR_DEVICE uint32_t* counter() const { return counters + blockIdx.x * gridDim.y + blockIdx.y; }
};

// What follows attention, head by head, in the same launch: a transform whose blocks are heads of out.
struct HeadTransform {
  HadamardArgs args;  // rows == 0: none
  float scale = 0;
  int buffer = 0;  // floats of a warp

  HeadTransform() = default;
  explicit HeadTransform(const HadamardArgs& a)
      : args(a), scale(hadamard_scale(a.block)), buffer(2 * static_cast<int>(a.block)) {}
  size_t shared_bytes() const {
    return (kAttentionWarps * sizeof(float) * static_cast<size_t>(buffer) + 127) / 128 * 128;
  }
  // Of heads h0, h0 + 1, ... of row t, which this block has stored.
  OAR_DEVICE void run(int64_t t, int h0, int heads, float* buffers) const {
    if (args.rows == 0) return;
    __syncthreads();
    for (int g = warp(); g < heads; g += kAttentionWarps)
      transform_run<WarpTeam>(args, t, h0 + g, buffers + warp() * buffer, scale);
  }
};

// Spans that a row may see.
inline int64_t spans_of(const PagedAttentionArgs& a) {
  const int64_t all = (a.max_blocks * a.shape.page_tokens + kSpan - 1) / kSpan;
  const int64_t within = a.window > 0 ? (a.window + kSpan - 2) / kSpan + 1 : all;
  return within < all ? within : all;
}
inline int64_t partial_bytes(const PagedAttentionArgs& a) {  // of a row
  return a.H * spans_of(a) * (a.shape.value_dim() + 2) * static_cast<int64_t>(sizeof(float));
}
// Rows that are split, if there are no more: by the longest context that the tables have room for, and by
// counters of blocks.
inline int64_t split_rows(const PagedAttentionArgs& a) {
  const int64_t each = partial_bytes(a);
  const int64_t fit = each > 0 ? kMostPartialBytes / each : 0;
  const int64_t most = fit < kMostSplitRows ? fit : kMostSplitRows;
  return most * a.H <= kCounters ? most : kCounters / a.H;
}
inline uint64_t attention_scratch(const PagedAttentionArgs& a) {
  const int64_t rows = split_rows(a);
  return static_cast<uint64_t>((a.T < rows ? a.T : rows) * partial_bytes(a));
}

// Puts a span's result beside that of the spans before it.
template <int kDims>
OAR_DEVICE void merge_span(float& largest, float& total, float (&mine)[kDims], float m, float l,
                           const float (&sums)[kDims]) {
  const float next = fmaxf(largest, m);
  const float old = softmax_shrink(largest, next), add = softmax_shrink(m, next);
  largest = next;
  total = __fmaf_rn(total, old, l * add);
#pragma unroll
  for (int i = 0; i < kDims; ++i) mine[i] = __fmaf_rn(mine[i], old, sums[i] * add);
}

// What a row and head gets of all its spans; this thread has dims first, first + kStride, ...
template <int kStride, int kDims>
OAR_DEVICE void finish_row(const PagedAttentionArgs& a, int64_t t, int h, int first, float largest,
                           float total, float (&mine)[kDims]) {
  if (a.sink_logits != nullptr) {  // one more logit, of value zero
    const float sink = a.sink_logits[h], next = fmaxf(largest, sink), old = softmax_shrink(largest, next);
    total = __fmaf_rn(total, old, softmax_shrink(sink, next));
#pragma unroll
    for (float& x : mine) x *= old;
  }
  const int DV = a.shape.value_dim();
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    const int d = first + i * kStride;
    if (d < DV) a.out[t * a.ldo + h * DV + d] = quotient(mine[i], total);
  }
}

// Of heads h0, h0 + 1, ... of row t, by the block that came last: `count` spans each. A warp has a head's
// dims, up to kMergeDims a lane, or some of them; kMaxD: at most so many.
constexpr int kMergeDims = 4;
template <int kMaxD>
OAR_DEVICE void merge_spans(const PagedAttentionArgs& a, const Partials& partials, int64_t t, int h0,
                            int heads, int spans, int count) {
  constexpr int kDims = kMaxD / kWarp < kMergeDims ? kMaxD / kWarp : kMergeDims, kOfWarp = kDims * kWarp,
                kParts = (kMaxD + kOfWarp - 1) / kOfWarp;
  const int DV = a.shape.value_dim();
  for (int part = warp(); part < heads * kParts; part += kAttentionWarps) {
    const int g = part / kParts, d0 = part % kParts * kOfWarp + lane();
    const int64_t first = ((t - partials.first) * a.H + h0 + g) * spans;
    float largest = -INFINITY, total = 0.f, mine[kDims] = {};
#pragma unroll 4
    for (int s = 0; s < count; ++s) {
      float sums[kDims];
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d = d0 + i * kWarp;
        sums[i] = d < DV ? partials.sums[(first + s) * DV + d] : 0.f;
      }
      const float2 ml = load(reinterpret_cast<const float2*>(partials.totals + 2 * (first + s)));
      merge_span(largest, total, mine, ml.x, ml.y, sums);
    }
    finish_row<kWarp>(a, t, h0 + g, d0, largest, total, mine);
  }
}
// Spans that a row sees.
OAR_DEVICE int spans_between(int from, int pos) { return pos / kSpan - from / kSpan + 1; }

// A block has one row, up to kHeads heads that share keys, and one span. Scores: warps take steps of 32
// positions, lanes are positions. Weights: warps take heads. Values: threads are dims, kDims each.
template <class Cache, int kHeads, int kDims>
__global__ void __launch_bounds__(kAttentionThreads, 4)
    split_kernel(PagedAttentionArgs a, Cache cache, Partials partials, int spans, HeadTransform then) {
  wait_for_launches();
  constexpr int kMaxD = kDims * kAttentionThreads, kTogether = Cache::kTogether;
  const int D = a.shape.head_dim, DV = a.shape.value_dim();
  const int group = static_cast<int>(a.H) / a.shape.kv_heads;
  SharedMemory shared;
  float* q = shared.take<float>(kHeads * kMaxD);
  float* weights = shared.take<float>(kHeads * kSpan);  // scores first
  float* shrinks = shared.take<float>(kHeads * kSteps);
  float* totals = shared.take<float>(kHeads * 2);
  uint64_t* places = shared.take<uint64_t>(kSpan);
  float2* value_scales = shared.take<float2>(Cache::kScaled ? kSpan : 0);
  uint32_t* flag = shared.take<uint32_t>(1);
  using Staged = StagedValues<kAttentionThreads>;
  [[maybe_unused]] const Staged staged{shared.take<float>(Cache::kLatents ? Staged::kFloats : 0)};
  float* buffers = shared.take<float>(kAttentionWarps * then.buffer);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t t = blockIdx.x;
  const int parts = (group + kHeads - 1) / kHeads, kv = static_cast<int>(blockIdx.y) / parts;
  const int first_of_group = static_cast<int>(blockIdx.y) % parts * kHeads;
  const int heads = min(kHeads, group - first_of_group), h0 = kv * group + first_of_group;
  const int64_t b = sequence_of(a.seq_start, a.B, t);
  const int pos = a.context_len[b] - (a.seq_start[b + 1] - static_cast<int>(t));
  const int from = static_cast<int>(first_seen(a, pos));
  const int begin = (from / kSpan + static_cast<int>(blockIdx.z)) * kSpan;
  if (begin > pos) return;
  const int count = spans_between(from, pos);

  for (int i = thread; i < kHeads * D; i += kAttentionThreads) {
    q[i] = i < heads * D ? a.q[t * a.ldq + h0 * D + i] : 0.f;
  }
  __syncthreads();

  for (int step = warp(); step < kSteps; step += kAttentionWarps) {
    const int first = begin + step * kWarp;
    if (first > pos || first + kWarp <= from) continue;
    const int at = first + lane();
    float dot[kHeads] = {};
    const bool seen = at >= from && at <= pos;
    if (seen) {
      const void* head = cache.head(a, b, kv, pos, at);
      places[step * kWarp + lane()] = reinterpret_cast<uint64_t>(head);
      KvScales scales = {};
      if constexpr (Cache::kScaled) {
        scales = cache.scales(head, pos, at);
        store(value_scales + step * kWarp + lane(), scales.value);
      }
#pragma unroll 2
      for (int d = 0; d < D; d += kKeyDims) {
        float k[kKeyDims];
        cache.key(head, pos, at, d, scales, k);
#pragma unroll
        for (int g = 0; g < kHeads; ++g) {
#pragma unroll
          for (int i = 0; i < kKeyDims; i += 4) {
            const float4 x = load(reinterpret_cast<const float4*>(q + g * D + d + i));
            dot[g] = __fmaf_rn(x.x, k[i], dot[g]);
            dot[g] = __fmaf_rn(x.y, k[i + 1], dot[g]);
            dot[g] = __fmaf_rn(x.z, k[i + 2], dot[g]);
            dot[g] = __fmaf_rn(x.w, k[i + 3], dot[g]);
          }
        }
      }
    }
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      float score = dot[g] * a.scale;
      if (a.softcap > 0.f) score = a.softcap * tanhf(__fdividef(score, a.softcap));
      weights[g * kSpan + step * kWarp + lane()] = seen ? score : -INFINITY;
    }
  }
  __syncthreads();

  for (int g = warp(); g < heads; g += kAttentionWarps) {
    float m = -INFINITY, l = 0.f;
    for (int step = 0; step < kSteps; ++step) {
      const int first = begin + step * kWarp;
      if (first > pos || first + kWarp <= from) continue;
      float* its = weights + g * kSpan + step * kWarp + lane();
      const float score = *its, most = fmaxf(m, warp_max(score));
      const float old = softmax_shrink(m, most), weight = softmax_shrink(score, most);  // 0 where not seen
      m = most;
      l = __fmaf_rn(l, old, warp_sum(weight));
      *its = weight;
      if (lane() == 0) shrinks[g * kSteps + step] = old;
    }
    if (lane() == 0) {
      totals[2 * g] = m;
      totals[2 * g + 1] = l;
    }
  }
  __syncthreads();

  float o[kHeads][kDims] = {};
  for (int step = 0; step < kSteps; ++step) {
    const int first = begin + step * kWarp;
    if (first > pos || first + kWarp <= from) continue;
#pragma unroll
    for (int g = 0; g < kHeads; ++g) {
      const float old = g < heads ? shrinks[g * kSteps + step] : 0.f;
#pragma unroll
      for (float& x : o[g]) x *= old;
    }
    const int its_first = from > first ? (from - first) / kTogether * kTogether : 0,
              end = min(kWarp, pos + 1 - first);
    if constexpr (Cache::kLatents) {
      const int at = first + lane();
      const bool seen = at >= from && at <= pos;
      const auto* head = reinterpret_cast<const void*>(places[step * kWarp + lane()]);
      KvScales scales = {};
      if constexpr (Cache::kScaled) {
        scales.value = load(value_scales + step * kWarp + lane());
        scales.scale = scales.value.x, scales.minimum = scales.value.y;
      }
#pragma unroll
      for (int i = 0; i < kDims; ++i) {
        const int d0 = i * kAttentionThreads;
        if (d0 >= DV) break;
        staged.take(cache, head, pos, at, seen, scales, d0, min(d0 + kAttentionThreads, DV), warp(),
                    kAttentionWarps);
        __syncthreads();
#pragma unroll 4
        for (int p = its_first; p < end; ++p) {
          const float v = staged.at(p, thread);
#pragma unroll
          for (int g = 0; g < kHeads; ++g) {
            if (g >= heads) break;
            o[g][i] = __fmaf_rn(weights[g * kSpan + step * kWarp + p], v, o[g][i]);
          }
        }
        __syncthreads();
      }
    } else {
#pragma unroll(8 / kTogether)
      for (int p = its_first; p < end; p += kTogether) {
        const int p0 = first + p, at = step * kWarp + p;
        const auto* head = reinterpret_cast<const void*>(places[at + max(from - p0, 0)]);
        float2 scales[kTogether] = {};
        float v[kDims][kTogether] = {};
        if constexpr (Cache::kScaled) {
#pragma unroll
          for (int j = 0; j < kTogether; ++j) scales[j] = load(value_scales + at + j);
        }
#pragma unroll
        for (int i = 0; i < kDims; ++i) {
          const int d = thread + i * kAttentionThreads;
          if (d < DV) cache.values(head, pos, p0, d, scales, v[i]);
            // What is not seen may be anything, NaN included.
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            if (p0 + j < from || p0 + j > pos) v[i][j] = 0.f;
          }
        }
#pragma unroll
        for (int g = 0; g < kHeads; ++g) {
          if (g >= heads) break;
#pragma unroll
          for (int j = 0; j < kTogether; j += 2) {
            const float2 w = load(reinterpret_cast<const float2*>(weights + g * kSpan + at + j));
#pragma unroll
            for (int i = 0; i < kDims; ++i) {
              o[g][i] = __fmaf_rn(w.x, v[i][j], o[g][i]);
              o[g][i] = __fmaf_rn(w.y, v[i][j + 1], o[g][i]);
            }
          }
        }
      }
    }
  }

#pragma unroll
  for (int g = 0; g < kHeads; ++g) {
    if (g == heads) break;
    const float m = totals[2 * g], l = totals[2 * g + 1];
    if (count == 1) {
      float largest = -INFINITY, total = 0.f, mine[kDims] = {};
      merge_span(largest, total, mine, m, l, o[g]);
      finish_row<kAttentionThreads>(a, t, h0 + g, thread, largest, total, mine);
      continue;
    }
    const int64_t row = (t * a.H + h0 + g) * spans + blockIdx.z;
#pragma unroll
    for (int i = 0; i < kDims; ++i) {
      const int d = thread + i * kAttentionThreads;
      if (d < DV) partials.sums[row * DV + d] = o[g][i];
    }
    if (thread < 2) partials.totals[2 * row + thread] = thread == 0 ? m : l;
  }
  if (count > 1) {
    if (!is_last_block(partials.counter(), count, flag)) return;
    merge_spans<kMaxD>(a, partials, t, h0, heads, spans, count);
  }
  then.run(t, h0, heads, buffers);
}

// A cudaError_t. a.T is at most split_rows(a), and `scratch` has attention_scratch(a) bytes.
template <class Cache, int kHeads, int kDims>
int launch_split(const PagedAttentionArgs& a, const Cache& cache, void* scratch, Stream stream,
                 const HeadTransform& then) {
  const int64_t spans = spans_of(a), group = a.H / a.shape.kv_heads;
  if (spans <= 0) return 0;
  Partials partials;
  if (const int error = counters_of(stream, &partials.counters); error != 0) return error;
  partials.totals = static_cast<float*>(scratch);
  partials.sums = partials.totals + a.T * a.H * spans * 2;
  constexpr size_t kFloats = kHeads * (kDims * kAttentionThreads + kSpan + kSteps + 2) +
                             (Cache::kScaled ? 4 : 2) * kSpan +
                             (Cache::kLatents ? StagedValues<kAttentionThreads>::kFloats : 0);
  constexpr size_t kPieces = 8, kPiece = 128;  // a piece takes a multiple of it
  const dim3 grid(static_cast<unsigned>(a.T),
                  static_cast<unsigned>(a.shape.kv_heads * ((group + kHeads - 1) / kHeads)),
                  static_cast<unsigned>(spans));
  return launch(split_kernel<Cache, kHeads, kDims>, grid, kAttentionThreads,
                kFloats * sizeof(float) + kPieces * kPiece + then.shared_bytes(), stream, a, cache, partials,
                static_cast<int>(spans), then);
}

template <class Cache, int kDims>
int launch_split(const PagedAttentionArgs& a, const Cache& cache, void* scratch, Stream stream,
                 const HeadTransform& then) {
  static_assert(Cache::kMostHeads == 4 || Cache::kMostHeads == 8);
  const int64_t group = a.H / a.shape.kv_heads;
  if (group == 1) return launch_split<Cache, 1, kDims>(a, cache, scratch, stream, then);
  if constexpr (kDims == 1) {
    if (group == 2) return launch_split<Cache, 2, kDims>(a, cache, scratch, stream, then);
    if constexpr (Cache::kMostHeads >= 8) {
      if (group > 4) return launch_split<Cache, 8, kDims>(a, cache, scratch, stream, then);
    }
  }
  return launch_split<Cache, 4, kDims>(a, cache, scratch, stream, then);
}

// Attention of any number of rows over a cache whose heads have up to kMaxD dims.
template <class Cache, int kMaxD>
int attend(const PagedAttentionArgs& a, const Cache& cache, void* scratch, Stream stream,
           const HeadTransform& then = {}) {
  if (a.T <= split_rows(a)) {
    return launch_split < Cache,
           kMaxD <= kAttentionThreads ? 1 : kMaxD / kAttentionThreads > (a, cache, scratch, stream, then);
  }
  const int error = launch_attention<Cache, kMaxD / kWarp>(a, cache, stream);
  return error != 0 || then.args.rows == 0 ? error : hadamard(then.args, nullptr, stream).code;
}

}  // namespace oar::cuda
