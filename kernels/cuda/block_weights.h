// Packed weights of matmul_blocks.h, as tensor cores read them.
#pragma once

#include "kernels/cuda/matmul_blocks.h"
#include "kernels/cuda/matmul_tensor.h"

namespace oar::cuda {

constexpr int kUnit64 = 64;

// What a group has beside its codes: a scale and, in the same number of bits above it, a minimum.
enum class Factor {
  kPower,       // e8m0
  kF16,         // f16
  kF16Pair,     // two f16, of which the minimum is added
  kInteger,     // an integer of 8 bits, times the row's f16
  kBytePair,    // two integers of 8 bits, times the row's two f16; the minimum is subtracted
  kNibblePair,  // the same of 4 bits
};
constexpr bool has_supers(Factor f) {
  return f == Factor::kInteger || f == Factor::kBytePair || f == Factor::kNibblePair;
}
constexpr bool has_minima(Factor f) {
  return f == Factor::kF16Pair || f == Factor::kBytePair || f == Factor::kNibblePair;
}
constexpr int group_bits(Factor f) {
  return f == Factor::kF16Pair ? 32 : f == Factor::kF16 || f == Factor::kBytePair ? 16 : 8;
}

// Words side by side, in one access.
template <int kWords>
OAR_DEVICE void load_words(const char* from, uint32_t (&to)[kWords]) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    const uint4 all = load_once(from);
    to[0] = all.x;
    to[1] = all.y;
    to[2] = all.z;
    to[3] = all.w;
  } else if constexpr (kWords == 2) {
    const uint2 both = load(reinterpret_cast<const uint2*>(from));
    to[0] = both.x;
    to[1] = both.y;
  } else {
    to[0] = load(reinterpret_cast<const uint32_t*>(from));
  }
}

// Of a lane's words that have kBits of each of its codes of 64 k: those of elements 2 j and 2 j + 1 of the
// eight of a row in half `half`, in the halves of a word.
template <int kBits>
OAR_DEVICE uint32_t bits_of(const uint32_t (&words)[kBits], int half, int row, int j) {
  const int bit = ((2 * half + row) * 4 + j) * kBits;
  return words[bit / 16] >> bit % 16 & ((1u << kBits) - 1) * 0x10001u;
}

// Of the lower bits, by the instruction.
OAR_DEVICE float f16_of(uint32_t bits) { return __half2float(__half_raw{static_cast<uint16_t>(bits)}); }

constexpr int kE2m1 = -1;
// The numbers of two codes as bf16, which has them exactly. kZero: the code of 0, or kE2m1.
template <int kZero>
OAR_DEVICE uint32_t numbers_of(uint32_t codes) {
  if constexpr (kZero == kE2m1) {
    return pack_bf16(to_f32(e2m1{static_cast<uint8_t>(codes)}),
                     to_f32(e2m1{static_cast<uint8_t>(codes >> 16)}));
  } else {
    // In the last bits of 128 a code is as much more.
    constexpr uint32_t k128 = 0x4300;
    const auto pair_of = [](uint32_t bits) {
      __nv_bfloat162 pair;
      memcpy(static_cast<void*>(&pair), &bits, sizeof pair);
      return pair;
    };
    const __nv_bfloat162 numbers =
        __hsub2(pair_of(codes | k128 * 0x10001u), pair_of((k128 + kZero) * 0x10001u));
    uint32_t bits;
    memcpy(&bits, &numbers, sizeof bits);
    return bits;
  }
}

// kLower, kUpper: bits of a code, those above the others by themselves.
template <int kLower, int kUpper, int kZero, int kGroup, Factor kFactor>
struct Blocks {
  static_assert(kGroup == 16 || kGroup == 32);
  static constexpr bool kMinima = has_minima(kFactor), kSupers = has_supers(kFactor), kHalves = kGroup == 16;
  static constexpr XOrder kOrder = kHalves ? XOrder::kHalves : XOrder::kAsItIs;
  static constexpr int kBlocks = 1, kSums = kMinima ? 32 / kGroup : 0;
  static constexpr int kLowerBits = kLower, kUpperBits = kUpper, kGroupElems = kGroup;
  static constexpr int kGroupBits = group_bits(kFactor), kPartBits = kMinima ? kGroupBits / 2 : kGroupBits;
  static constexpr int kScaleWords = kUnit64 / kGroup * kGroupBits / 16;  // of 64 k, rows g and g + 8
  static constexpr int kSuperBytes = kSupers ? kMinima ? 4 : 2 : 0;       // of a row
  struct Places {
    int64_t upper, scales, supers, bytes;
    OAR_HD constexpr explicit Places(int64_t K)
        : upper(K * kCodePanelRows * kLower / 8),
          scales(upper + K * kCodePanelRows * kUpper / 8),
          supers(scales + K / kUnit64 * (kCodePanelRows / 2) * 4 * kScaleWords),
          bytes(supers + K / 256 * kCodePanelRows * kSuperBytes) {}
  };
  static int64_t panel_bytes(int64_t K) { return Places(K).bytes; }

