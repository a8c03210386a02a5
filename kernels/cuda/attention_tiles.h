// The same of many rows, over pages of bf16: a block has 64 pairs of a row and a head that share keys, and
// walks over what they see. Which of the two runs may follow from the number of rows.
#pragma once

#include "kernels/cuda/attention_spans.h"

namespace oar::cuda {

constexpr int kTilePairs = kAttentionWarps * kPairs;

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
              add_values_apart(o[q], w.high[i], w.low[i], v, sight, at);
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
