// Routing of tokens to experts and the weighted sum of their results, scalar, in double.
#include "kernels/moe.h"

#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void route_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const MoeRouteArgs*>(args);
  *out = {};
  // Experts chosen per pair; the sorted order needs them all, so there is one chunk.
  out->shared_scratch = static_cast<size_t>(a.T * a.top_k) * sizeof(int32_t);
}

// What experts are compared by: a NaN is never preferred to a number.
double key(float logit) { return logit == logit ? logit : -INFINITY; }

// The top_k largest logits of one token in descending order (ties: lower expert first) and their weights.
void choose(const MoeRouteArgs& a, const float* logits, int32_t* expert, float* weight) {
  double max = -INFINITY;
  for (int64_t e = 0; e < a.experts; ++e) {
    if (logits[e] > max) max = logits[e];
  }
  double sum = 0;
  for (int64_t e = 0; e < a.experts; ++e) sum += std::exp(logits[e] - max);
  double kept = 0;
  for (int64_t j = 0; j < a.top_k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < a.experts; ++e) {
      bool taken = false;
      for (int64_t i = 0; i < j; ++i) taken = taken || expert[i] == e;
      if (!taken && (best < 0 || key(logits[e]) > key(logits[best]))) best = e;
    }
    expert[j] = static_cast<int32_t>(best);
    kept += std::exp(logits[best] - max) / sum;
  }
  for (int64_t j = 0; j < a.top_k; ++j) {
    const double p = std::exp(logits[expert[j]] - max) / sum;
    weight[j] = static_cast<float>(a.normalize != 0 ? p / kept : p);
  }
}

void route_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const MoeRouteArgs*>(args);
  if (begin >= end) return;
  auto* expert = static_cast<int32_t*>(scratch.shared);
  for (int64_t t = 0; t < a.T; ++t) {
    choose(a, a.logits + t * a.experts, expert + t * a.top_k, a.pair_weight + t * a.top_k);
  }
  int32_t next = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    a.expert_start[e] = next;
    for (int64_t p = 0; p < a.T * a.top_k; ++p) {
      if (expert[p] != e) continue;
      a.pair_token[next] = static_cast<int32_t>(p / a.top_k);
      a.pair_slot[p] = next++;
    }
  }
  a.expert_start[a.experts] = next;
}

void combine_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const MoeCombineArgs*>(args)->T}};
}

void combine_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const MoeCombineArgs*>(args);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t i = 0; i < a.E; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < a.top_k; ++j) {
        const int64_t p = t * a.top_k + j;
        sum += static_cast<double>(a.pair_weight[p]) * a.y[a.pair_slot[p] * a.E + i];
      }
      a.out[t * a.E + i] = static_cast<float>(sum);
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kMoeRoute, Isa::kReference, route_plan, route_run},
    {KernelFamily::kMoeCombine, Isa::kReference, combine_plan, combine_run},
};

}  // namespace

constinit const KernelTable kernels_moe_reference{kEntries};

}  // namespace oar
