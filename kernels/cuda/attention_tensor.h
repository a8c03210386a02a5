// The same attention by tensor cores, of pages of bf16 whose heads have up to 128 dims, a multiple of 32.
// What such a cache's queries get is made here, however many there are: attention_kernel.h has all others.
//
// Queries and weights are split in two bf16, high + low, as rows of products are (matmul_tensor.h): 16 bits
// of each count, and keys and values are exact. Runs of kSpan positions have a softmax of their own in steps
// of 32 positions, and are merged in ascending order, as in attention_kernel.h.
//
// Few rows: a block has one row, up to 16 heads that share keys, and one span (span_kernel); the last of them
// puts spans together. Many: a block has 64 pairs of a row and a head that share keys, and walks over what
// they see (tile_kernel). The left operand of a product is a pair a row; so the two do the same operations of
// a pair in the same order, and which of them runs may follow from the number of rows.
//
// What a pair does not see has the weight 0. That hides finite values; others are masked for each pair. An
// infinite value that is seen gives NaN, as its product with the lower half of a weight does.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_split.h"

namespace oar::cuda {

constexpr int kStep = kWarp;  // positions
constexpr int kPairs = 16;    // of a fragment
constexpr int kTilePairs = kAttentionWarps * kPairs;
constexpr int kTokenTiles = kStep / 8;

// Queries of `pairs` pairs in shared memory, high and low. Quads of two rows read 16 bytes a lane from
// different banks: rows are 64 bytes beyond a multiple of 128.
template <int kDims32>
struct Queries {
  static constexpr int kD = 32 * kDims32, kStride = kDims32 % 2 == 0 ? kD + 32 : kD;
  uint16_t *high, *low;

  OAR_DEVICE Queries(SharedMemory& shared, int pairs)
      : high(shared.take<uint16_t>(pairs * kStride)), low(shared.take<uint16_t>(pairs * kStride)) {}
  static constexpr size_t bytes(int pairs) {
    return 2 * ((static_cast<size_t>(pairs) * kStride * sizeof(uint16_t) + 127) / 128 * 128);
  }
  // Dims 4 i .. 4 i + 3 of a pair.
  OAR_DEVICE void put(int pair, int i, float4 q) const {
    const uint2 h = make_uint2(pack_bf16(q.x, q.y), pack_bf16(q.z, q.w));
    const uint2 l = make_uint2(pack_bf16(q.x - low_bf16(h.x), q.y - high_bf16(h.x)),
                               pack_bf16(q.z - low_bf16(h.y), q.w - high_bf16(h.y)));
    store(reinterpret_cast<uint2*>(high + pair * kStride + 4 * i), h);
    store(reinterpret_cast<uint2*>(low + pair * kStride + 4 * i), l);
  }
  // Of a pair's kD dims; the whole warp.
  template <int kD>
  OAR_DEVICE float sum(int pair) const {
    float sum = 0.f;
    for (int d = lane(); d < kD; d += kWarp) {
      sum += low_bf16(high[pair * kStride + d]) + low_bf16(low[pair * kStride + d]);
    }
    return warp_sum(sum);
  }
  // Scores of 8 positions more of pairs first + g and first + g + 8: 32 dims, from 32 i on. Lane t of a quad
  // has dims 8 t .. 8 t + 7 of position g's key. All positions before the next dims, so queries are read
  // once.
  template <class Key>
  OAR_DEVICE void multiply(int first, int i, float (&s)[kTokenTiles][4], const Key& key) const {
    const int g = lane() / 4, t = lane() % 4, at = (first + g) * kStride + 32 * i + 8 * t;
    const uint4 h0 = load(reinterpret_cast<const uint4*>(high + at)),
                h1 = load(reinterpret_cast<const uint4*>(high + at + 8 * kStride)),
                l0 = load(reinterpret_cast<const uint4*>(low + at)),
                l1 = load(reinterpret_cast<const uint4*>(low + at + 8 * kStride));
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      const uint4 k = key(j);
      mma_bf16(s[j], {l0.x, l1.x, l0.y, l1.y}, {k.x, k.y});
      mma_bf16(s[j], {h0.x, h1.x, h0.y, h1.y}, {k.x, k.y});
      mma_bf16(s[j], {l0.z, l1.z, l0.w, l1.w}, {k.z, k.w});
      mma_bf16(s[j], {h0.z, h1.z, h0.w, h1.w}, {k.z, k.w});
    }
  }
};

