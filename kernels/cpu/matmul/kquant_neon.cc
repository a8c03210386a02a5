// Super-block matmul (kquant_neon.h) for every aarch64 processor: products of bytes are added in 16 bits.
#include "kernels/cpu/matmul/kquant_neon.h"

namespace oar {
namespace {

// A lane has room for four products of a level and an activation, at most 4 * 63 * 127 = 32004, but for two
// of iq4_xs's, 2 * 127 * 127 = 32258.
struct NeonKProducts {
  using Scales = int16x8_t;
  static Scales scales(int16x8_t eight) { return eight; }

  static int16x8_t products(int8x16_t u, int8x16_t x) {
    return vmlal_high_s8(vmull_s8(vget_low_s8(u), vget_low_s8(x)), u, x);
  }
  // Lanes 0 .. 3 times the scale of group a, lanes 4 .. 7 times that of group b.
  template <int a, int b>
  static int32x4_t scaled(int32x4_t sum, int16x8_t products, Scales s) {
    return vmlal_high_laneq_s16(vmlal_laneq_s16(sum, vget_low_s16(products), s, a % 8), products, s, b % 8);
  }
  template <class F, int kFirst>
  static int32x4_t add(int32x4_t sum, const int8x16_t u[2], const int8_t* x, const Scales* scales) {
    constexpr int g = kFirst * 16 / F::kGroup;
    const int8x16_t x1 = vld1q_s8(x + 16);
    const int16x8_t p = products(u[0], vld1q_s8(x));
    if constexpr (F::kWide) {
      return scaled<g, g>(scaled<g, g>(sum, p, scales[0]), products(u[1], x1), scales[0]);
    } else if constexpr (F::kGroup == 32) {
      const int16x8_t all = vmlal_high_s8(vmlal_s8(p, vget_low_s8(u[1]), vget_low_s8(x1)), u[1], x1);
      return scaled<g, g>(sum, all, scales[0]);
    } else {
      return scaled<g, g + 1>(sum, vpaddq_s16(p, products(u[1], x1)), scales[g / 8]);
    }
  }
};

constexpr auto kEntries = kquant_kernels<NeonKProducts>();

}  // namespace

constinit const KernelTable kernels_kquant_neon{kEntries};

}  // namespace oar
