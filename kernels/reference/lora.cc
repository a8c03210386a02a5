// Low-rank adapters, scalar, summed in double.
#include "kernels/lora.h"

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void lora_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const LoraArgs*>(args);
  *out = {.phases = 1, .chunks = {a.T}, .worker_scratch = static_cast<size_t>(a.R) * sizeof(double)};
}

double lora_number(const LoraArgs& a, const void* p, int64_t i) {
  return a.format == Format::f32() ? static_cast<double>(static_cast<const float*>(p)[i])
                                   : static_cast<double>(to_f32(static_cast<const bf16*>(p)[i]));
}

void lora_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const LoraArgs*>(args);
  auto* low = static_cast<double*>(scratch.worker);
  for (int64_t t = begin; t < end; ++t) {
    const int64_t slot = a.index[t];
    if (slot < 0) continue;
    const int64_t rank = a.ranks[slot];
    for (int64_t r = 0; r < rank; ++r) {
      low[r] = 0;
      for (int64_t k = 0; k < a.K; ++k)
        low[r] += lora_number(a, a.a, (slot * a.R + r) * a.K + k) * static_cast<double>(a.x[t * a.ldx + k]);
    }
    for (int64_t j = 0; j < a.n && rank > 0; ++j) {
      double sum = static_cast<double>(a.y[t * a.ldy + j]);
      for (int64_t r = 0; r < rank; ++r)
        sum += lora_number(a, a.b, slot * a.R * a.n + lora_b_at(a.R, a.n, r, j)) * low[r];
      a.y[t * a.ldy + j] = static_cast<float>(sum);
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kLora, Isa::kReference, lora_plan, lora_run, "f32"},
    {KernelFamily::kLora, Isa::kReference, lora_plan, lora_run, "bf16"},
};

}  // namespace

constinit const KernelTable kernels_lora_reference{kEntries};

}  // namespace oar
