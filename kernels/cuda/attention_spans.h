// Attention by tensor cores (attention_tensor.h) by spans, for few rows: a block has one row, up to 16 heads
// that share keys, and one span, or several rows of a prompt with fewer heads; the last of them puts spans
// together.
#pragma once

#include "kernels/cuda/attention_tensor.h"

namespace oar::cuda {

// The rows of a block: consecutive ones of a sequence, whose positions have one multiple of `most` below
// them, so they lie in one page and end in one span. Pairs are rows, and within a row heads.
struct BlockRows {
  int64_t b, first;  // the sequence, and the first row
  int count, pos;    // rows, and the position of the first
};
// Of block `tile` of rows [begin, end); none where there are no more.
OAR_DEVICE BlockRows rows_of_block(const PagedAttentionArgs& a, int64_t begin, int64_t end, int most,
                                   int64_t tile) {
  if (most == 1) {
    const int64_t t = begin + tile, b = sequence_of(a.seq_start, a.B, t);
    return {b, t, 1, static_cast<int>(a.context_len[b] - (a.seq_start[b + 1] - t))};
  }
  for (int64_t b = sequence_of(a.seq_start, a.B, begin); b < a.B && a.seq_start[b] < end; ++b) {
    const int64_t from = begin > a.seq_start[b] ? begin : a.seq_start[b],
                  to = end < a.seq_start[b + 1] ? end : a.seq_start[b + 1];
    const int64_t shift = a.context_len[b] - a.seq_start[b + 1];  // of positions
    const int64_t tiles = from < to ? (to - 1 + shift) / most - (from + shift) / most + 1 : 0;
    if (tile < tiles) {
      const int64_t first = tile == 0 ? from : ((from + shift) / most + tile) * most - shift,
                    next = ((first + shift) / most + 1) * most - shift;
      return {b, first, static_cast<int>((next < to ? next : to) - first), static_cast<int>(first + shift)};
    }
    tile -= tiles;
  }
  return {};
}

// What a block's rows see of a cache whose pages are bf16. Others have the same members, and with kScaled
// factors of positions: a key or a value is x times its code, and y more where they have minima.
class Bf16Cache {
 public:
  static constexpr bool kScaled = false, kKeyMinima = false, kValueMinima = false;
  struct Pages {};

  OAR_DEVICE Bf16Cache(const PagedAttentionArgs& a, const Pages&, int64_t b, int kv, int)
      : page_(a.shape),
        table_(a.block_tables + b * a.max_blocks),
        pool_(static_cast<const uint16_t*>(a.pool)),
        block_(page_.head(a.shape.kv_heads)),
        head_(page_.head(kv)) {}
  // Of a position that is seen: where a lane's dims of its key begin.
  OAR_DEVICE const void* key_place(int at, int d) const { return head(at) + page_.key(at % page_.P, d); }
  // Eight dims of it, 32 i behind these.
  OAR_DEVICE uint4 key(const void* place, int, int i) const {
    return load_once(static_cast<const uint16_t*>(place) + i * 4 * page_.P * kKeyDims);
  }
  // Two positions at an even one, `seen` being one that is, at four dims.
  OAR_DEVICE uint4 values(int at, int seen, int d) const {
    return load_once(head(seen) + page_.value(at % page_.P, d));
  }
  OAR_DEVICE float2 key_factor(int) const { return make_float2(1.f, 0.f); }
  OAR_DEVICE float2 value_factor(int) const { return make_float2(1.f, 0.f); }

