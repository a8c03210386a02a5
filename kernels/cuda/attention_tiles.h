// The same of many rows: a block has up to 64 pairs of a row and a head that share keys, and walks over what
// they see. Which of the two runs may follow from the number of rows.
//
// Steps lie in shared memory in bf16, whatever pages hold: a cache's Steps bring them there. Of codes each is
// decoded once for all pairs of a block.
#pragma once

#include "kernels/cuda/attention_spans.h"

namespace oar::cuda {

constexpr int kTilePairs = kAttentionWarps * kPairs;
constexpr int kPanel = 16;  // positions of a step that lie in one page

// Keys and values of a step in shared memory as they lie in pages of bf16: 8 dims of a position together,
// positions side by side; values of two positions together. Both so far apart that a quad reads from
// different banks.
template <int kDims32>
struct StepShared {
  static constexpr int kD = 32 * kDims32;
  static constexpr int kKeyRow = kStep * 16 + 32, kValueRow = kD * 4 + 32;  // bytes
  static constexpr int kKeyBytes = kD / kKeyDims * kKeyRow, kBytes = kKeyBytes + kStep / 2 * kValueRow;
  unsigned char* at;

  OAR_DEVICE unsigned char* key_place(int chunk, int position) const {
    return at + chunk * kKeyRow + position * 16;
  }
  OAR_DEVICE unsigned char* value_place(int pair, int d) const {
    return at + kKeyBytes + pair * kValueRow + d * 4;
  }
  OAR_DEVICE uint4 key(int chunk, int position) const {
    return load(reinterpret_cast<const uint4*>(key_place(chunk, position)));
  }
  OAR_DEVICE uint4 values(int pair, int d) const {
    return load(reinterpret_cast<const uint4*>(value_place(pair, d)));
  }
  // All threads of the block: a panel of 16 positions, from `first` on, of a head in a page of bf16. What
  // lies outside of [from, to] becomes zero, pairs of values as a whole; without a head all of it.
  OAR_DEVICE void copy(const KvPage& page, int panel, int first, int from, int to,
                       const uint16_t* head) const {
    const int p0 = first % page.P;
#pragma unroll 1  // registers are what this kernel has no more of
    for (int i = static_cast<int>(threadIdx.x); i < kPanel * kD / kKeyDims; i += kAttentionThreads) {
      const int chunk = i / kPanel, position = i % kPanel, p = first + position;
      const bool seen = head != nullptr && p >= from && p <= to;
      copy_async16(key_place(chunk, panel * kPanel + position),
                   seen ? head + page.key(p0 + position, chunk * kKeyDims) : nullptr, seen);
    }
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kPanel / 2 * kD / 4; i += kAttentionThreads) {
      const int pair = i / (kD / 4), d = i % (kD / 4) * 4, p = first + 2 * pair;
      const bool seen = head != nullptr && p + 1 >= from && p <= to;
      copy_async16(value_place(panel * kPanel / 2 + pair, d),
                   seen ? head + page.value(p0 + 2 * pair, d) : nullptr, seen);
    }
  }
};

// Factors of positions: a key or a value is a scale times its code, and a minimum more where they have one.
enum class Factor { kKeyScale, kKeyMinimum, kValueScale, kValueMinimum };

// How steps of a cache of bf16 come to shared memory. Others have the same members, and with kScaled factors.
template <int kDims>
class Bf16Steps {
 public:
  static constexpr int kDims32 = kDims;
  static constexpr bool kScaled = false;
  using Pages = Bf16Cache::Pages;
  using Step = StepShared<kDims32>;
  static constexpr size_t kShared = 0;     // bytes beside two steps
  static constexpr bool kByPages = false;  // whether rows of a tile lie in one page

  // Of a tile whose rows see [from, to].
  OAR_DEVICE Bf16Steps(SharedMemory&, const PagedAttentionArgs& a, const Pages&, int64_t b, int kv, int from,
                       int to)
      : a_(a), table_(a.block_tables + b * a.max_blocks), kv_(kv), from_(from), to_(to) {}
  // All threads of the block: starts copies of a step.
  OAR_DEVICE void start(const Step& step, int first) const {
    const KvPage page(a_.shape);
#pragma unroll
    for (int panel = 0; panel < 2; ++panel) {
      const int at = first + panel * kPanel;
      const bool seen = at + kPanel > from_ && at <= to_;
      step.copy(page, panel, at, from_, to_, seen ? head(page, at) : nullptr);
    }
  }

 private:
  OAR_DEVICE const uint16_t* head(const KvPage& page, int at) const {
    return static_cast<const uint16_t*>(a_.pool) + table_[at / page.P] * page.head(a_.shape.kv_heads) +
           page.head(kv_);
  }
  const PagedAttentionArgs& a_;
  const int32_t* table_;
  const int kv_, from_, to_;
};

