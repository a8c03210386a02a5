// Linear quantization as kernels/quantize.h defines it, element by element.
#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void quantize_reference_plan(const void*, int, KernelPlan* out) { *out = {1, {1}}; }

int32_t code_at(const QuantizeArgs& a, int64_t i) {
  const uint8_t byte = static_cast<const uint8_t*>(a.codes)[i];
  return a.is_signed ? static_cast<int8_t>(byte) : byte;
}

void quantize_reference_run(const void* args, int, int64_t, int64_t, const KernelScratch&) {
  const auto& a = *static_cast<const QuantizeArgs*>(args);
  float scale = 1;
  int32_t zero = 0;
  if (a.own_scale != nullptr) {
    float low = 0, high = 0;
    for (int64_t i = 0; i < a.n; ++i) low = std::fmin(low, a.values[i]), high = std::fmax(high, a.values[i]);
    scale = (high - low) / 255.f;
    if (scale > 0)
      zero = static_cast<int32_t>(std::fmin(std::fmax(std::nearbyint(-low / scale), 0.f), 255.f));
    *a.own_scale = scale, *a.own_zero = static_cast<uint8_t>(zero);
  }
  for (int64_t i = 0; i < a.n; ++i) {
    const int64_t k = i / a.inner % a.count;
    if (a.own_scale == nullptr && a.scale != nullptr) scale = a.scale[k];
    if (a.own_scale == nullptr && a.zero != nullptr)
      zero = a.is_signed ? static_cast<int8_t>(a.zero[k]) : a.zero[k];
    if (a.to_values) {
      a.values[i] = static_cast<float>(code_at(a, i) - zero) * scale;
      continue;
    }
    const float t = a.values[i] / scale, low = static_cast<float>((a.is_signed ? -128 : 0) - zero);
    const float r = std::nearbyint(std::fmin(std::fmax(t, low), low + 255));
    static_cast<uint8_t*>(a.codes)[i] = std::isnan(t) || (a.own_scale != nullptr && !(scale > 0))
                                            ? 0
                                            : static_cast<uint8_t>(static_cast<int32_t>(r) + zero);
  }
}

void integers_reference_run(const void* args, int, int64_t, int64_t, const KernelScratch&) {
  const auto& a = *static_cast<const QuantizeArgs*>(args);
  std::transform(static_cast<const int32_t*>(a.codes), static_cast<const int32_t*>(a.codes) + a.n, a.values,
                 [](int32_t v) { return static_cast<float>(v); });
}

constexpr KernelEntry kEntries[] = {
    {.family = KernelFamily::kNarrow,
     .plan = quantize_reference_plan,
     .run = quantize_reference_run,
     .format = "u8"},
    {.family = KernelFamily::kNarrow,
     .plan = quantize_reference_plan,
     .run = integers_reference_run,
     .format = "i32"},
};

}  // namespace

constinit const KernelTable kernels_quantize_reference{kEntries};

}  // namespace oar