 private:
  OAR_DEVICE const uint16_t* head(int at) const { return pool_ + table_[at / page_.P] * block_ + head_; }
  KvPage page_;
  const int32_t* table_;
  const uint16_t* pool_;
  int64_t block_, head_;
};

template <int kDims32, class Cache>
struct SpanShared {
  static constexpr size_t bytes() {
    return Queries<kDims32>::bytes(kPairs) + sizeof(uint4) * kSteps * 4 * kWarp +
           (Cache::kValueMinima ? 4 : 3) * sizeof(float) * kSteps * kPairs + (Cache::kKeyMinima ? 128 : 0) +
           kLastBlockShared;
  }
};

// Rows [partials.first, end), a block for up to `most` of them.
template <int kDims32, class Cache>
__global__ void __launch_bounds__(kAttentionThreads, 3)
    span_kernel(PagedAttentionArgs a, typename Cache::Pages pages, Partials partials, int64_t end,
                int most_rows, int spans, bool aligned, HeadTransform then) {
  wait_for_launches();
  constexpr int kD = 32 * kDims32;
  const int K = a.shape.kv_heads, group = static_cast<int>(a.H) / K;
  SharedMemory shared;
  const Queries<kDims32> queries(shared, kPairs);
  uint4* weights = shared.take<uint4>(kSteps * 4 * kWarp);  // of a step: low and high of each 16 positions
  float* largest = shared.take<float>(kSteps * kPairs);     // of each step and pair
  float* shrinks = shared.take<float>(kSteps * kPairs);
  float* sums = shared.take<float>(kSteps * kPairs);
  [[maybe_unused]] float* minima = shared.take<float>(Cache::kValueMinima ? kSteps * kPairs : 0);
  [[maybe_unused]] float* query_sums = shared.take<float>(Cache::kKeyMinima ? kPairs : 0);
  uint32_t* flag = shared.take<uint32_t>(1);
  float* buffers = shared.take<float>(kAttentionWarps * then.buffer);
  const int thread = static_cast<int>(threadIdx.x), g = lane() / 4, t = lane() % 4;
  const int parts = (group + kPairs - 1) / kPairs, kv = static_cast<int>(blockIdx.y) / parts;
  const int first_of_group = static_cast<int>(blockIdx.y) % parts * kPairs;
  const int heads = min(kPairs, group - first_of_group), h0 = kv * group + first_of_group;
  const BlockRows rows = rows_of_block(a, partials.first, end, most_rows, blockIdx.x);
  const int pairs = rows.count * heads;
  // What any of them sees: both ends ascend with a row's position.
  const auto from_of = [&](int r) { return static_cast<int>(first_seen(a, rows.pos + r)); };
  const int from = from_of(0), pos = rows.pos + rows.count - 1;
  const int begin = (from / kSpan + static_cast<int>(blockIdx.z)) * kSpan;
  if (begin > pos) return;  // neither a span, nor rows
  const int count = spans_between(from, pos);
  const int row_of[2] = {min(g / heads, rows.count - 1), min((g + 8) / heads, rows.count - 1)};
  const Sight sight{{from_of(row_of[0]), from_of(row_of[1])}, {rows.pos + row_of[0], rows.pos + row_of[1]}};
  const int all_from = from_of(rows.count - 1);  // from there to rows.pos all see a position
  const Cache cache(a, pages, rows.b, kv, pos);
  const auto within = [&](int first) { return first <= pos && first + kStep > from; };

  for (int i = thread; i < kPairs * kD / 4; i += kAttentionThreads) {
    const int pair = i / (kD / 4), d = i % (kD / 4);
    float4 q = make_float4(0.f, 0.f, 0.f, 0.f);
    if (pair < pairs)
      q = load_query(a.q + (rows.first + pair / heads) * a.ldq + (h0 + pair % heads) * kD + 4 * d, aligned);
    queries.put(pair, d, q);
  }
  __syncthreads();
  if constexpr (Cache::kKeyMinima) {
    for (int pair = warp(); pair < kPairs; pair += kAttentionWarps) {
      const float sum = queries.template sum<kD>(pair);
      if (lane() == 0) query_sums[pair] = sum;
    }
    __syncthreads();
  }

  constexpr int kMySteps = kSteps / kAttentionWarps;
  float s[kMySteps][kTokenTiles][4] = {};
#pragma unroll
  for (int k = 0; k < kMySteps; ++k) {
    const int step = warp() + k * kAttentionWarps, first = begin + step * kStep;
    float most[2] = {-INFINITY, -INFINITY};
    if (within(first)) {
      const void* keys[kTokenTiles];
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        const int at = first + 8 * j + g;
        keys[j] = at >= from && at <= pos ? cache.key_place(at, 8 * t) : nullptr;
      }
#pragma unroll
      for (int i = 0; i < kDims32; ++i) {
        queries.multiply(0, i, s[k], [&](int j) {
          return keys[j] != nullptr ? cache.key(keys[j], first + 8 * j + g, i) : make_uint4(0, 0, 0, 0);
        });
      }
      if constexpr (Cache::kScaled) {
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int at = first + 8 * j + 2 * t + e;
            if (!sight.sees(0, at) && !sight.sees(1, at)) continue;
            const float2 factor = cache.key_factor(at);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float& score = s[k][j][e + 2 * half];
              score *= factor.x;
              if constexpr (Cache::kKeyMinima) score = __fmaf_rn(factor.y, query_sums[g + 8 * half], score);
            }
          }
        }
      }
      finish_scores(a, sight, first, s[k], most);
    }
    if (t == 0) {
      largest[step * kPairs + g] = most[0];
      largest[step * kPairs + g + 8] = most[1];
    }
  }
  __syncthreads();