// Pairs [first, end) of sequence b, row behind row and within a row head behind head. None: end is 0.
struct PairTile {
  int64_t b;
  int first, end;
};
// Of all sequences, the last, longest ones of each first. Where tiles lie in pages, each page has its own.
template <class Steps>
OAR_DEVICE PairTile tile_of_pairs(const PagedAttentionArgs& a, int group, int64_t tile) {
  const auto whole = [](int pairs) { return (pairs + kTilePairs - 1) / kTilePairs; };
  for (int64_t b = 0; b < a.B; ++b) {
    const int rows = a.seq_start[b + 1] - a.seq_start[b];
    if (rows == 0) continue;
    const int cut = Steps::kByPages ? a.shape.page_tokens : a.context_len[b];
    const int front = min(rows, cut - (a.context_len[b] - rows) % cut), rest = rows - front;  // first piece
    const int of_front = whole(front * group), of_piece = whole(cut * group);
    const int tiles = of_front + rest / cut * of_piece + whole(rest % cut * group);
    if (tile >= tiles) {
      tile -= tiles;
      continue;
    }
    const int its = tiles - 1 - static_cast<int>(tile), behind = its - of_front;
    if (behind < 0) return {b, its * kTilePairs, min((its + 1) * kTilePairs, front * group)};
    const int row = front + behind / of_piece * cut;  // the first of its piece
    const int first = row * group + behind % of_piece * kTilePairs;
    return {b, first, min(first + kTilePairs, min(row + cut, rows) * group)};
  }
  return {};
}

