// kernels/softmax_grad.h in double.
#include "kernels/softmax_grad.h"

#include <cmath>
#include <vector>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

double scored(double x, double scale, double softcap) {
  return softcap > 0 ? softcap * std::tanh(scale * x / softcap) : scale * x;
}
double slope_of(double score, double scale, double softcap) {
  return softcap > 0 ? scale * (1 - score / softcap * (score / softcap)) : scale;
}

template <class Args>
void rows_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const Args*>(args)->rows}};
}

// exp(s - max s) of n scores, and their sum.
double exponentials(std::vector<double>& s) {
  double top = -INFINITY, sum = 0;
  for (const double v : s) top = v > top ? v : top;
  for (double& v : s) v = std::exp(v - top), sum += v;
  return sum;
}

void seen_softmax_reference(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const SeenSoftmaxArgs*>(args);
  for (int64_t r = begin; r < end; ++r) {
    float* const x = a.x + r * a.n;
    const int64_t first = a.first[r % a.period], last = a.last[r % a.period];
    std::vector<double> s;
    for (int64_t c = first; c < last; ++c)
      s.push_back(
          scored(static_cast<double>(x[c]), static_cast<double>(a.scale), static_cast<double>(a.softcap)));
    const double sum = exponentials(s);
    for (int64_t c = 0; c < a.n; ++c)
      x[c] = c >= first && c < last ? static_cast<float>(s[static_cast<size_t>(c - first)] / sum) : 0;
  }
}

void softmax_grad_reference(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const SoftmaxGradArgs*>(args);
  const auto scale = static_cast<double>(a.scale), softcap = static_cast<double>(a.softcap);
  for (int64_t r = begin; r < end; ++r) {
    const float* const p = a.p + r * a.n;
    float* const g = a.g + r * a.n;
    const int64_t first = a.first[r % a.period], last = a.last[r % a.period];
    double sum = 0;
    for (int64_t c = first; c < last; ++c) sum += static_cast<double>(p[c]) * static_cast<double>(g[c]);
    for (int64_t c = 0; c < a.n; ++c) {
      if (c < first || c >= last) {
        g[c] = 0;
        continue;
      }
      const double score = softcap > 0 ? scored(static_cast<double>(a.x[r * a.n + c]), scale, softcap) : 0;
      g[c] = static_cast<float>(slope_of(score, scale, softcap) * static_cast<double>(p[c]) *
                                (static_cast<double>(g[c]) - sum));
    }
  }
}

void cross_entropy_reference(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const CrossEntropyArgs*>(args);
  const auto scale = static_cast<double>(a.scale), softcap = static_cast<double>(a.softcap);
  for (int64_t r = begin; r < end; ++r) {
    float* const z = a.z + r * a.n;
    std::vector<double> s, e;
    for (int64_t c = 0; c < a.n; ++c) s.push_back(scored(static_cast<double>(z[c]), scale, softcap));
    e = s;
    const double sum = exponentials(e);
    const auto target = static_cast<size_t>(a.target[r]);
    double top = -INFINITY;
    for (const double v : s) top = v > top ? v : top;
    size_t best = 0;
    while (best + 1 < s.size() && !(s[best] == top)) ++best;
    a.hit[r] = best == target && s[best] == top;
    a.loss[r] = top + std::log(sum) - s[target];
    for (size_t c = 0; c < s.size(); ++c)
      z[c] = static_cast<float>(static_cast<double>(a.factor) * slope_of(s[c], scale, softcap) *
                                (e[c] / sum - (c == target ? 1 : 0)));
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kSeenSoftmax, Isa::kReference, rows_plan<SeenSoftmaxArgs>, seen_softmax_reference},
    {KernelFamily::kSoftmaxGrad, Isa::kReference, rows_plan<SoftmaxGradArgs>, softmax_grad_reference},
    {KernelFamily::kCrossEntropy, Isa::kReference, rows_plan<CrossEntropyArgs>, cross_entropy_reference},
};

}  // namespace

constinit const KernelTable kernels_softmax_grad_reference{kEntries};

}  // namespace oar