// What a lane's two pairs, g and g + 8, see: [from, pos]. pos < from: nothing, or there is no such pair.
struct Sight {
  int from[2], pos[2];
  OAR_DEVICE bool sees(int half, int at) const { return at >= from[half] && at <= pos[half]; }
};

OAR_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
OAR_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Scores of a step as the softmax has them, -infinity where nothing is seen; the largest of each pair.
OAR_DEVICE void finish_scores(const PagedAttentionArgs& a, const Sight& sight, int first,
                              float (&s)[kTokenTiles][4], float (&largest)[2]) {
  largest[0] = largest[1] = -INFINITY;
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float score = s[j][e] * a.scale;
      if (a.softcap > 0.f) score = a.softcap * tanhf(__fdividef(score, a.softcap));
      const bool seen = sight.sees(e / 2, first + 8 * j + 2 * (lane() % 4) + e % 2);
      s[j][e] = seen ? score : -INFINITY;
      largest[e / 2] = fmaxf(largest[e / 2], s[j][e]);
    }
  }
  largest[0] = quad_max(largest[0]);
  largest[1] = quad_max(largest[1]);
}

// Weights of a step, as left operands of two products of 16 positions, and their sums.
struct StepWeights {
  uint32_t high[2][4], low[2][4];
};
// `scaled` makes of the weight of element (j, e) what values are multiplied by.
template <class Scaled>
OAR_DEVICE void weigh(const Sight& sight, int first, const float (&s)[kTokenTiles][4], const float (&most)[2],
                      StepWeights& w, float (&sums)[2], const Scaled& scaled) {
  sums[0] = sums[1] = 0.f;
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
    float p[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const bool seen = sight.sees(e / 2, first + 8 * j + 2 * (lane() % 4) + e % 2);
      p[e] = seen ? softmax_shrink(s[j][e], most[e / 2]) : 0.f;
      sums[e / 2] += p[e];
      p[e] = scaled(p[e], j, e);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float x = p[2 * half], y = p[2 * half + 1];
      const uint32_t h = pack_bf16(x, y);
      w.high[j / 2][j % 2 * 2 + half] = h;
      w.low[j / 2][j % 2 * 2 + half] = pack_bf16(x - low_bf16(h), y - high_bf16(h));
    }
  }
  sums[0] = quad_sum(sums[0]);
  sums[1] = quad_sum(sums[1]);
}
struct AsItIs {
  OAR_DEVICE float operator()(float weight, int, int) const { return weight; }
};
// What remains of a sum when the largest score grows from m to most; of nothing at all, all.
OAR_DEVICE float remains(float m, float most) { return most == -INFINITY ? 1.f : softmax_shrink(m, most); }

// 16 positions' values at dims 32 q + 4 g .. + 3 of a lane: pairs of positions t and t + 4.
struct Values16 {
  uint4 upper, lower;
  OAR_DEVICE void pair(int jj, uint32_t (&b)[2]) const {
    b[0] = jj == 0 ? upper.x : jj == 1 ? upper.y : jj == 2 ? upper.z : upper.w;
    b[1] = jj == 0 ? lower.x : jj == 1 ? lower.y : jj == 2 ? lower.z : lower.w;
  }
};
// Of the two positions at `at`, those within [from, to].
OAR_DEVICE uint32_t seen_of_pair(int at, int from, int to) {
  return (at >= from && at <= to ? 0xffffu : 0u) | (at + 1 >= from && at + 1 <= to ? 0xffff0000u : 0u);
}
OAR_DEVICE uint4 operator&(uint4 v, uint32_t mask) {
  return make_uint4(v.x & mask, v.y & mask, v.z & mask, v.w & mask);
}
OAR_DEVICE bool not_finite(uint32_t pair) {
  return (pair & 0x7f80u) == 0x7f80u || (pair & 0x7f800000u) == 0x7f800000u;
}
OAR_DEVICE bool not_finite(uint4 v) {
  return not_finite(v.x) || not_finite(v.y) || not_finite(v.z) || not_finite(v.w);
}