// Blocks: tiles along x, heads of keys along y.
template <class Steps>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    tile_kernel(PagedAttentionArgs a, typename Steps::Pages pages, bool aligned) {
  wait_for_launches();
  constexpr int kDims32 = Steps::kDims32, kD = 32 * kDims32;
  using Step = StepShared<kDims32>;
  const int K = a.shape.kv_heads, group = static_cast<int>(a.H) / K, kv = static_cast<int>(blockIdx.y);
  SharedMemory shared;
  const Queries<kDims32> queries(shared, kTilePairs);
  unsigned char* const both = shared.take<unsigned char>(2 * Step::kBytes);
  const auto step_of = [&](int first) { return Step{both + first / kStep % 2 * Step::kBytes}; };
  const int g = lane() / 4, t = lane() % 4;

  const PairTile tile = tile_of_pairs<Steps>(a, group, blockIdx.x);
  if (tile.end == 0) return;
  const int64_t first_row = a.seq_start[tile.b];
  const int first_pos = a.context_len[tile.b] - (a.seq_start[tile.b + 1] - static_cast<int>(first_row));
  const auto position_of = [&](int pair) { return first_pos + pair / group; };
  // What pairs [begin, end) of the tile see: both ends ascend with a row's position.
  const auto from_of = [&](int pair) { return static_cast<int>(first_seen(a, position_of(pair))); };
  const int from = from_of(tile.first), to = position_of(tile.end - 1);
  const int warp_first = tile.first + warp() * kPairs, warp_last = min(warp_first + kPairs, tile.end) - 1;
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
  const Steps steps(shared, a, pages, tile.b, kv, from, to);
  steps.start(step_of(begin), begin);
  copy_async_commit();
  for (int i = static_cast<int>(threadIdx.x); i < kTilePairs * kD / 4; i += kAttentionThreads) {
    const int pair = i / (kD / 4), d = i % (kD / 4), its = tile.first + pair;
    float4 q = make_float4(0.f, 0.f, 0.f, 0.f);
    if (its < tile.end) {
      q = load_query(a.q + (first_row + its / group) * a.ldq + (kv * group + its % group) * kD + 4 * d,
                     aligned);
    }
    queries.put(pair, d, q);
  }
  [[maybe_unused]] float query_sums[2] = {};
  if constexpr (Steps::kScaled) {
    if (steps.key_minima()) {
      __syncthreads();
      for (int pair = 0; pair < kPairs; ++pair) {
        const float sum = queries.template sum<kD>(warp() * kPairs + pair);
        if (pair == g) query_sums[0] = sum;
        if (pair == g + 8) query_sums[1] = sum;
      }
    }
  }

  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, all[kDims32][4][4] = {};  // of spans so far
  float m[2] = {-INFINITY, -INFINITY}, l[2] = {}, o[kDims32][4][4] = {};              // of this span
  [[maybe_unused]] float lowest[2] = {};  // of it: what minima of values add up to
  for (int first = begin; first <= to; first += kStep) {
    const Step step = step_of(first);
    if (first + kStep <= to) steps.start(step_of(first + kStep), first + kStep);
    copy_async_commit();
    copy_async_wait<1>();
    __syncthreads();
    if constexpr (Steps::kScaled) {
      steps.finish(step, first);
      __syncthreads();
    }
    if (first <= warp_to && first + kStep > warp_from) {
      float s[kTokenTiles][4] = {}, most[2], sums[2];
#pragma unroll
      for (int i = 0; i < kDims32; ++i) {
        queries.multiply(warp() * kPairs, i, s, [&](int j) { return step.key(4 * i + t, 8 * j + g); });
      }
      if constexpr (Steps::kScaled) {
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          const float2 scale = steps.factors(Factor::kKeyScale, 8 * j + 2 * t);
#pragma unroll
          for (int e = 0; e < 4; ++e) s[j][e] *= e % 2 == 0 ? scale.x : scale.y;
          if (!steps.key_minima()) continue;
          const float2 minimum = steps.factors(Factor::kKeyMinimum, 8 * j + 2 * t);
#pragma unroll
          for (int e = 0; e < 4; ++e)
            s[j][e] = __fmaf_rn(e % 2 == 0 ? minimum.x : minimum.y, query_sums[e / 2], s[j][e]);
        }
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
      if constexpr (Steps::kScaled) {
        float of_step[2] = {};
        float2 scales[kTokenTiles], minima[kTokenTiles] = {};
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          scales[j] = steps.factors(Factor::kValueScale, 8 * j + 2 * t);
          if (steps.value_minima()) minima[j] = steps.factors(Factor::kValueMinimum, 8 * j + 2 * t);
        }
        weigh(sight, first, s, most, w, sums, [&](float weight, int j, int e) {
          of_step[e / 2] = __fmaf_rn(weight, e % 2 == 0 ? minima[j].x : minima[j].y, of_step[e / 2]);
          return weight * (e % 2 == 0 ? scales[j].x : scales[j].y);
        });
        if (steps.value_minima()) {
          lowest[0] = __fmaf_rn(lowest[0], old[0], quad_sum(of_step[0]));
          lowest[1] = __fmaf_rn(lowest[1], old[1], quad_sum(of_step[1]));
        }
      } else {
        weigh(sight, first, s, most, w, sums, AsItIs{});
      }
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
      if constexpr (Steps::kScaled) {
        if (steps.value_minima()) {
#pragma unroll
          for (int q = 0; q < kDims32; ++q) {
#pragma unroll
            for (int jj = 0; jj < 4; ++jj) {
#pragma unroll
              for (int e = 0; e < 4; ++e) o[q][jj][e] += lowest[e / 2];
            }
          }
          lowest[0] = lowest[1] = 0.f;
        }
      }
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
  return 2 * a.T * (a.H / a.shape.kv_heads) >= kTilePairs * (a.B + 1);
}

template <class Steps>
int launch_tiles(const PagedAttentionArgs& a, const typename Steps::Pages& pages, Stream stream) {
  const int64_t K = a.shape.kv_heads, group = a.H / K;
  const int64_t pieces = Steps::kByPages ? a.T / a.shape.page_tokens + 2 * a.B : a.B;
  const int64_t tiles = a.T * group / kTilePairs + (pieces < a.T ? pieces : a.T);
  constexpr size_t kShared = Queries<Steps::kDims32>::bytes(kTilePairs) +
                             (2 * Steps::Step::kBytes + 127) / 128 * 128 + Steps::kShared;
  return launch(tile_kernel<Steps>, dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(K)),
                kAttentionThreads, kShared, stream, a, pages, rows_aligned(a));
}

// A cudaError_t. `scratch` has tensor_attention_scratch(a) bytes. Spans are computed for as many rows at a
// time as that has room for.
template <class Cache, class Steps>
int attend_by_tensor_cores(const PagedAttentionArgs& a, const typename Cache::Pages& pages, void* scratch,
                           Stream stream, const HeadTransform& then = {}) {
  if (spans_of(a) <= 0 || a.B <= 0) return 0;
  if (in_tiles(a)) {
    const int error = launch_tiles<Steps>(a, pages, stream);
    return error != 0 || then.args.rows == 0 ? error : hadamard(then.args, nullptr, stream).code;
  }
  const int64_t each = rows_of_spans(a);
  for (int64_t first = 0; first < a.T; first += each) {
    const int64_t rows = a.T - first < each ? a.T - first : each;
    const int error = launch_spans<Steps::kDims32, Cache>(a, pages, first, rows, scratch, stream, then);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace oar::cuda
