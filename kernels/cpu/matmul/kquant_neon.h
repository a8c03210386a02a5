// Super-block matmul with NEON, weights in place: four rows side by side, up to four tokens that share the
// unpacking of a row. For more tokens a piece of rows is unpacked to the worker's scratch, a byte for each
// level, and multiplied there.
//
// A register holds the levels of 16 k. An Arch multiplies those of 32 k with activations and with the groups'
// scales and adds all of it up in four 32-bit lanes:
//
//   struct Arch {
//     using Scales;  static Scales scales(int16x8_t);  // of eight groups
//     // kFirst: the group of 16 k that u begins with.
//     template <class F, int kFirst>
//     static int32x4_t add(int32x4_t sum, const int8x16_t u[2], const int8_t* x, const Scales* scales);
//   };
//
// Offsets of levels leave the same sums as scale * offset times the activations' sums of a group. All
// integers, so the values are those of the other kernels (kquant_format.h).
//
// Of 32 registers four tokens take 4 for sums, 4 for scales, 2 for levels, 2 for activations and 2 to 4 for
// products. A handful is left for masks and the bytes that levels are cut from.
#pragma once

#include <arm_neon.h>

#include "kernels/cpu/matmul/kquant_token.h"
#include "kernels/cpu/matmul/matmul_prefetch.h"
#include "kernels/cpu/unrolled.h"

