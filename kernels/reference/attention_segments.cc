// Attention within segments, scalar, in double: the definition.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/kernel_list.h"

namespace oar {
namespace {

void plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const SegmentAttentionArgs*>(args);
  *out = {1, {a.T * a.H}};
  out->worker_scratch = static_cast<size_t>(a.D) * sizeof(double);
}

void run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const SegmentAttentionArgs*>(args);
  auto* const sum = static_cast<double*>(scratch.worker);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t t = i / a.H, h = i % a.H, kh = h / (a.H / a.K);
    int64_t first = t, last = t + 1;
    while (first > 0 && a.segments[first - 1] == a.segments[t]) --first;
    while (last < a.T && a.segments[last] == a.segments[t]) ++last;
    while (a.window > 0 && a.positions[t] - a.positions[first] >= a.window) ++first;
    while (a.window > 0 && a.positions[last - 1] - a.positions[t] >= a.window) --last;
    const float* const q = a.q + t * a.ldq + h * a.D;
    const auto logit = [&](int64_t s) {
      const float* const k = a.k + s * a.ldk + kh * a.D;
      double dot = 0;
      for (int64_t d = 0; d < a.D; ++d) dot += static_cast<double>(q[d]) * k[d];
      return dot * a.scale;
    };
    double most = -INFINITY, total = 0;
    for (int64_t s = first; s < last; ++s) most = std::fmax(most, logit(s));
    for (int64_t d = 0; d < a.D; ++d) sum[d] = 0;
    for (int64_t s = first; s < last; ++s) {
      const double p = std::exp(logit(s) - most);
      const float* const v = a.v + s * a.ldv + kh * a.D;
      total += p;
      for (int64_t d = 0; d < a.D; ++d) sum[d] += p * v[d];
    }
    for (int64_t d = 0; d < a.D; ++d) a.out[t * a.ldo + h * a.D + d] = static_cast<float>(sum[d] / total);
  }
}

constexpr KernelEntry kEntries[] = {{KernelFamily::kSegmentAttention, Isa::kReference, plan, run}};

}  // namespace

constinit const KernelTable kernels_attention_segments_reference{kEntries};

}  // namespace oar
