// Matmul with NEON, the baseline of aarch64: every float weight becomes f32 and is multiplied with FMA;
// integers by widening multiplies, unless the processor has sdot (matmul_neon_dot.cc).
#include "kernels/cpu/matmul/int4_neon.h"
#include "kernels/cpu/matmul/matmul_decode.h"
#include "kernels/cpu/matmul/matmul_f8.h"

namespace oar {
namespace {

struct Eight {
  float32x4_t lo, hi;
};

inline Eight widen(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline Eight widen(const f16* p) {
  const float16x8_t v = vreinterpretq_f16_u16(vld1q_u16(&p->bits));
  return {vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)};
}
inline Eight widen(const bf16* p) {
  const uint16x8_t v = vld1q_u16(&p->bits);
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(v), 16)),
          vreinterpretq_f32_u32(vshll_high_n_u16(v, 16))};
}

template <class Weight>
struct NeonArch {
  using W = Weight;
  using X = float;
  using WReg = Eight;
  using XReg = Eight;
  using Acc = Eight;
  // 4 x 3 accumulators of two registers, three activations and a weight: exactly the 32 registers.
  static constexpr int kStep = 8, kTileRows = 4, kTileTokens = 3, kGemvRows = 4;
  static Acc zero() { return {vdupq_n_f32(0.f), vdupq_n_f32(0.f)}; }
  static WReg load_w(const W* p) { return widen(p); }
  static XReg load_x(const X* p) { return widen(p); }
  static Acc dot(Acc a, WReg w, XReg x) { return {vfmaq_f32(a.lo, w.lo, x.lo), vfmaq_f32(a.hi, w.hi, x.hi)}; }
  static void reduce4(Acc a, Acc b, Acc c, Acc d, float out[4]) {
    const float32x4_t ab = vpaddq_f32(vaddq_f32(a.lo, a.hi), vaddq_f32(b.lo, b.hi));
    const float32x4_t cd = vpaddq_f32(vaddq_f32(c.lo, c.hi), vaddq_f32(d.lo, d.hi));
    vst1q_f32(out, vpaddq_f32(ab, cd));
  }
  static void pack(X* dst, const float* src, int64_t n) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
    for (; n % kStep != 0; ++n) dst[n] = 0.f;
  }
};

// Through f16, which knows the exponents of both: e5m2 is its high byte, e4m3 is 2^8 of it but for NaN.
template <class T>
struct NeonWiden {
  using Number = float;
  using Reg = Eight;
  static constexpr bool kE4m3 = std::is_same_v<T, e4m3>;
  static constexpr float kUnit = kE4m3 ? 256 : 1;
  static constexpr int kSweeps = 1;
  static Reg plain(const uint8_t* p) {
    uint16x8_t v = vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p))));
    if constexpr (kE4m3) {
      const uint16x8_t nan = vdupq_n_u16(0x3f80);
      v = vandq_u16(vshlq_n_u16(v, 7), vdupq_n_u16(0xbf80));
      const uint16x8_t is_nan = vceqq_u16(vandq_u16(v, nan), nan);
      v = vorrq_u16(v, vandq_u16(is_nan, vdupq_n_u16(0x7e00)));
    } else {
      v = vshlq_n_u16(v, 8);
    }
    const float16x8_t h = vreinterpretq_f16_u16(v);
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
  }
  static Reg scaled(const uint8_t* p, float d) {
    const Eight v = plain(p);
    return {vmulq_n_f32(v.lo, d), vmulq_n_f32(v.hi, d)};
  }
  static void store(float* p, Reg v) {
    vst1q_f32(p, v.lo);
    vst1q_f32(p + 4, v.hi);
  }
};

struct NeonInt8 : NeonInt8Base {
  // Products of bytes fit 16 bits; pairs of them are joined in 32.
  static Dot dot(Dot d, WReg w, XReg x) {
    const int32x4_t lo = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    const int32x4_t hi = vpaddlq_s16(vmull_high_s8(w, x));
    return vaddq_s32(d, vpaddq_s32(lo, hi));
  }
};

using F32Core = RowDotCore<NeonArch<float>>;
using F16Core = RowDotCore<NeonArch<f16>>;
using Bf16Core = RowDotCore<NeonArch<bf16>>;

constexpr auto kEntries =
    join(MatmulDriver<F32Core>::kernels("f32", Isa::kNeon), MatmulDriver<F16Core>::kernels("f16", Isa::kNeon),
         MatmulDriver<Bf16Core>::kernels("bf16", Isa::kNeon),
         f8_kernels<NeonArch<float>, NeonWiden>(Isa::kNeon), int8_kernels<Int8Core<NeonInt8>>(Isa::kNeon),
         int4_kernels<NeonInt4<NeonInt8>, Int8Core<NeonInt8>>(Isa::kNeon),
         MatmulDriver<DecodeCore<F32Core>>::kernels(nullptr, Isa::kNeon));

}  // namespace

constinit const KernelTable kernels_matmul_neon{kEntries};

}  // namespace oar