// o (of dims 32 q + 8 t + {0 .. 3}: [jj][0], + 4: [jj][1]; of pair g + 8: [2], [3]) += weights times values.
OAR_DEVICE void add_values(float (&o)[4][4], const uint32_t (&high)[4], const uint32_t (&low)[4],
                           const Values16& v) {
#pragma unroll
  for (int jj = 0; jj < 4; ++jj) {
    uint32_t b[2];
    v.pair(jj, b);
    mma_bf16(o[jj], low, b);
    mma_bf16(o[jj], high, b);
  }
}

// 32 dims of a pair, of which a lane has 8 t .. 8 t + 7. Its quad exchanges them, so that stores of 16 bytes
// lie side by side.
OAR_DEVICE void store_dims(float* to, int half, const float (&o)[4][4]) {
  const int t = lane() % 4;
  const uint32_t quad = 0xfu << (lane() - t);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int from = lane() - t + 2 * k + t / 2;
    float v[4];
#pragma unroll
    for (int jj = 0; jj < 4; ++jj) {
      const float lower = __shfl_sync(quad, o[jj][2 * half], from),
                  upper = __shfl_sync(quad, o[jj][2 * half + 1], from);
      v[jj] = t % 2 == 0 ? lower : upper;
    }
    store_wide(to + 16 * k + 4 * t, make_float4(v[0], v[1], v[2], v[3]));
  }
}
// The same wherever it lies.
OAR_DEVICE void store_out(float* to, bool aligned, int half, const float (&o)[4][4]) {
  if (aligned) return store_dims(to, half, o);
#pragma unroll
  for (int i = 0; i < 8; ++i) to[8 * (lane() % 4) + i] = o[i % 4][2 * half + i / 4];
}
OAR_DEVICE float4 load_query(const float* q, bool aligned) {
  return aligned ? load(reinterpret_cast<const float4*>(q)) : make_float4(q[0], q[1], q[2], q[3]);
}

// One more logit of the softmax, of value zero.
OAR_DEVICE float add_sink(const PagedAttentionArgs& a, int h, float& largest, float& total) {
  if (a.sink_logits == nullptr) return 1.f;
  const float sink = a.sink_logits[h], next = fmaxf(largest, sink), old = softmax_shrink(largest, next);
  total = __fmaf_rn(total, old, softmax_shrink(sink, next));
  largest = next;
  return old;
}

// ---- few rows ----

// What a row's block sees of a cache whose pages are bf16. Others have the same members, and with kScaled
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

