// What the NEON Archs of int8_core.h share, everything but the dot product itself, and that with sdot. Four
// rows at a time.
#pragma once

#include <arm_neon.h>

#include "kernels/cpu/matmul/int8_core.h"

namespace oar {
namespace {

struct NeonInt8Base {
  using WReg = int8x16_t;
  using XReg = int8x16_t;
  using Dot = int32x4_t;
  using Sum = float32x4_t;
  static constexpr int kLanes = 4, kTileVectors = 4, kTileTokens = 2, kGemvVectors = 4;
  static constexpr bool kBiased = false;
  static WReg load_w(const char* line) { return vld1q_s8(reinterpret_cast<const int8_t*>(line)); }
  static XReg load_x(const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static Dot start(int32_t) { return vdupq_n_s32(0); }
  static Sum load(const float* p) { return vld1q_f32(p); }
  static Sum flush(Sum s, Dot d, Sum scale_w, float scale_x) {
    return vfmaq_f32(s, vcvtq_f32_s32(d), vmulq_n_f32(scale_w, scale_x));
  }
  static Sum add(Sum a, Sum b) { return vaddq_f32(a, b); }
  static void store(float* p, Sum s) { vst1q_f32(p, s); }
};

#if defined(__ARM_FEATURE_DOTPROD)
struct NeonDotInt8 : NeonInt8Base {
  static Dot dot(Dot d, WReg w, XReg x) { return vdotq_s32(d, w, x); }
};
#endif

}  // namespace
}  // namespace oar
