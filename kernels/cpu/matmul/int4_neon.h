// The Arch of int4_core.h with NEON, over the Int8 Arch that has the dot product. One lane.
#pragma once

#include "kernels/cpu/matmul/int4_core.h"
#include "kernels/cpu/matmul/int8_neon.h"

namespace oar {
namespace {

template <class Int8Arch>
struct NeonInt4 {
  using Int8 = Int8Arch;
  using Bytes = int8x16_t;
  using X = int8x16_t;
  using Dot = int32x4_t;
  static constexpr int kParts = 4, kStreams = 1, kTokens = 2;

  struct Codebook {
    int16x8_t low, high;
  };
  static Codebook codebook(const int16_t* c) { return {vld1q_s16(c), vld1q_s16(c + 8)}; }
  // The doubling multiply gives (256 m * c + 2^14) >> 15.
  static Bytes table(const Codebook& c, const char* m, int part, int j) {
    const int16x8_t word = vdupq_n_s16(static_cast<int16_t>(static_cast<int8_t>(m[4 * part + j]) * 256));
    return vcombine_s8(vmovn_s16(vqrdmulhq_s16(word, c.low)), vmovn_s16(vqrdmulhq_s16(word, c.high)));
  }
  // Products modulo 2^16, of which the high byte is wanted.
  template <bool kBiased>
  static Bytes table(const Codebook& c, const char* m, const char* o, int part, int j) {
    const uint16x8_t word = vdupq_n_u16(static_cast<uint8_t>(m[4 * part + j]));
    const uint8x8_t low = vshrn_n_u16(vmulq_u16(word, vreinterpretq_u16_s16(c.low)), 8);
    const uint8x8_t high = vshrn_n_u16(vmulq_u16(word, vreinterpretq_u16_s16(c.high)), 8);
    return vaddq_s8(vreinterpretq_s8_u8(vcombine_u8(low, high)),
                    vdupq_n_s8(static_cast<int8_t>(o[4 * part + j])));
  }
  static Bytes biased(Bytes table) { return table; }
  static Bytes load(const char* p) { return vld1q_s8(reinterpret_cast<const int8_t*>(p)); }
  static void store(char* p, Bytes v) { vst1q_s8(reinterpret_cast<int8_t*>(p), v); }
  static Bytes low(Bytes v) { return vandq_s8(v, vdupq_n_s8(15)); }
  static Bytes high(Bytes v) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(v), 4)); }
  static Bytes lookup(Bytes table, Bytes levels) { return vqtbl1q_s8(table, vreinterpretq_u8_s8(levels)); }
  static X load_x(const int8_t* x) { return vld1q_s8(x); }
  static Dot zero() { return vdupq_n_s32(0); }
  static Dot dot(Dot d, Bytes w, X x) { return Int8::dot(d, w, x); }
  static void transpose(Bytes v[4]) {
    int32x4_t m[4];
    for (int i = 0; i < 4; ++i) m[i] = vreinterpretq_s32_s8(v[i]);
    const int32x4_t a = vzip1q_s32(m[0], m[1]), b = vzip2q_s32(m[0], m[1]);
    const int32x4_t c = vzip1q_s32(m[2], m[3]), d = vzip2q_s32(m[2], m[3]);
    const auto join = [](int32x4_t x, int32x4_t y, bool upper) {
      const int64x2_t p = vreinterpretq_s64_s32(x), q = vreinterpretq_s64_s32(y);
      return vreinterpretq_s8_s64(upper ? vzip2q_s64(p, q) : vzip1q_s64(p, q));
    };
    v[0] = join(a, c, false);
    v[1] = join(a, c, true);
    v[2] = join(b, d, false);
    v[3] = join(b, d, true);
  }
  static typename Int8::Dot total(const Dot d[4], int32_t /*start*/) {
    return vpaddq_s32(vpaddq_s32(d[0], d[1]), vpaddq_s32(d[2], d[3]));
  }
};

}  // namespace
}  // namespace oar
