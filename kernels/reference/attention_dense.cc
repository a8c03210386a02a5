// Attention of padded batches, scalar, in double: the definition.
#include <cmath>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/kernel_list.h"

namespace oar {
namespace {

void plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const DenseAttentionArgs*>(args);
  *out = {1, {a.B * a.H * a.S}};
  out->worker_scratch = static_cast<size_t>(a.L + a.DV) * sizeof(double);
}

double masked(const DenseAttentionArgs& a, int64_t row, int64_t j) {
  const int64_t at = row + j * a.mask_column;
  if (a.mask_bool) return static_cast<const uint8_t*>(a.mask)[at] != 0 ? 0 : -INFINITY;
  return static_cast<double>(static_cast<const float*>(a.mask)[at]);
}

void run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const DenseAttentionArgs*>(args);
  auto* const p = static_cast<double*>(scratch.worker);
  double* const sums = p + a.L;
  const auto at = [](const AttentionSteps& s, int64_t b, int64_t h, int64_t i) {
    return b * s.batch + h * s.head + i * s.row;
  };
  for (int64_t r = begin; r < end; ++r) {
    const int64_t b = r / (a.H * a.S), h = r / a.S % a.H, i = r % a.S, g = h / (a.H / a.K);
    const KeyRange seen = seen_keys(a, b, i);
    const float* const q = a.q + at(a.q_steps, b, h, i);
    double top = -INFINITY, total = 0;
    for (int64_t j = seen.from; j < seen.to; ++j) {
      const float* const k = a.k + at(a.k_steps, b, g, j);
      double dot = 0;
      for (int64_t d = 0; d < a.D; ++d) dot += static_cast<double>(q[d]) * static_cast<double>(k[d]);
      dot *= static_cast<double>(a.scale);
      if (a.softcap > 0) {
        const auto cap = static_cast<double>(a.softcap);
        dot = cap * std::tanh(dot / cap);
      }
      if (a.mask != nullptr) dot += masked(a, at(a.mask_steps, b, h, i), j);
      p[j] = dot;
      top = std::fmax(top, dot);
    }
    float* const out = a.out + at(a.out_steps, b, h, i);
    const bool blind = std::isinf(top) && top < 0;
    for (int64_t d = 0; d < a.DV; ++d) sums[d] = blind && a.blind_is_nan ? NAN : 0;
    for (int64_t j = seen.from; j < seen.to && !blind; ++j) {
      const double e = std::exp(p[j] - top);
      const float* const v = a.v + at(a.v_steps, b, g, j);
      total += e;
      for (int64_t d = 0; d < a.DV; ++d) sums[d] += e * static_cast<double>(v[d]);
    }
    for (int64_t d = 0; d < a.DV; ++d) out[d] = static_cast<float>(blind ? sums[d] : sums[d] / total);
  }
}

constexpr KernelEntry kEntries[] = {{KernelFamily::kDenseAttention, Isa::kReference, plan, run}};

}  // namespace

constinit const KernelTable kernels_attention_dense_reference{kEntries};

}  // namespace oar
