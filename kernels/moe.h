// Routed experts with no host round trip: the counts stay beside the data.
#pragma once

#include "kernels/kernel.h"
#include "kernels/matmul.h"

namespace oar {

// What a router's logits become. kSqrtSoftplus: sqrt(log(1 + exp(x))).
enum class RouteScore : int32_t { kSoftmax, kSigmoid, kSqrtSoftplus };

// score = kSoftmax and so on of logits[t, :]; the top_k largest of score + bias per token (ties: lower index
// first), normalized to sum 1 when asked, times `scale` and what expert_scale has for the expert. The bias
// decides the choice alone. With groups,
// experts side by side form `groups` of them, and only those of the top_groups groups are chosen from, by the
// sum of a group's `group_best` largest: one (DeepSeek V2) or two (V3). A NaN logit is never preferred to a
// number and makes its token's weights NaN. Pairs (t, j) sorted by expert, stably by t, give the row lists of
// the grouped matmul.
struct MoeRouteArgs {
  uint32_t size = sizeof(MoeRouteArgs);
  uint32_t version = 1;             // 2 with expert_scale, 3 where group_best is not 2
  int32_t* pair_token = nullptr;    // [T * top_k] token of each sorted pair
  int32_t* pair_slot = nullptr;     // [T, top_k] where pair (t, j) went in the sorted order
  float* pair_weight = nullptr;     // [T, top_k] routing weight of pair (t, j)
  int32_t* expert_start = nullptr;  // [experts + 1] first sorted pair of each expert
  const float* logits = nullptr;    // [T, experts]
  int64_t T = 0, experts = 0, top_k = 0;
  int32_t normalize = 1;  // divide the kept scores by their sum
  RouteScore score = RouteScore::kSoftmax;
  const float* bias = nullptr;  // [experts] or null
  float scale = 1.f;
  int32_t groups = 0, top_groups = 0;   // 0: all experts are one
  const float* expert_scale = nullptr;  // [experts] or null
  int32_t group_best = 2;
};

// out[p, :] = x[row(p), :] . W[e]^T (+ bias of e's segments) for the sorted pairs p of each expert e; row(p)
// = pair_token[p], or p itself when pair_token is null. One segment list per expert: segments[e *
// segments_per_expert + s].
struct GroupedMatmulArgs {
  uint32_t size = sizeof(GroupedMatmulArgs);
  uint32_t version = 1;
  float* out = nullptr;                   // [P, ldo]
  const float* x = nullptr;               // [.., ldx]
  const int32_t* pair_token = nullptr;    // [P] or null
  const int32_t* expert_start = nullptr;  // [experts + 1]
  const MatmulSegment* segments = nullptr;
  int64_t segments_per_expert = 0, experts = 0;
  int64_t P = 0, K = 0, ldx = 0, ldo = 0;  // P = T * top_k pairs
  Format format;                           // storage format of every segment
};

// out[t, :] = sum over j of pair_weight[t, j] * y[pair_slot[t, j], :], j ascending.
struct MoeCombineArgs {
  uint32_t size = sizeof(MoeCombineArgs);
  uint32_t version = 1;
  float* out = nullptr;      // [T, E]
  const float* y = nullptr;  // [T * top_k, E]
  const int32_t* pair_slot = nullptr;
  const float* pair_weight = nullptr;
  int64_t T = 0, top_k = 0, E = 0;
};

}  // namespace oar
