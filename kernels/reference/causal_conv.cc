// Causal convolutions with state, scalar, summed in double.
#include "kernels/causal_conv.h"

#include <algorithm>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void causal_conv_plan(const void* args, int, KernelPlan* out) {
  *out = {1, {static_cast<const CausalConvArgs*>(args)->T}};
}

void causal_conv_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const CausalConvArgs*>(args);
  for (int64_t t = begin; t < end; ++t) {
    CausalConvRow row(a, t);
    const int64_t p = row.position(t), first = std::max<int64_t>(0, a.L - 1 - p);
    for (int64_t c = 0; c < a.C; ++c) {
      double sum = a.bias != nullptr ? static_cast<double>(a.bias[c]) : 0;
      for (int64_t i = first; i < a.L; ++i)
        sum += static_cast<double>(a.w[i * a.C + c]) * static_cast<double>(row.input(p - (a.L - 1) + i)[c]);
      a.out[t * a.ldo + c] = static_cast<float>(sum);
    }
    const float* x = a.x + t * a.ldx;
    if (float* kept = state_row(a.state, t)) std::copy_n(x, a.C, kept);
    if (float* border = row.border(p))
      for (int64_t i = 0; i + 1 < a.L; ++i) std::copy_n(row.input(p - (a.L - 2) + i), a.C, border + i * a.C);
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kCausalConv, Isa::kReference, causal_conv_plan, causal_conv_run},
};

}  // namespace

constinit const KernelTable kernels_causal_conv_reference{kEntries};

}  // namespace oar