  template <int kLength>
  struct Part {
    static constexpr int kUnits = kLength / kUnit64;
    uint32_t lower[kUnits][kLower], upper[kUnits][kUpper > 0 ? kUpper : 1], groups[kUnits][kScaleWords];
    uint32_t supers[2];  // of rows g and g + 8

    OAR_DEVICE void load(const ProductRows& p, const ProductMatrix& matrix, int64_t n, int64_t k) {
      const Places places(p.K);
      const auto* panel = static_cast<const char*>(matrix.w) + n / kCodePanelRows * places.bytes;
      const int64_t unit = k / kUnit64;
      const int g = lane() / 4;
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        load_words(panel + ((unit + i) * kWarp + lane()) * 4 * kLower, lower[i]);
      if constexpr (kUpper > 0) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i)
          load_words(panel + places.upper + ((unit + i) * kWarp + lane()) * 4 * kUpper, upper[i]);
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i)
        load_words(panel + places.scales + ((unit + i) * 8 + g) * 4 * kScaleWords, groups[i]);
      const char* super = panel + places.supers + (k / 256 * 8 + g) * 2 * kSuperBytes;
      if constexpr (kSuperBytes == 4) {
        load_words(super, supers);
      } else if constexpr (kSuperBytes == 2) {
        uint32_t both[1];
        load_words(super, both);
        supers[0] = both[0] & 0xffffu;
        supers[1] = both[0] >> 16;
      }
    }

    // What group `which` of a row's 64 k has.
    OAR_DEVICE uint32_t group_of(int unit, int row, int which) const {
      const int bit = row * 16 * kScaleWords + which * kGroupBits;
      return groups[unit][bit / 32] >> bit % 32;
    }
    OAR_DEVICE float factor_of(int row, uint32_t group) const {
      const uint32_t scale = group & ((1u << kPartBits) - 1);
      if constexpr (kFactor == Factor::kPower) return to_f32(e8m0{static_cast<uint8_t>(scale)});
      else if constexpr (!kSupers) return f16_of(scale);
      else {
        const float super = f16_of(supers[row]);
        return super * static_cast<float>(kMinima ? static_cast<int>(scale)
                                                  : static_cast<int>(static_cast<int8_t>(scale)));
      }
    }
    OAR_DEVICE float minimum_of(int row, uint32_t group) const {
      const uint32_t minimum = group >> kPartBits & ((1u << kPartBits) - 1);
      if constexpr (!kSupers) return f16_of(minimum);
      else return -f16_of(supers[row] >> 16) * static_cast<float>(minimum);
    }
    // Elements 2 j and 2 j + 1 of the eight of a row, in half `half` of 64 k.
    OAR_DEVICE uint32_t pair_of(int unit, int half, int row, int j) const {
      uint32_t codes = bits_of(lower[unit], half, row, j);
      if constexpr (kUpper > 0) codes |= bits_of(upper[unit], half, row, j) << kLower;
      return numbers_of<kZero>(codes);
    }

    // x_sums(s): of x over group s of these 32 k, columns 2 t and 2 t + 1.
    template <class Sums>
    OAR_DEVICE void multiply(float (&acc)[4], int i, uint4 h, uint4 l, const Sums& x_sums) const {
      const int unit = i / 2, half = i % 2;
      uint32_t a[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[0][j] = pair_of(unit, half, 0, j);
        a[1][j] = pair_of(unit, half, 1, j);
      }
      float sum[4] = {};
      mma_bf16(sum, {a[0][0], a[1][0], a[0][1], a[1][1]}, {l.x, l.y});
      mma_bf16(sum, {a[0][0], a[1][0], a[0][1], a[1][1]}, {h.x, h.y});
      if constexpr (kHalves) {
        add(acc, sum, i, 0, x_sums);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] = 0.f;
      }
      mma_bf16(sum, {a[0][2], a[1][2], a[0][3], a[1][3]}, {l.z, l.w});
      mma_bf16(sum, {a[0][2], a[1][2], a[0][3], a[1][3]}, {h.z, h.w});
      add(acc, sum, i, kHalves ? 1 : 0, x_sums);
    }
    // The sums of group s of these 32 k.
    template <class Sums>
    OAR_DEVICE void add(float (&acc)[4], const float (&sum)[4], int i, int s, const Sums& x_sums) const {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint32_t group = group_of(i / 2, row, i % 2 * (32 / kGroup) + s);
        const float factor = factor_of(row, group);
        acc[2 * row] = __fmaf_rn(sum[2 * row], factor, acc[2 * row]);
        acc[2 * row + 1] = __fmaf_rn(sum[2 * row + 1], factor, acc[2 * row + 1]);
        if constexpr (kMinima) {
          const float minimum = minimum_of(row, group);
          const float2 x = x_sums(s);
          acc[2 * row] = __fmaf_rn(minimum, x.x, acc[2 * row]);
          acc[2 * row + 1] = __fmaf_rn(minimum, x.y, acc[2 * row + 1]);
        }
      }
    }
  };
};

}  // namespace oar::cuda