// Rows from partials.first on.
template <int kDims32, class Cache>
__global__ void __launch_bounds__(kAttentionThreads, 3)
    span_kernel(PagedAttentionArgs a, typename Cache::Pages pages, Partials partials, int spans, bool aligned,
                HeadTransform then) {
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
  const int64_t row = partials.first + blockIdx.x;
  const int parts = (group + kPairs - 1) / kPairs, kv = static_cast<int>(blockIdx.y) / parts;
  const int first_of_group = static_cast<int>(blockIdx.y) % parts * kPairs;
  const int heads = min(kPairs, group - first_of_group), h0 = kv * group + first_of_group;
  const int64_t b = sequence_of(a.seq_start, a.B, row);
  const int pos = a.context_len[b] - (a.seq_start[b + 1] - static_cast<int>(row));
  const int from = static_cast<int>(first_seen(a, pos));
  const int begin = (from / kSpan + static_cast<int>(blockIdx.z)) * kSpan;
  if (begin > pos) return;
  const int count = spans_between(from, pos);
  const Sight sight{{from, from}, {pos, pos}};
  const Cache cache(a, pages, b, kv, pos);
  const auto within = [&](int first) { return first <= pos && first + kStep > from; };

  for (int i = thread; i < kPairs * kD / 4; i += kAttentionThreads) {
    const int pair = i / (kD / 4), d = i % (kD / 4);
    float4 q = make_float4(0.f, 0.f, 0.f, 0.f);
    if (pair < heads) q = load_query(a.q + row * a.ldq + (h0 + pair) * kD + 4 * d, aligned);
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
            if (!sight.sees(0, at)) continue;  // both pairs are of one row
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
          factors[j][e] = sight.sees(0, at) ? cache.value_factor(at) : make_float2(0.f, 0.f);
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
        add_values(o, {high.x, high.y, high.z, high.w}, {low.x, low.y, low.z, low.w}, v[i]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = g + 8 * half, h = h0 + pair, d = 32 * q;
      if (pair >= heads) continue;
      if constexpr (Cache::kValueMinima) {
#pragma unroll
        for (int jj = 0; jj < 4; ++jj) {
          o[jj][2 * half] += lowest[half];
          o[jj][2 * half + 1] += lowest[half];
        }
      }
      if (count > 1) {
        const int64_t at = (blockIdx.x * a.H + h) * spans + blockIdx.z;
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
    merge_spans<kD>(a, partials, row, h0, heads, spans, count);
  }
  then.run(row, h0, heads, buffers);
}

// ---- many rows ----

// Keys and values of a step in shared memory as they lie in pages: 8 dims of a position together, positions
// side by side; values of two positions together. Both so far apart that a quad reads from different banks.
template <int kDims32>
struct StepShared {
  static constexpr int kD = 32 * kDims32;
  static constexpr int kKeyRow = kStep * 16 + 32, kValueRow = kD * 4 + 32;  // bytes
  static constexpr int kKeyBytes = kD / kKeyDims * kKeyRow, kBytes = kKeyBytes + kStep / 2 * kValueRow;
  unsigned char* at;

  OAR_DEVICE uint4 key(int chunk, int position) const {
    return load(reinterpret_cast<const uint4*>(at + chunk * kKeyRow + position * 16));
  }
  OAR_DEVICE uint4 values(int pair, int d) const {
    return load(reinterpret_cast<const uint4*>(at + kKeyBytes + pair * kValueRow + d * 4));
  }
  // All threads of the block; what lies outside of [from, to] becomes zero, pairs of values as a whole.
  template <class Head>
  OAR_DEVICE void copy(const KvPage& page, int first, int from, int to, const Head& head) const {
#pragma unroll 2  // registers are what this kernel has no more of
    for (int i = static_cast<int>(threadIdx.x); i < kStep * kD / kKeyDims; i += kAttentionThreads) {
      const int chunk = i / kStep, position = i % kStep, p = first + position;
      const bool seen = p >= from && p <= to;
      copy_async16(at + chunk * kKeyRow + position * 16,
                   seen ? head(p) + page.key(p % page.P, chunk * kKeyDims) : nullptr, seen);
    }
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < kStep / 2 * kD / 4; i += kAttentionThreads) {
      const int pair = i / (kD / 4), d = i % (kD / 4) * 4, p = first + 2 * pair;
      const bool seen = p + 1 >= from && p <= to;
      copy_async16(at + kKeyBytes + pair * kValueRow + d * 4,
                   seen ? head(p >= from ? p : p + 1) + page.value(p % page.P, d) : nullptr, seen);
    }
  }
};

// add_values where some pairs see positions that others do not, and a value is not finite: zero times it is
// not zero, so each pair has the values that it sees. Warp-uniform, and rare.
OAR_DEVICE void add_values_apart(float (&o)[4][4], const StepWeights& w, int i, const Values16& v,
                                 const Sight& sight, int at) {
#pragma unroll
  for (int jj = 0; jj < 4; ++jj) {
    uint32_t both[2];
    v.pair(jj, both);
    float out[4] = {};
#pragma unroll 1
    for (int pair = 0; pair < kPairs; ++pair) {
      const int its = pair % 8 * 4;  // lane
      const int from = __shfl_sync(kAllLanes, pair < 8 ? sight.from[0] : sight.from[1], its),
                pos = __shfl_sync(kAllLanes, pair < 8 ? sight.pos[0] : sight.pos[1], its);
      float sum[4] = {o[jj][0], o[jj][1], o[jj][2], o[jj][3]};
      const uint32_t b[2] = {both[0] & seen_of_pair(at, from, pos),
                             both[1] & seen_of_pair(at + 8, from, pos)};
      mma_bf16(sum, w.low[i], b);
      mma_bf16(sum, w.high[i], b);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (lane() / 4 + 8 * (e / 2) == pair) out[e] = sum[e];
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) o[jj][e] = out[e];
  }
}

// Tiles of a sequence are kTilePairs pairs, row behind row and within a row head behind head. Blocks: tiles
// of all sequences along x, the last, longest ones of each first; heads of keys along y.
template <int kDims32>
__global__ void __launch_bounds__(kAttentionThreads, 2) tile_kernel(PagedAttentionArgs a, bool aligned) {
  wait_for_launches();
  constexpr int kD = 32 * kDims32;
  using Step = StepShared<kDims32>;
  const KvPage page(a.shape);
  const int K = a.shape.kv_heads, group = static_cast<int>(a.H) / K, kv = static_cast<int>(blockIdx.y);
  SharedMemory shared;
  const Queries<kDims32> queries(shared, kTilePairs);
  unsigned char* const both = shared.take<unsigned char>(2 * Step::kBytes);
  const auto step_of = [&](int first) { return Step{both + first / kStep % 2 * Step::kBytes}; };
  const int g = lane() / 4, t = lane() % 4;

  int64_t b = 0, tile = blockIdx.x;
  int rows = 0, tiles = 0;
  for (; b < a.B; ++b) {
    rows = a.seq_start[b + 1] - a.seq_start[b];
    tiles = (rows * group + kTilePairs - 1) / kTilePairs;
    if (tile < tiles) break;
    tile -= tiles;
  }
  if (b >= a.B) return;
  const int first_pair = (tiles - 1 - static_cast<int>(tile)) * kTilePairs, pairs = rows * group;
  const int first_pos = a.context_len[b] - rows;  // of the sequence's first row
  const int64_t first_row = a.seq_start[b];
  const auto position_of = [&](int pair) { return first_pos + pair / group; };
  const auto head = [&](int at) {
    return static_cast<const uint16_t*>(a.pool) +
           a.block_tables[b * a.max_blocks + at / page.P] * page.head(K) + page.head(kv);
  };
  // What pairs [begin, end) of the tile see: both ends ascend with a row's position.
  const auto from_of = [&](int pair) { return static_cast<int>(first_seen(a, position_of(pair))); };
  const int last_pair = min(first_pair + kTilePairs, pairs) - 1;
  const int from = from_of(first_pair), to = position_of(last_pair);
  const int warp_first = first_pair + warp() * kPairs, warp_last = min(warp_first + kPairs, pairs) - 1;
  const bool has_pairs = warp_first <= warp_last;
  const int warp_from = has_pairs ? from_of(warp_first) : 0,
            warp_to = has_pairs ? position_of(warp_last) : -1;
  // From where on all of the warp's pairs see a position, and up to where.
  const int all_from = has_pairs ? from_of(warp_last) : 0, all_to = has_pairs ? position_of(warp_first) : -1;
  Sight sight;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = warp_first + g + 8 * half;
    const bool there = pair <= warp_last;
    sight.from[half] = there ? from_of(pair) : 0;
    sight.pos[half] = there ? position_of(pair) : -1;
  }

  const int begin = from / kStep * kStep;
  step_of(begin).copy(page, begin, from, to, head);
  copy_async_commit();
  for (int i = static_cast<int>(threadIdx.x); i < kTilePairs * kD / 4; i += kAttentionThreads) {
    const int pair = i / (kD / 4), d = i % (kD / 4), its = first_pair + pair;
    float4 q = make_float4(0.f, 0.f, 0.f, 0.f);
    if (its < pairs) {
      q = load_query(a.q + (first_row + its / group) * a.ldq + (kv * group + its % group) * kD + 4 * d,
                     aligned);
    }
    queries.put(pair, d, q);
  }

  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, all[kDims32][4][4] = {};  // of spans so far
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, o[kDims32][4][4] = {};              // of this span
  for (int first = begin; first <= to; first += kStep) {
    const Step step = step_of(first);
    if (first + kStep <= to) step_of(first + kStep).copy(page, first + kStep, from, to, head);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    if (has_pairs && first <= warp_to && first + kStep > warp_from) {
      float s[kTokenTiles][4] = {}, most[2], sums[2];
#pragma unroll
      for (int i = 0; i < kDims32; ++i) {
        queries.multiply(warp() * kPairs, i, s, [&](int j) { return step.key(4 * i + t, 8 * j + g); });
      }
      finish_scores(a, sight, first, s, most);
      float old[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        most[half] = fmaxf(m[half], most[half]);
        old[half] = remains(m[half], most[half]);
        m[half] = most[half];
      }
      StepWeights w;
      weigh(sight, first, s, most, w, sums, AsItIs{});
      l[0] = __fmaf_rn(l[0], old[0], sums[0]);
      l[1] = __fmaf_rn(l[1], old[1], sums[1]);
      const bool edge = first < all_from || first + kStep - 1 > all_to;
#pragma unroll
      for (int q = 0; q < kDims32; ++q) {
#pragma unroll
        for (int jj = 0; jj < 4; ++jj) {
#pragma unroll
          for (int e = 0; e < 4; ++e) o[q][jj][e] *= old[e / 2];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int pair = 8 * i + t, at = first + 2 * pair;
          Values16 v = {step.values(pair, 32 * q + 4 * g), step.values(pair + 4, 32 * q + 4 * g)};
          if (edge) {
            v.upper = v.upper & seen_of_pair(at, warp_from, warp_to);
            v.lower = v.lower & seen_of_pair(at + 8, warp_from, warp_to);
            if (__ballot_sync(kAllLanes, not_finite(v.upper) || not_finite(v.lower)) != 0) {
              add_values_apart(o[q], w, i, v, sight, at);
              continue;
            }
          }
          add_values(o[q], w.high[i], w.low[i], v);
        }
      }
    }
    // The end of a span, or of all that is seen.
    if ((first + kStep) % kSpan == 0 || first + kStep > to) {
      const int span = first / kSpan * kSpan;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (sight.pos[half] >= span && sight.from[half] < span + kSpan) {
          const float next = fmaxf(largest[half], m[half]);
          const float shrink = softmax_shrink(largest[half], next), add = softmax_shrink(m[half], next);
          largest[half] = next;
          total[half] = __fmaf_rn(total[half], shrink, l[half] * add);
#pragma unroll
          for (int q = 0; q < kDims32; ++q) {
#pragma unroll
            for (int jj = 0; jj < 4; ++jj) {
#pragma unroll
              for (int e = 2 * half; e < 2 * half + 2; ++e) {
                all[q][jj][e] = __fmaf_rn(all[q][jj][e], shrink, o[q][jj][e] * add);
              }
            }
          }
        }
        m[half] = -INFINITY;
        l[half] = 0.f;
      }
#pragma unroll
      for (int q = 0; q < kDims32; ++q) {
#pragma unroll
        for (int jj = 0; jj < 4; ++jj) {
#pragma unroll
          for (int e = 0; e < 4; ++e) o[q][jj][e] = 0.f;
        }
      }
    }
    __syncthreads();
  }
  copy_async_wait<0>();

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = warp_first + g + 8 * half;
    if (pair > warp_last) continue;
    const int h = kv * group + pair % group;
    const float old = add_sink(a, h, largest[half], total[half]);