#pragma unroll
  for (int k = 0; k < kMySteps; ++k) {
    const int step = warp() + k * kAttentionWarps, first = begin + step * kStep;
    if (!within(first)) continue;
    float before[2] = {-INFINITY, -INFINITY}, most[2], of_step[2];
    for (int i = 0; i < step; ++i) {
      before[0] = fmaxf(before[0], largest[i * kPairs + g]);
      before[1] = fmaxf(before[1], largest[i * kPairs + g + 8]);
    }
    StepWeights w;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      most[half] = fmaxf(before[half], largest[step * kPairs + g + 8 * half]);
    [[maybe_unused]] float lowest[2] = {};
    if constexpr (Cache::kScaled) {
      float2 factors[kTokenTiles][2];
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = first + 8 * j + 2 * t + e;
          factors[j][e] =
              sight.sees(0, at) || sight.sees(1, at) ? cache.value_factor(at) : make_float2(0.f, 0.f);
        }
      }
      weigh(sight, first, s[k], most, w, of_step, [&](float weight, int j, int e) {
        const float2 factor = factors[j][e % 2];
        if constexpr (Cache::kValueMinima) lowest[e / 2] = __fmaf_rn(weight, factor.y, lowest[e / 2]);
        return weight * factor.x;
      });
      if constexpr (Cache::kValueMinima) {
        lowest[0] = quad_sum(lowest[0]);
        lowest[1] = quad_sum(lowest[1]);
      }
    } else {
      weigh(sight, first, s[k], most, w, of_step, AsItIs{});
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint4* to = weights + (step * 4 + 2 * i) * kWarp + lane();
      store(to, make_uint4(w.low[i][0], w.low[i][1], w.low[i][2], w.low[i][3]));
      store(to + kWarp, make_uint4(w.high[i][0], w.high[i][1], w.high[i][2], w.high[i][3]));
    }
    if (t == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        shrinks[step * kPairs + g + 8 * half] = remains(before[half], most[half]);
        sums[step * kPairs + g + 8 * half] = of_step[half];
        if constexpr (Cache::kValueMinima) minima[step * kPairs + g + 8 * half] = lowest[half];
      }
    }
  }
  __syncthreads();

  float m[2] = {-INFINITY, -INFINITY}, l[2] = {};
  [[maybe_unused]] float lowest[2] = {};  // of the span: what minima of values add up to
  for (int step = 0; step < kSteps; ++step) {
    if (!within(begin + step * kStep)) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = step * kPairs + g + 8 * half;
      m[half] = fmaxf(m[half], largest[at]);
      l[half] = __fmaf_rn(l[half], shrinks[at], sums[at]);
      if constexpr (Cache::kValueMinima) lowest[half] = __fmaf_rn(lowest[half], shrinks[at], minima[at]);
    }
  }
  for (int q = warp(); q < kDims32; q += kAttentionWarps) {
    float o[4][4] = {};
#pragma unroll 2
    for (int step = 0; step < kSteps; ++step) {
      const int first = begin + step * kStep;
      if (!within(first)) continue;
      Values16 v[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = first + 16 * i + 2 * t + 8 * half;
          const uint32_t mask = seen_of_pair(at, from, pos);
          uint4& to = half == 0 ? v[i].upper : v[i].lower;
          to = make_uint4(0, 0, 0, 0);
          if (mask != 0) {
            const int seen = at >= from ? at : at + 1;
            to = cache.values(at, seen, 32 * q + 4 * g) & mask;
          }
        }
      }
      const float old[2] = {shrinks[step * kPairs + g], shrinks[step * kPairs + g + 8]};
#pragma unroll
      for (int jj = 0; jj < 4; ++jj) {
#pragma unroll
        for (int e = 0; e < 4; ++e) o[jj][e] *= old[e / 2];
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 low = load(weights + (step * 4 + 2 * i) * kWarp + lane()),
                    high = load(weights + (step * 4 + 2 * i + 1) * kWarp + lane());
        const uint32_t h[4] = {high.x, high.y, high.z, high.w}, l[4] = {low.x, low.y, low.z, low.w};
        const bool edge = first < all_from || first + kStep - 1 > rows.pos;
        if (edge && rows.count > 1 &&
            __ballot_sync(kAllLanes, not_finite(v[i].upper) || not_finite(v[i].lower)) != 0) {
          add_values_apart(o, h, l, v[i], sight, first + 16 * i + 2 * t);
          continue;
        }
        add_values(o, h, l, v[i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = g + 8 * half, h = h0 + pair % heads, d = 32 * q;
      const int64_t row = rows.first + row_of[half];
      const int its = begin / kSpan - sight.from[half] / kSpan;  // of the row's spans
      if (pair >= pairs || its < 0) continue;
      if constexpr (Cache::kValueMinima) {
#pragma unroll
        for (int jj = 0; jj < 4; ++jj) {
          o[jj][2 * half] += lowest[half];
          o[jj][2 * half + 1] += lowest[half];
        }
      }
      if (count > 1) {
        const int64_t at = ((row - partials.first) * a.H + h) * spans + its;
        store_dims(partials.sums + at * kD + d, half, o);
        if (q == 0 && t == 0) {
          partials.totals[2 * at] = m[half];
          partials.totals[2 * at + 1] = l[half];
        }
        continue;
      }
      float most = m[half], total = l[half];
      const float old = add_sink(a, h, most, total);
#pragma unroll
      for (int jj = 0; jj < 4; ++jj) {
        o[jj][2 * half] = quotient(o[jj][2 * half] * old, total);
        o[jj][2 * half + 1] = quotient(o[jj][2 * half + 1] * old, total);
      }
      store_out(a.out + row * a.ldo + h * kD + d, aligned, half, o);
    }
  }
  if (count > 1) {
    if (!is_last_block(partials.counter(), count, flag)) return;
    for (int r = 0; r < rows.count; ++r) {
      merge_spans<kD>(a, partials, rows.first + r, h0, heads, spans, spans_between(from_of(r), rows.pos + r));
    }
  }
  for (int r = 0; r < rows.count; ++r) then.run(rows.first + r, h0, heads, buffers);
}

// Rows at a time.
inline int64_t rows_of_spans(const PagedAttentionArgs& a) {
  const int64_t rows = split_rows(a) > 1 ? split_rows(a) : 1;
  return a.T < rows ? a.T : rows;
}
// Partial results begin at multiples of 16 bytes.
inline uint64_t tensor_attention_scratch(const PagedAttentionArgs& a) {
  return static_cast<uint64_t>(rows_of_spans(a) * partial_bytes(a)) + 16;
}

// How many rows a block has by spans, at most: as their pairs fit in a fragment. A power of two, so they lie
// in one page, which has a multiple of 16 tokens.
inline int rows_a_block(const PagedAttentionArgs& a) {
  const int64_t group = a.H / a.shape.kv_heads;
  int rows = 1;
  while (a.T > a.B && 2 * rows * group <= kPairs) rows *= 2;
  return rows;
}
// Whether rows of q and out are accessed 16 bytes at a time.
inline bool rows_aligned(const PagedAttentionArgs& a) {
  const auto wide = [](const float* at, int64_t ld) {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && ld % 4 == 0;
  };
  return wide(a.q, a.ldq) && wide(a.out, a.ldo);
}
// Rows [first, first + rows) by spans, a cudaError_t; `scratch` as rows of that number need it.
template <int kDims32, class Cache>
int launch_spans(const PagedAttentionArgs& a, const typename Cache::Pages& pages, int64_t first, int64_t rows,
                 void* scratch, Stream stream, const HeadTransform& then = {}) {
  const int64_t K = a.shape.kv_heads, group = a.H / K, spans = spans_of(a);
  const int64_t totals = (rows * a.H * spans * 2 + 3) / 4 * 4;
  Partials partials;
  partials.totals = static_cast<float*>(scratch);
  partials.sums = partials.totals + totals;
  partials.first = first;
  if (const int error = counters_of(stream, &partials.counters); error != 0) return error;
  const int64_t parts = (group + kPairs - 1) / kPairs;
  const int most = rows_a_block(a);
  const int64_t whole = rows / most + 2 * a.B, blocks = whole < rows ? whole : rows;
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(K * parts),
                  static_cast<unsigned>(spans));
  return launch(span_kernel<kDims32, Cache>, grid, kAttentionThreads,
                SpanShared<kDims32, Cache>::bytes() + then.shared_bytes(), stream, a, pages, partials,
                first + rows, most, static_cast<int>(spans), rows_aligned(a), then);
}

}  // namespace oar::cuda
