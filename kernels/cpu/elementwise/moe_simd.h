// Routing and combining of experts for one instruction set; included by elementwise_<isa>.cc.
//
// Routing sorts the (token, choice) pairs by expert with a counting sort over fixed blocks of tokens: phase 0
// chooses the experts of a block's tokens and counts them, phase 1 places the block's pairs after those of
// lower experts and of earlier blocks. A batch of one block needs one phase.
#pragma once

#include "kernels/cpu/elementwise/norm_simd.h"
#include "kernels/cpu/vmath.h"
#include "kernels/moe.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kRouteBlock = 64;  // tokens; choosing among 128 experts takes ~10 us per block

struct RouteScratch {
  int32_t* expert;  // [T, top_k]
  int32_t* count;   // [blocks, experts]
};
OAR_INLINE RouteScratch route_scratch(const MoeRouteArgs& a, const KernelScratch& scratch) {
  auto* p = static_cast<int32_t*>(scratch.shared);
  return {p, p + a.T * a.top_k};
}
OAR_INLINE int64_t route_blocks(const MoeRouteArgs& a) { return row_chunks(a.T, kRouteBlock); }

inline void route_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const MoeRouteArgs*>(args);
  const int64_t blocks = route_blocks(a);
  *out = {};
  out->phases = blocks > 1 ? 2 : 1;
  out->chunks[0] = out->chunks[1] = blocks;
  out->shared_scratch = static_cast<size_t>(a.T * a.top_k + blocks * a.experts) * sizeof(int32_t);
  out->worker_scratch = static_cast<size_t>(3 * a.experts + a.top_k + a.groups) * sizeof(float);
}

// Whether the logits themselves order the experts and softmax weighs them.
OAR_INLINE bool plain_softmax(const MoeRouteArgs& a) {
  return a.score == RouteScore::kSoftmax && a.bias == nullptr && a.groups < 2 && a.scale == 1.f;
}

// score[e] of one token's experts and choice[e], what they are chosen by; both [experts]. False where a logit
// is NaN.
inline bool score_experts(const MoeRouteArgs& a, const float* logits, float* score, float* choice,
                          float* group) {
  float most = -INFINITY, sum = 0;
  for (int64_t e = 0; e < a.experts; ++e) most = logits[e] > most ? logits[e] : most;
  for_lanes(a.experts, [&](int64_t i, int64_t n) {
    const Vf x = load_part(logits + i, n);
    const Vf y = a.score == RouteScore::kSigmoid   ? sigmoid(x)
                 : a.score == RouteScore::kSoftmax ? exp(x - set1(most))
                                                   : sqrt(max(x, set1(0.f)) + log1p(exp(-abs(x))));
    store_part(score + i, y, n);
  });
  for (int64_t e = 0; e < a.experts; ++e) sum += score[e];
  if (a.score == RouteScore::kSoftmax)
    for (int64_t e = 0; e < a.experts; ++e) score[e] /= sum;
  bool numbers = true;
  for (int64_t e = 0; e < a.experts; ++e) {
    numbers = numbers && logits[e] == logits[e];
    const float x = a.bias != nullptr ? score[e] + a.bias[e] : logits[e];  // logits order as their scores do
    choice[e] = x == x ? x : -INFINITY;
  }
  if (a.groups < 2) return numbers;
  const int64_t each = a.experts / a.groups;
  const float* const worth = a.bias != nullptr ? choice : score;
  for (int32_t g = 0; g < a.groups; ++g) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t e = g * each; e < (g + 1) * each; ++e) {
      if (worth[e] > first) second = first, first = worth[e];
      else if (worth[e] > second) second = worth[e];
    }
    group[g] = a.group_best == 1 ? first : first + second;
  }
  for (int32_t g = 0; g < a.groups; ++g) {
    int32_t better = 0;
    for (int32_t o = 0; o < a.groups; ++o)
      better += group[o] > group[g] || (group[o] == group[g] && o < g) ? 1 : 0;
    if (better < a.top_groups) continue;
    for (int64_t e = g * each; e < (g + 1) * each; ++e) choice[e] = -INFINITY;
  }
  return numbers;
}

// The k best of `values`, the lower index first among equals; a NaN is never preferred to a number.
inline void insert_best(const float* values, int64_t count, int64_t k, int32_t* expert, float* key) {
  int64_t kept = 0;
  for (int64_t e = 0; e < count; ++e) {
    const float x = values[e] == values[e] ? values[e] : -INFINITY;
    if (kept == k && !(x > key[k - 1])) continue;
    int64_t at = kept < k ? kept++ : k - 1;
    for (; at > 0 && x > key[at - 1]; --at) {
      key[at] = key[at - 1];
      expert[at] = expert[at - 1];
    }
    key[at] = x;
    expert[at] = static_cast<int32_t>(e);
  }
}

inline void choose_scored(const MoeRouteArgs& a, int64_t t, int32_t* expert, float* key) {
  float *score = key + a.top_k, *choice = score + a.experts, *weight = a.pair_weight + t * a.top_k;
  const bool numbers = score_experts(a, a.logits + t * a.experts, score, choice, choice + a.experts);
  insert_best(choice, a.experts, a.top_k, expert, key);
  float kept = 0;
  for (int64_t j = 0; j < a.top_k; ++j) kept += weight[j] = numbers ? score[expert[j]] : NAN;
  const float factor = a.normalize != 0 ? a.scale / kept : a.scale;
  for (int64_t j = 0; j < a.top_k; ++j) weight[j] *= factor;
}

