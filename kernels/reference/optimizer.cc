// kernels/optimizer.h in double.
#include "kernels/optimizer.h"

#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void one_chunk(const void*, int, KernelPlan* out) { *out = {1, {1}}; }

void squares_reference(const void* args, int, int64_t, int64_t, const KernelScratch&) {
  const auto& a = *static_cast<const SquaresArgs*>(args);
  *a.sum = 0;
  for (int64_t i = 0; i < a.n; ++i) *a.sum += static_cast<double>(a.x[i]) * static_cast<double>(a.x[i]);
}

void adamw_reference(const void* args, int, int64_t, int64_t, const KernelScratch&) {
  const auto& a = *static_cast<const AdamwArgs*>(args);
  const auto wide = [](float x) { return static_cast<double>(x); };
  for (int64_t i = 0; i < a.n; ++i) {
    const double x = wide(a.g[i]) * wide(a.clip);
    const double m = wide(a.beta1) * wide(a.m[i]) + wide(a.rest1) * x;
    const double v = wide(a.beta2) * wide(a.v[i]) + wide(a.rest2) * x * x;
    a.p[i] = static_cast<float>(wide(a.keep) * wide(a.p[i]) -
                                wide(a.step) * m / (wide(a.root) * std::sqrt(v) + wide(a.epsilon)));
    a.m[i] = static_cast<float>(m), a.v[i] = static_cast<float>(v);
    if (a.clear) a.g[i] = 0;
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kSquares, Isa::kReference, one_chunk, squares_reference},
    {KernelFamily::kAdamw, Isa::kReference, one_chunk, adamw_reference},
};

}  // namespace

constinit const KernelTable kernels_optimizer_reference{kEntries};

}  // namespace oar