#pragma unroll
    for (int q = 0; q < kDims32; ++q) {
#pragma unroll
      for (int jj = 0; jj < 4; ++jj) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          all[q][jj][e] = quotient(all[q][jj][e] * old, total[half]);
        }
      }
      store_out(a.out + (first_row + pair / group) * a.ldo + h * kD + 32 * q, aligned, half, all[q]);
    }
  }
}

// ---- either ----

// Partial results begin at multiples of 16 bytes.
inline uint64_t tensor_attention_scratch(const PagedAttentionArgs& a) { return attention_scratch(a) + 16; }

// Rows [first, first + rows) by spans, a cudaError_t; `scratch` as rows of that number need it.
template <int kDims32, class Cache>
int launch_spans(const PagedAttentionArgs& a, const typename Cache::Pages& pages, bool aligned, int64_t first,
                 int64_t rows, void* scratch, Stream stream, const HeadTransform& then = {}) {
  const int64_t K = a.shape.kv_heads, group = a.H / K, spans = spans_of(a);
  const int64_t totals = (rows * a.H * spans * 2 + 3) / 4 * 4;
  Partials partials;
  partials.totals = static_cast<float*>(scratch);
  partials.sums = partials.totals + totals;
  partials.first = first;
  if (const int error = counters_of(stream, &partials.counters); error != 0) return error;
  const int64_t parts = (group + kPairs - 1) / kPairs;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(K * parts),
                  static_cast<unsigned>(spans));
  return launch(span_kernel<kDims32, Cache>, grid, kAttentionThreads,
                SpanShared<kDims32, Cache>::bytes() + then.shared_bytes(), stream, a, pages, partials,
                static_cast<int>(spans), aligned, then);
}
// Whether rows of q and out are accessed 16 bytes at a time.
inline bool rows_aligned(const PagedAttentionArgs& a) {
  const auto wide = [](const float* at, int64_t ld) {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && ld % 4 == 0;
  };
  return wide(a.q, a.ldq) && wide(a.out, a.ldo);
}

// Tiles pay where sequences have rows that fill the better part of one.
inline bool in_tiles(const PagedAttentionArgs& a) {
  return a.T > split_rows(a) || 2 * a.T * (a.H / a.shape.kv_heads) >= kTilePairs * (a.B + 1);
}

// A cudaError_t. `scratch` has tensor_attention_scratch(a) bytes.
template <int kDims32>
int attend_by_tensor_cores(const PagedAttentionArgs& a, void* scratch, Stream stream) {
  const bool aligned = rows_aligned(a);
  const int64_t K = a.shape.kv_heads, group = a.H / K, spans = spans_of(a);
  if (spans <= 0 || a.B <= 0) return 0;
  if (in_tiles(a)) {
    const int64_t tiles = a.T * group / kTilePairs + (a.B < a.T ? a.B : a.T);
    constexpr size_t kShared =
        Queries<kDims32>::bytes(kTilePairs) + (2 * StepShared<kDims32>::kBytes + 127) / 128 * 128;
    return launch(tile_kernel<kDims32>, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(K)),
                  kAttentionThreads, kShared, stream, a, aligned);
  }
  return launch_spans<kDims32, Bf16Cache>(a, {}, aligned, 0, a.T, scratch, stream);
}

}  // namespace oar::cuda