// The top_k experts of one token, largest logit first, the lower index first among equals. A NaN is never
// preferred to a number, and makes every weight NaN.
inline void choose_experts(const MoeRouteArgs& a, int64_t t, int32_t* expert, float* key) {
  if (!plain_softmax(a)) return choose_scored(a, t, expert, key);
  const float* logits = a.logits + t * a.experts;
  const int64_t k = a.top_k;
  Vf vmax = set1(-INFINITY);
  for_lanes(a.experts, [&](int64_t i, int64_t n) {
    Vf x = load_part(logits + i, n);
    if (n != kLanes) {
      float lanes[kLanes];
      for (float& lane : lanes) lane = -INFINITY;
      store_n(lanes, x, n);
      x = load(lanes);
    }
    vmax = max(x, vmax);
  });
  const float maximum = reduce_max(vmax);
  insert_best(logits, a.experts, k, expert, key);
  const Vf shift = set1(maximum);
  float total = sum_lanes(a.experts, [&](int64_t i, int64_t n) {
    Vf p = exp(load_part(logits + i, n) - shift);
    if (n != kLanes) {
      float lanes[kLanes] = {};
      store_n(lanes, p, n);
      p = load(lanes);
    }
    return p;
  });
  float* weight = a.pair_weight + t * k;
  float kept_total = 0;
  for_lanes(k, [&](int64_t j, int64_t n) { store_part(weight + j, exp(load_part(key + j, n) - shift), n); });
  for (int64_t j = 0; j < k; ++j) kept_total += weight[j];
  // total is NaN when any logit is; kept_total need not be.
  if (a.normalize != 0 && total == total) total = kept_total;
  for (int64_t j = 0; j < k; ++j) weight[j] /= total;
}

inline void place_pairs(const MoeRouteArgs& a, const RouteScratch& s, int64_t block, int64_t blocks,
                        int32_t* next) {
  // next[e]: where this block's first pair of expert e goes.
  int32_t start = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    int32_t before = 0, all = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      const int32_t n = s.count[b * a.experts + e];
      before += b < block ? n : 0;
      all += n;
    }
    next[e] = start + before;
    if (block == 0) a.expert_start[e] = start;
    start += all;
  }
  if (block == 0) a.expert_start[a.experts] = start;
  const int64_t begin = block * kRouteBlock * a.top_k, rest = a.T * a.top_k - begin;
  const int64_t end = begin + (rest < kRouteBlock * a.top_k ? rest : kRouteBlock * a.top_k);
  for (int64_t p = begin; p < end; ++p) {
    const int32_t slot = next[s.expert[p]]++;
    a.pair_token[slot] = static_cast<int32_t>(p / a.top_k);
    a.pair_slot[p] = slot;
  }
}

inline void route_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const MoeRouteArgs*>(args);
  const RouteScratch s = route_scratch(a, scratch);
  const int64_t blocks = route_blocks(a);
  auto* key = static_cast<float*>(scratch.worker);
  auto* next = reinterpret_cast<int32_t*>(key + a.top_k);
  for (int64_t block = begin; block < end; ++block) {
    if (phase == 0) {
      int32_t* count = s.count + block * a.experts;
      memset(count, 0, static_cast<size_t>(a.experts) * sizeof(int32_t));
      const int64_t last = (block + 1) * kRouteBlock < a.T ? (block + 1) * kRouteBlock : a.T;
      for (int64_t t = block * kRouteBlock; t < last; ++t) {
        choose_experts(a, t, s.expert + t * a.top_k, key);
        for (int64_t j = t * a.top_k; j < (t + 1) * a.top_k; ++j) {
          ++count[s.expert[j]];
          if (a.expert_scale != nullptr) a.pair_weight[j] *= a.expert_scale[s.expert[j]];
        }
      }
    }
    if (phase == 1 || blocks == 1) place_pairs(a, s, block, blocks, next);
  }
}

OAR_INLINE int64_t combine_per(const MoeCombineArgs& a) {
  return rows_per_chunk(a.T, a.E * 4 * (a.top_k + 1));
}

inline void combine_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const MoeCombineArgs*>(args);
  *out = {1, {row_chunks(a.T, combine_per(a))}};
}

inline void combine_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const MoeCombineArgs*>(args);
  const int64_t per = combine_per(a), last = end * per < a.T ? end * per : a.T;
  for (int64_t t = begin * per; t < last; ++t) {
    const int32_t* slot = a.pair_slot + t * a.top_k;
    const float* weight = a.pair_weight + t * a.top_k;
    for_lanes(a.E, [&](int64_t i, int64_t n) {
      Vf sum = zero();
      for (int64_t j = 0; j < a.top_k; ++j)
        sum = fma(set1(weight[j]), load_part(a.y + slot[j] * a.E + i, n), sum);
      store_part(a.out + t * a.E + i, sum, n);
    });
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