namespace oar {
namespace {

// Groups that a format's scales are for, and registers of eight of them.
template <class F>
inline constexpr int kGroupsOf = static_cast<int>(kSuperBlock) / F::kGroup;
template <class F>
inline constexpr int kPartsOf = kGroupsOf<F> / 8;

inline uint8x16_t bits(uint8x16_t v, uint8_t mask) { return vandq_u8(v, vdupq_n_u8(mask)); }
// Left by kLeft bits, or right where that is negative.
template <int kLeft>
inline uint8x16_t shifted(uint8x16_t v) {
  if constexpr (kLeft > 0) return vshlq_n_u8(v, kLeft);
  if constexpr (kLeft < 0) return vshrq_n_u8(v, -kLeft);
  return v;
}
template <bool kHigh>
inline uint8x16_t nibbles(const uint8_t* q) {
  if constexpr (kHigh) return vshrq_n_u8(vld1q_u8(q), 4);
  return bits(vld1q_u8(q), 15);
}
template <int kPlace>  // 0 .. 3
inline uint8x16_t pairs(const uint8_t* q) {
  if constexpr (kPlace == 3) return vshrq_n_u8(vld1q_u8(q), 6);
  return bits(shifted<-2 * kPlace>(vld1q_u8(q)), 3);
}
// `low`, with the bits of kMask taken from `high` moved left by kLeft.
template <int kMask, int kLeft>
inline int8x16_t with_bits(uint8x16_t low, uint8x16_t high) {
  return vreinterpretq_s8_u8(vbslq_u8(vdupq_n_u8(kMask), shifted<kLeft>(high), low));
}

inline int16x8_t widen(uint8x8_t v) { return vreinterpretq_s16_u16(vmovl_u8(v)); }
inline int16x8_t widen(uint32_t lo, uint32_t hi) { return widen(vcreate_u8(uint64_t{hi} << 32 | lo)); }
inline void widen(int8x16_t v, int16x8_t out[2]) {
  out[0] = vmovl_s8(vget_low_s8(v));
  out[1] = vmovl_high_s8(v);
}
template <class T>
inline T load_as(const void* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// The formats: scales(), mins() and the levels of group g of 16 k.
template <class F>
struct K4Neon : F {
  using Block = typename F::Block;
  static constexpr int kGroup = 32;
  static void scales(const Block& b, int16x8_t out[1]) {
    const PackedK4 p(b.scales);
    out[0] = widen(p.scale_lo, p.scale_hi);
  }
  static void mins(const Block& b, int16x8_t out[1]) {
    const PackedK4 p(b.scales);
    out[0] = widen(p.min_lo, p.min_hi);
  }
};

struct Q4KNeon : K4Neon<Q4K> {
  template <int g>
  static int8x16_t levels(const Block& b) {
    return vreinterpretq_s8_u8(nibbles<g / 2 % 2 == 1>(b.q + g / 4 * 32 + g % 2 * 16));
  }
};

struct Q5KNeon : K4Neon<Q5K> {
  template <int g>
  static int8x16_t levels(const Block& b) {
    const uint8x16_t low = nibbles<g / 2 % 2 == 1>(b.q + g / 4 * 32 + g % 2 * 16);
    return with_bits<0x10, 4 - g / 2>(low, vld1q_u8(b.high + g % 2 * 16));
  }
};

struct Q6KNeon : Q6K {
  static constexpr int kGroup = 16;
  static void scales(const Block& b, int16x8_t out[2]) { widen(vld1q_s8(b.scales), out); }
  template <int g>
  static int8x16_t levels(const Block& b) {
    const uint8x16_t low = nibbles<g / 4 % 2 == 1>(b.low + g / 8 * 64 + g % 4 * 16);
    return with_bits<0x30, 4 - g / 2 % 4 * 2>(low, vld1q_u8(b.high + g / 8 * 32 + g % 2 * 16));
  }
};

struct Q3KNeon : Q3K {
  static constexpr int kGroup = 16;
  static void scales(const Block& b, int16x8_t out[2]) {
    const uint8x8_t low = load_as<uint8x8_t>(b.scales);
    const uint32x4_t top = vshlq_u32(vdupq_n_u32(load_as<uint32_t>(b.scales + 8)), int32x4_t{0, -2, -4, -6});
    const uint8x16_t bottom = vcombine_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8(low, 4));
    const uint8x16_t all = vorrq_u8(bottom, vshlq_n_u8(bits(vreinterpretq_u8_u32(top), 3), 4));
    widen(vsubq_s8(vreinterpretq_s8_u8(all), vdupq_n_s8(32)), out);
  }
  template <int g>
  static int8x16_t levels(const Block& b) {
    const uint8x16_t low = pairs<g / 2 % 4>(b.low + g / 8 * 32 + g % 2 * 16);
    return with_bits<4, 2 - g / 2>(low, vld1q_u8(b.high + g % 2 * 16));
  }
};

struct Q2KNeon : Q2K {
  static constexpr int kGroup = 16;
  static void scales(const Block& b, int16x8_t out[2]) {
    widen(vreinterpretq_s8_u8(nibbles<false>(b.scales)), out);
  }
  static void mins(const Block& b, int16x8_t out[2]) {
    widen(vreinterpretq_s8_u8(nibbles<true>(b.scales)), out);
  }
  template <int g>
  static int8x16_t levels(const Block& b) {
    return vreinterpretq_s8_u8(pairs<g / 2 % 4>(b.q + g / 8 * 32 + g % 2 * 16));
  }
};

// Signed: the table's own levels.
struct IQ4XSNeon : IQ4XS {
  static constexpr int kGroup = 32;
  static constexpr int kOffset = 0;
  static void scales(const Block& b, int16x8_t out[1]) {
    const uint8x8_t two = vcreate_u8(load_as<uint32_t>(b.scales_low));
    const uint8x8_t low = vshl_u8(vzip1_u8(two, two), int8x8_t{0, -4, 0, -4, 0, -4, 0, -4});
    const int16x8_t top = vreinterpretq_s16_u16(
        vshlq_u16(vdupq_n_u16(b.scales_high), int16x8_t{0, -2, -4, -6, -8, -10, -12, -14}));
    const int16x8_t bottom = widen(vand_u8(low, vdup_n_u8(15)));
    out[0] = vsubq_s16(vorrq_s16(bottom, vshlq_n_s16(vandq_s16(top, vdupq_n_s16(3)), 4)), vdupq_n_s16(32));
  }
  template <int g>
  static int8x16_t levels(const Block& b) {
    const int8x16_t table = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return vqtbl1q_s8(table, nibbles<g % 2 == 1>(b.q + g / 2 * 16));
  }
};

// A super-block unpacked; what reads it is a format like the others.
template <class F>
struct Unpacked : F {
  static constexpr int kParts = kPartsOf<F>;
  struct alignas(16) Block {
    int8_t level[kSuperBlock];
    int16_t scale[8 * kParts], min[8 * kParts];
    f16 d, dmin;
  };
  static void scales(const Block& b, int16x8_t out[kParts]) {
    for (int i = 0; i < kParts; ++i) out[i] = vld1q_s16(b.scale + 8 * i);
  }
  static void mins(const Block& b, int16x8_t out[kParts]) {
    for (int i = 0; i < kParts; ++i) out[i] = vld1q_s16(b.min + 8 * i);
  }
  template <int g>
  static int8x16_t levels(const Block& b) {
    return vld1q_s8(b.level + 16 * g);
  }

