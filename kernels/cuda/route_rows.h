// Experts chosen by a warp for each token, and pairs of tokens and experts put in order by a block (moe.cu;
// matmul_tensor.h behind the product that makes their logits).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul.h"
#include "kernels/moe.h"

namespace oar::cuda {

// The score of an expert by itself; softmax divides by the sum later.
OAR_DEVICE float score_of(const MoeRouteArgs& a, float logit, float top) {
  if (a.score == RouteScore::kSigmoid) return sigmoid(logit);
  if (a.score == RouteScore::kSqrtSoftplus) return sqrtf(fmaxf(logit, 0.f) + log1pf(expf(-fabsf(logit))));
  return expf(logit - top);
}

// What is never preferred to a number.
OAR_DEVICE float comparable(float x) { return x == x ? x : -INFINITY; }

// The lane with the largest value and, among equals, the lowest index, in every lane. index < 0: none.
OAR_DEVICE void best_of_warp(float& value, int& index) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, value, offset);
    const int its = __shfl_xor_sync(kAllLanes, index, offset);
    if (its >= 0 && (index < 0 || other > value || (other == value && its < index))) {
      value = other;
      index = its;
    }
  }
}

// Of a token by a warp; `keys` holds what its experts are chosen by. experts[t, j]: the choice.
OAR_DEVICE void choose(const MoeRouteArgs& a, int64_t t, float* scores, float* keys, int32_t* experts) {
  const int E = static_cast<int>(a.experts);
  const float* logits = a.logits + t * a.experts;

  float top = -INFINITY;
  for (int e = lane(); e < E; e += kWarp) top = fmaxf(top, logits[e]);
  top = warp_max(top);
  float sum = 0.f;
  for (int e = lane(); e < E; e += kWarp) {
    scores[e] = score_of(a, logits[e], top);
    sum += scores[e];
  }
  sum = warp_sum(sum);  // NaN where a logit is
  const float all = sum;
  if (a.score != RouteScore::kSoftmax) sum = 1.f;
  for (int e = lane(); e < E; e += kWarp) {
    scores[e] = __fdividef(scores[e], sum);
    keys[e] = comparable(a.bias != nullptr ? scores[e] + a.bias[e] : logits[e]);
  }
  __syncwarp();

  if (a.groups >= 2) {
    const int each = E / a.groups;
    // A group's worth: its best, or its two best, of scores where there is no bias. Lanes take groups in
    // turn; the best of them is opened, top_groups times. `opened` has a bit for each of the lane's groups.
    uint32_t opened = 0;
    for (int j = 0; j < a.top_groups; ++j) {
      float best = -INFINITY;
      int which = -1;
      for (int g = lane(), nth = 0; g < a.groups; g += kWarp, ++nth) {
        if ((opened >> nth & 1) != 0) continue;
        float first = -INFINITY, second = -INFINITY;
        for (int e = g * each; e < (g + 1) * each; ++e) {
          const float x = a.bias != nullptr ? keys[e] : comparable(scores[e]);
          if (x > first) second = first, first = x;
          else if (x > second) second = x;
        }
        const float worth = a.group_best == 1 ? first : first + second;
        if (which < 0 || worth > best) best = worth, which = g;
      }
      best_of_warp(best, which);
      if (which >= 0 && which % kWarp == lane()) opened |= 1u << (which / kWarp);
    }
    for (int g = lane(), nth = 0; g < a.groups; g += kWarp, ++nth) {
      if ((opened >> nth & 1) != 0) continue;
      for (int e = g * each; e < (g + 1) * each; ++e) keys[e] = -INFINITY;
    }
    __syncwarp();
  }

  // Chosen experts' keys become NaN, which is less than nothing. What a lane writes here it alone reads.
  float kept = 0.f;
  for (int j = 0; j < static_cast<int>(a.top_k); ++j) {
    float best = -INFINITY;
    int which = -1;
    for (int e = lane(); e < E; e += kWarp) {
      const float x = keys[e];
      if (x == x && (which < 0 || x > best)) best = x, which = e;
    }
    best_of_warp(best, which);
    kept += scores[which];
    if (j % kWarp == lane()) experts[t * a.top_k + j] = which;
    if (which % kWarp == lane()) keys[which] = NAN;
  }
  if (all != all) kept = all;
  for (int j = lane(); j < static_cast<int>(a.top_k); j += kWarp) {
    const int32_t e = experts[t * a.top_k + j];
    const float s = all == all ? scores[e] : all, own = a.expert_scale != nullptr ? a.expert_scale[e] : 1.f;
    a.pair_weight[t * a.top_k + j] = (a.normalize != 0 ? __fdividef(s, kept) : s) * a.scale * own;
  }
}

// By a block, of few pairs: how many come before each one and each expert. `own`: kSortWords for a pair.
constexpr int64_t kSortWords = 2;
OAR_DEVICE void sort_few(const MoeRouteArgs& a, const int32_t* experts, int32_t* own) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x),
            pairs = static_cast<int>(a.T * a.top_k);
  int32_t* const tokens = own + pairs;
  for (int p = thread; p < pairs; p += threads) own[p] = experts[p];
  __syncthreads();
  for (int p = thread; p < pairs; p += threads) {
    const int e = own[p];
    int place = 0;
    for (int q = 0; q < pairs; ++q) place += own[q] < e || (own[q] == e && q < p) ? 1 : 0;
    tokens[place] = p / static_cast<int>(a.top_k);
    a.pair_slot[p] = place;
  }
  for (int e = thread; e <= static_cast<int>(a.experts); e += threads) {
    int before = 0;
    for (int q = 0; q < pairs; ++q) before += own[q] < e ? 1 : 0;
    a.expert_start[e] = before;
  }
  __syncthreads();
  for (int p = thread; p < pairs; p += threads) a.pair_token[p] = tokens[p];
}

// All of it by a block, of any number of warps, with kChainedExperts * 2 floats of shared memory a warp.
OAR_DEVICE void route_few(const MoeRouteArgs& a, int32_t* chosen, float* shared) {
  const int warps = static_cast<int>(blockDim.x) / kWarp, E = static_cast<int>(a.experts);
  float* const own = shared + warp() * static_cast<int>(kChainedExperts * 2);
  for (int64_t t = warp(); t < a.T; t += warps) {
    choose(a, t, own, own + E, chosen);
    __syncwarp();
  }
  __syncthreads();
  sort_few(a, chosen, reinterpret_cast<int32_t*>(shared));
}

}  // namespace oar::cuda
