// The same attention by tensor cores, of pages of bf16 whose heads have up to 128 dims, a multiple of 32.
// What such a cache's queries get is made here, however many there are: attention_kernel.h has all others.
//
// Queries and weights are split in two bf16, high + low, as rows of products are (matmul_tensor.h): 16 bits
// of each count, and keys and values are exact. Runs of kSpan positions have a softmax of their own in steps
// of 32 positions, and are merged in ascending order, as in attention_kernel.h.
//
// Few rows are done by spans (attention_spans.h), many in tiles (attention_tiles.h). The left operand of a
// product is a pair of a row and a head, one a row of it; so the two do the same operations of a pair in the
// same order, and which of them runs may follow from the number of rows.
//
// What a pair does not see has the weight 0. That hides finite values; others are masked for each pair. An
// infinite value that is seen gives NaN, as its product with the lower half of a weight does.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_split.h"

namespace oar::cuda {

constexpr int kStep = kWarp;  // positions
constexpr int kPairs = 16;    // of a fragment
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
      if (seen) p[e] = scaled(p[e], j, e);
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

// add_values where some pairs see positions that others do not, and a value is not finite: zero times it is
// not zero, so each pair has the values that it sees. Warp-uniform, and rare.
OAR_DEVICE void add_values_apart(float (&o)[4][4], const uint32_t (&high)[4], const uint32_t (&low)[4],
                                 const Values16& v, const Sight& sight, int at) {
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
      mma_bf16(sum, low, b);
      mma_bf16(sum, high, b);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (lane() / 4 + 8 * (e / 2) == pair) out[e] = sum[e];
      }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) o[jj][e] = out[e];
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

}  // namespace oar::cuda