  static void unpack(const typename F::Block& from, Block& to) {
    int16x8_t parts[kParts];
    F::scales(from, parts);
    for (int i = 0; i < kParts; ++i) vst1q_s16(to.scale + 8 * i, parts[i]);
    to.d = from.d;
    if constexpr (F::kMins) {
      F::mins(from, parts);
      for (int i = 0; i < kParts; ++i) vst1q_s16(to.min + 8 * i, parts[i]);
      to.dmin = from.dmin;
    }
    unrolled<kSuperGroups>([&](auto g)
                               OAR_INLINE_BODY { vst1q_s8(to.level + 16 * g, F::template levels<g>(from)); });
  }
};

// sum of a * b, spread over four lanes.
template <int kParts>
inline int32x4_t dot_parts(const int16x8_t a[kParts], const int16x8_t b[kParts]) {
  int32x4_t sum = vmull_s16(vget_low_s16(a[0]), vget_low_s16(b[0]));
  sum = vmlal_high_s16(sum, a[0], b[0]);
  if constexpr (kParts == 2) {
    sum = vmlal_s16(sum, vget_low_s16(a[1]), vget_low_s16(b[1]));
    sum = vmlal_high_s16(sum, a[1], b[1]);
  }
  return sum;
}

// F: one of the formats above.
template <class F, class Arch>
struct KNeonCore {
  using Bytes = Unpacked<F>;
  static constexpr int kParts = kPartsOf<F>;
  static constexpr int64_t kRows = 4, kTokens = 4;
  static constexpr int64_t kPieceBytes = 256 << 10;  // of unpacked rows, which stay in the second-level cache

  static int64_t x_bytes(int64_t K) { return KToken::bytes(K); }
  static int64_t w_bytes(const MatmulView& v) { return v.format.stride(v.K); }
  static int64_t unpacked_bytes(int64_t K) {  // of a row
    return K / kSuperBlock * static_cast<int64_t>(sizeof(typename Bytes::Block));
  }
  static int64_t piece_rows(int64_t K) {
    return std::max(kRows, kPieceBytes / unpacked_bytes(K) / kRows * kRows);
  }
  static int64_t scratch_bytes(const MatmulView& v) {
    return v.P <= kTokens ? 0 : piece_rows(v.K) * unpacked_bytes(v.K);
  }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    return default_chunk_rows(v, total_rows, w_bytes(v), kRows);
  }
  static void pack(void* run, const PackTask& p) { pack_tokens(run, p); }

  static void panel(const PanelTask& p) {
    const int64_t blocks = p.K / kSuperBlock;
    const auto* w = static_cast<const typename F::Block*>(p.w);
    if (p.tokens <= kTokens) {
      for (int64_t row = p.row_begin; row < p.row_end; row += kRows) some<F>(p, w + row * blocks, row, 0);
      return;
    }
    const int64_t step = piece_rows(p.K);
    auto* piece = static_cast<typename Bytes::Block*>(p.scratch);
    for (int64_t begin = p.row_begin; begin < p.row_end; begin += step) {
      const int64_t end = std::min(begin + step, p.row_end);
      for (int64_t i = 0; i < (end - begin) * blocks; ++i) Bytes::unpack(w[begin * blocks + i], piece[i]);
      // The next piece, of this chunk or most likely of this worker's next one.
      const int64_t tiles = ((end - begin + kRows - 1) / kRows) * ((p.tokens + kTokens - 1) / kTokens);
      const int64_t next = std::min(end + step, p.rows) - end;
      Ahead ahead(reinterpret_cast<const char*>(w + end * blocks),
                  next * blocks * static_cast<int64_t>(sizeof(typename F::Block)), tiles);
      for (int64_t t = 0; t < p.tokens; t += kTokens) {
        for (int64_t row = begin; row < end; row += kRows) {
          ahead.fetch();
          some<Bytes>(p, piece + (row - begin) * blocks, row, t);
        }
      }
    }
  }

  // kRows rows from `row`, which begin at w, and kTokens tokens from t, or as many as there are.
  template <class Read>
  static void some(const PanelTask& p, const typename Read::Block* w, int64_t row, int64_t t) {
    switch (std::min(kTokens, p.tokens - t)) {
      case 1: return rows<Read, 1>(p, w, row, t);
      case 2: return rows<Read, 2>(p, w, row, t);
      case 3: return rows<Read, 3>(p, w, row, t);
      default: return rows<Read, kTokens>(p, w, row, t);
    }
  }

