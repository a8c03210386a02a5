// Routing of tokens to experts and the weighted sum of their results, scalar, in double.
#include "kernels/moe.h"

#include <cmath>
#include <vector>

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

// The scores of one token's experts.
std::vector<double> scores(const MoeRouteArgs& a, const float* logits) {
  std::vector<double> s(logits, logits + a.experts);
  if (a.score == RouteScore::kSigmoid) {
    for (double& x : s) x = 1 / (1 + std::exp(-x));
  } else if (a.score == RouteScore::kSqrtSoftplus) {
    for (double& x : s) x = std::sqrt(std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x))));
  } else {
    double max = -INFINITY, sum = 0;
    for (double x : s) max = x > max ? x : max;
    for (double& x : s) sum += x = std::exp(x - max);
    for (double& x : s) x /= sum;
  }
  return s;
}

// What is chosen by, -infinity outside the chosen groups. Without a bias that is the logit, which orders as
// its score does and ties where it does.
std::vector<double> choices(const MoeRouteArgs& a, const float* logits, const std::vector<double>& score) {
  std::vector<double> c(score.size());
  for (size_t e = 0; e < c.size(); ++e)
    c[e] = a.bias != nullptr ? key(static_cast<float>(score[e] + a.bias[e])) : key(logits[e]);
  if (a.groups < 2) return c;
  const size_t each = c.size() / static_cast<size_t>(a.groups);
  std::vector<double> of_group(static_cast<size_t>(a.groups));
  for (size_t g = 0; g < of_group.size(); ++g) {
    double first = -INFINITY, second = -INFINITY;
    for (size_t e = g * each; e < (g + 1) * each; ++e) {
      const double x = a.bias != nullptr ? c[e] : key(static_cast<float>(score[e]));
      if (x > first) second = first, first = x;
      else if (x > second) second = x;
    }
    of_group[g] = a.group_best == 1 ? first : first + second;
  }
  std::vector<bool> open(of_group.size(), false);
  for (int32_t j = 0; j < a.top_groups; ++j) {
    size_t best = of_group.size();
    for (size_t g = 0; g < of_group.size(); ++g)
      if (!open[g] && (best == of_group.size() || of_group[g] > of_group[best])) best = g;
    open[best] = true;
  }
  for (size_t e = 0; e < c.size(); ++e)
    if (!open[e / each]) c[e] = -INFINITY;
  return c;
}

// The top_k experts of one token in descending order (ties: lower expert first) and their weights.
void choose(const MoeRouteArgs& a, const float* logits, int32_t* expert, float* weight) {
  const std::vector<double> score = scores(a, logits), choice = choices(a, logits, score);
  double kept = 0, all = 0;
  for (double s : score) all += s;
  for (int64_t j = 0; j < a.top_k; ++j) {
    int64_t best = -1;
    for (int64_t e = 0; e < a.experts; ++e) {
      bool taken = false;
      for (int64_t i = 0; i < j; ++i) taken = taken || expert[i] == e;
      if (!taken && (best < 0 || choice[e] > choice[best])) best = e;
    }
    expert[j] = static_cast<int32_t>(best);
    kept += score[best];
  }
  if (all != all) kept = all;
  for (int64_t j = 0; j < a.top_k; ++j) {
    const double s = all == all ? score[expert[j]] : all;
    const double own = a.expert_scale != nullptr ? a.expert_scale[expert[j]] : 1.0;
    weight[j] = static_cast<float>((a.normalize != 0 ? s / kept : s) * a.scale * own);
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
