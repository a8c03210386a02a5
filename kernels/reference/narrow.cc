// f32 rows as narrow operands, as kernels/narrow.h defines them.
#include "kernels/narrow.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void narrow_reference_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const NarrowArgs*>(args);
  *out = {1, {a.own_scale ? 1 : a.rows}};
}

// A code of round(x / divisor) + offset.
uint8_t quantized(float x, float divisor, int32_t offset, int32_t low) {
  const float t = x / divisor, least = static_cast<float>(low - offset);
  const float q = std::nearbyint(std::fmin(std::fmax(t, least), least + 255));
  return std::isnan(t) ? 0 : static_cast<uint8_t>(static_cast<int32_t>(q) + offset);
}

void own_range_run(const NarrowArgs& a) {
  float low = 0, high = 0;
  for (int64_t k = 0; k < a.rows * a.n; ++k) low = std::fmin(low, a.x[k]), high = std::fmax(high, a.x[k]);
  const NarrowScale s = range_scale(low, high);
  *a.own_scale = s.scale, *a.own_zero = static_cast<uint8_t>(s.zero);
  for (int64_t k = 0; k < a.rows * a.n; ++k)
    static_cast<uint8_t*>(a.out)[k] = s.inverse > 0 ? quantized(a.x[k], s.scale, s.zero, 0) : 0;
}

void narrow_reference_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const NarrowArgs*>(args);
  if (a.own_scale) return own_range_run(a);
  for (int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.n;
    if (a.bf16) {
      for (int64_t k = 0; k < a.n; ++k) static_cast<bf16*>(a.out)[r * a.n + k] = to_bf16(x[k]);
      continue;
    }
    if (a.f16) {
      for (int64_t k = 0; k < a.n; ++k) static_cast<f16*>(a.out)[r * a.n + k] = to_f16(x[k]);
      continue;
    }
    if (a.divisor > 0) {
      for (int64_t k = 0; k < a.n; ++k)
        static_cast<uint8_t*>(a.out)[r * a.n + k] = quantized(x[k], a.divisor, a.offset, a.least);
      continue;
    }
    float low = a.low, high = a.high;
    bool finite = true;
    if (low > high) {
      low = high = 0;
      for (int64_t k = 0; k < a.n; ++k) {
        finite = finite && std::isfinite(x[k]);
        low = std::fmin(low, x[k]), high = std::fmax(high, x[k]);
      }
    }
    const NarrowScale s = finite ? narrow_scale(low, high) : NarrowScale{NAN, 0.f, 0};
    a.scale[r] = s.scale, a.zero[r] = s.zero;
    for (int64_t k = 0; k < a.n; ++k) {
      const float t = x[k] * s.inverse;
      const float held =
          std::fmin(std::fmax(t, static_cast<float>(-s.zero)), static_cast<float>(255 - s.zero));
      static_cast<uint8_t*>(a.out)[r * a.n + k] =
          static_cast<uint8_t>(static_cast<int32_t>(std::nearbyint(held)) + s.zero);
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kNarrow, Isa::kReference, narrow_reference_plan, narrow_reference_run},
};

}  // namespace

constinit const KernelTable kernels_narrow_reference{kEntries};

}  // namespace oar
