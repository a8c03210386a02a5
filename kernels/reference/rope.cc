// Rotary position embedding, scalar and in double throughout.
#include "kernels/rope.h"

#include <cmath>

#include "kernels/kernel_list.h"

namespace oar {
namespace {

void rope_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const RopeArgs*>(args);
  *out = {1, {a.T}};
}

// One head of one token: normalizes when asked, then rotates pair after pair. x may be out: each pair is read
// whole before it is written, and the scale is known before the first write.
void rope_head(const RopeArgs& a, const float* x, double position, float* out) {
  double scale = 1.0;
  if (a.norm_w != nullptr) {
    double squares = 0;
    for (int64_t i = 0; i < a.D; ++i) squares += static_cast<double>(x[i]) * x[i];
    scale = 1.0 / std::sqrt(squares / static_cast<double>(a.D) + a.norm_eps);
  }
  auto at = [&](int64_t i) {
    return a.norm_w != nullptr ? x[i] * scale * a.norm_w[i] : static_cast<double>(x[i]);
  };
  const int64_t half = a.rot_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const int64_t i0 = a.interleaved != 0 ? 2 * i : i, i1 = a.interleaved != 0 ? 2 * i + 1 : i + half;
    const double angle = position * static_cast<double>(a.inv_freq[i]);
    const double c = std::cos(angle) * a.mscale, s = std::sin(angle) * a.mscale;
    const double x0 = at(i0), x1 = at(i1);
    out[i0] = static_cast<float>(x0 * c - x1 * s);
    out[i1] = static_cast<float>(x1 * c + x0 * s);
  }
  for (int64_t i = a.rot_dim; i < a.D; ++i) out[i] = static_cast<float>(at(i));
}

void rope_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const RopeArgs*>(args);
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t h = 0; h < a.heads; ++h) {
      rope_head(a, a.x + t * a.ldx + h * a.step_of_x(), a.positions[t],
                a.out + t * a.ldo + h * a.step_of_out());
    }
  }
}

constexpr KernelEntry kEntries[] = {
    {KernelFamily::kRope, Isa::kReference, rope_plan, rope_run},
};

}  // namespace

constinit const KernelTable kernels_rope_reference{kEntries};

}  // namespace oar