  template <class Read, int N>
  [[gnu::noinline]] static void rows(const PanelTask& p, const typename Read::Block* w, int64_t row,
                                     int64_t t) {
    using Block = typename Read::Block;
    const int64_t blocks = p.K / kSuperBlock, n = std::min(kRows, p.row_end - row);
    const char* x[N];
    float32x4_t sum[N];
    for (int j = 0; j < N; ++j) {
      x[j] = static_cast<const char*>(p.x) + (t + j) * x_bytes(p.K);
      sum[j] = vdupq_n_f32(0.f);
    }
    int32_t S[N][kRows] = {}, M[N][kRows] = {};
    uint16_t d[kRows] = {}, dmin[kRows] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t r = 0; r < n; ++r) {
        // The activations of one token stay in registers for all rows. Those of more do not fit, and g++ 12
        // would copy them to the stack first.
        if constexpr (N > 1) asm volatile("" : : : "memory");
        const Block& block = w[r * blocks + b];
        if constexpr (std::is_same_v<Read, F>) {
          for (size_t line = 0; line < sizeof(Block); line += 64) {  // past the end a prefetch does nothing
            __builtin_prefetch(reinterpret_cast<const char*>(&block + kRows * blocks) + line, 0, 2);
          }
        }
        int16x8_t scales[kParts], mins[kParts];
        Read::scales(block, scales);
        d[r] = block.d.bits;
        if constexpr (F::kMins) {
          Read::mins(block, mins);
          dmin[r] = block.dmin.bits;
        }
        typename Arch::Scales factors[kParts];
        for (int i = 0; i < kParts; ++i) factors[i] = Arch::scales(scales[i]);
        int32x4_t acc[N];
        unrolled<N>([&](auto j) OAR_INLINE_BODY { acc[j] = vdupq_n_s32(0); });
        unrolled<8>([&](auto v) OAR_INLINE_BODY {
          const int8x16_t u[2] = {Read::template levels<2 * v>(block),
                                  Read::template levels<2 * v + 1>(block)};
          unrolled<N>([&](auto j) OAR_INLINE_BODY {
            acc[j] = Arch::template add<F, 2 * v>(acc[j], u, KToken::levels(x[j], b) + 32 * v, factors);
          });
        });
        unrolled<N>([&](auto j) OAR_INLINE_BODY {
          int16x8_t sums[kParts];
          token_sums(KToken::sums(x[j], p.K, b), sums);
          if constexpr (F::kOffset != 0) {
            acc[j] = vmlsq_n_s32(acc[j], dot_parts<kParts>(scales, sums), F::kOffset);
          }
          S[j][r] = vaddvq_s32(acc[j]);
          if constexpr (F::kMins) M[j][r] = vaddvq_s32(dot_parts<kParts>(mins, sums));
        });
      }
      const auto floats = [](const uint16_t* v) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(v))); };
      for (int j = 0; j < N; ++j) {
        float32x4_t product = vmulq_f32(floats(d), vcvtq_f32_s32(vld1q_s32(S[j])));
        if constexpr (F::kMins) product = vfmsq_f32(product, floats(dmin), vcvtq_f32_s32(vld1q_s32(M[j])));
        sum[j] = vfmaq_n_f32(sum[j], product, KToken::scale(x[j], p.K, b));
      }
    }
    for (int j = 0; j < N; ++j) {
      float v[kRows];
      vst1q_f32(v, sum[j]);
      const int64_t at = (t + j) * p.ldo + row;
      for (int64_t r = 0; r < n; ++r) {
        if (p.bias != nullptr) v[r] += p.bias[row + r];
        if (p.residual != nullptr) v[r] += p.residual[at + r];
        p.out[at + r] = v[r];
      }
    }
  }

  // The activations' sums of the format's groups; of 32 k they are at most 32 * 127.
  static void token_sums(const char* of_16, int16x8_t out[kParts]) {
    const auto* s = reinterpret_cast<const int16_t*>(of_16);
    if constexpr (kParts == 1) {
      out[0] = vpaddq_s16(vld1q_s16(s), vld1q_s16(s + 8));
    } else {
      out[0] = vld1q_s16(s);
      out[1] = vld1q_s16(s + 8);
    }
  }
};

template <class Arch>
constexpr auto kquant_kernels(const char* level = nullptr) {
  const auto of = [level]<class... Types>() constexpr {
    return join(MatmulDriver<KNeonCore<Types, Arch>>::kernels(Types::kFormat, Isa::kNeon, level)...);
  };
  return of.template operator()<Q4KNeon, Q5KNeon, Q6KNeon, Q3KNeon, Q2KNeon, IQ4XSNeon>();
}

}  // namespace
}  // namespace oar
