// Super-block matmul (kquant_neon.h) with sdot.
#include "kernels/cpu/matmul/kquant_neon.h"

namespace oar {
namespace {

// Levels are at most 127 in magnitude, signed or not, and so are sdot's operands.
struct NeonKDots {
  struct Scales {
    int32x4_t lo, hi;
  };
  static Scales scales(int16x8_t eight) { return {vmovl_s16(vget_low_s16(eight)), vmovl_high_s16(eight)}; }

  template <int g>
  static int32x4_t scaled(int32x4_t sum, int32x4_t dots, const Scales* scales) {
    const Scales& s = scales[g / 8];
    return vmlaq_laneq_s32(sum, dots, g % 8 < 4 ? s.lo : s.hi, g % 4);
  }
  template <class F, int kFirst>
  static int32x4_t add(int32x4_t sum, const int8x16_t u[2], const int8_t* x, const Scales* scales) {
    constexpr int g = kFirst * 16 / F::kGroup;
    const int32x4_t zero = vdupq_n_s32(0), dots = vdotq_s32(zero, u[0], vld1q_s8(x));
    const int8x16_t x1 = vld1q_s8(x + 16);
    if constexpr (F::kGroup == 32) return scaled<g>(sum, vdotq_s32(dots, u[1], x1), scales);
    return scaled<g + 1>(scaled<g>(sum, dots, scales), vdotq_s32(zero, u[1], x1), scales);
  }
};

constexpr auto kEntries = kquant_kernels<NeonKDots>("neon_dot");

}  // namespace

constinit const KernelTable kernels_kquant_neon_dot{kEntries, &has_neon_dot};

}  // namespace oar
