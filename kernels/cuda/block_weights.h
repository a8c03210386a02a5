// Packed weights of matmul_blocks.h, as tensor cores read them.
#pragma once

#include "kernels/cuda/matmul_blocks.h"
#include "kernels/cuda/matmul_tensor.h"

namespace oar::cuda {

constexpr int kUnit64 = 64;

enum class Number { kUnsigned, kMinus32, kE2m1 };
enum class Factor { kSuperMinimum, kSuper, kPower };  // what a group's byte is, and a super factor

// The number of a code, which bf16 has exactly.
template <Number kNumber>
OAR_DEVICE float number_of(uint32_t code) {
  if constexpr (kNumber == Number::kE2m1) return to_f32(e2m1{static_cast<uint8_t>(code)});
  else return static_cast<float>(static_cast<int>(code) - (kNumber == Number::kMinus32 ? 32 : 0));
}

template <Number kNumber, int kUpper, int kGroup, Factor kFactor>
struct Blocks {
  static constexpr bool kMinima = kFactor == Factor::kSuperMinimum, kHalves = kGroup == 16;
  static constexpr XOrder kOrder = kHalves ? XOrder::kHalves : XOrder::kAsItIs;
  static constexpr int kBlocks = 1, kUpperBits = kUpper, kGroupElems = kGroup;
  static constexpr bool kSupers = kMinima || kFactor == Factor::kSuper;
  static_assert(kUpper == 0 || kUpper == 2, "bits above four");
  static constexpr int kScaleWords = kMinima || kGroup == 16 ? 2 : 1;  // of 64 k, rows g and g + 8
  static constexpr int kScaleBytes = kScaleWords * 4 * kCodePanelRows / 2, kSuperBytes = kMinima ? 64 : 32;
  struct Places {
    int64_t upper, scales, supers, bytes;
    OAR_HD constexpr explicit Places(int64_t K)
        : upper(K * kCodePanelRows / 2),
          scales(upper + K * kCodePanelRows * kUpper / 8),
          supers(scales + K / kUnit64 * kScaleBytes),
          bytes(supers + (kSupers ? K / 256 * kSuperBytes : 0)) {}
  };
  static int64_t panel_bytes(int64_t K) { return Places(K).bytes; }

  template <int kLength>
  struct Part {
    static constexpr int kUnits = kLength / kUnit64;
    uint4 words[kUnits];
    uint32_t upper[kUpper > 0 ? kUnits* kUpper : 1] = {};
    uint32_t scales[kUnits * kScaleWords];
    uint32_t supers[2] = {};  // of rows g and g + 8

    OAR_DEVICE void load(const ProductRows& p, const ProductMatrix& matrix, int64_t n, int64_t k) {
      const Places places(p.K);
      const auto* panel = static_cast<const char*>(matrix.w) + n / kCodePanelRows * places.bytes;
      const int64_t unit = k / kUnit64;
      const int g = lane() / 4;
#pragma unroll
      for (int i = 0; i < kUnits; ++i) words[i] = load_once(panel + ((unit + i) * kWarp + lane()) * 16);
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const char* its = panel + places.upper + ((unit + i) * kWarp + lane()) * (4 * kUpper);
        if constexpr (kUpper == 2) {
          const uint2 both = oar::cuda::load(reinterpret_cast<const uint2*>(its));
          upper[2 * i] = both.x;
          upper[2 * i + 1] = both.y;
        }
      }
#pragma unroll
      for (int i = 0; i < kUnits; ++i) {
        const char* its = panel + places.scales + ((unit + i) * 8 + g) * (4 * kScaleWords);
        if constexpr (kScaleWords == 1) {
          scales[i] = oar::cuda::load(reinterpret_cast<const uint32_t*>(its));
        } else {
          const uint2 both = oar::cuda::load(reinterpret_cast<const uint2*>(its));
          scales[2 * i] = both.x;
          scales[2 * i + 1] = both.y;
        }
      }
      if constexpr (kMinima) {
        const uint2 both = oar::cuda::load(
            reinterpret_cast<const uint2*>(panel + places.supers + k / 256 * kSuperBytes) + g);
        supers[0] = both.x;
        supers[1] = both.y;
      } else if constexpr (kSupers) {
        const uint32_t both = oar::cuda::load(
            reinterpret_cast<const uint32_t*>(panel + places.supers + k / 256 * kSuperBytes) + g);
        supers[0] = both & 0xffffu;
        supers[1] = both >> 16;
      }
    }

    // Byte `which` of a row's scales of 64 k.
    OAR_DEVICE uint32_t byte_of(int unit, int row, int which) const {
      if constexpr (kScaleWords == 2) return scales[2 * unit + row] >> 8 * which & 255u;
      else return scales[unit] >> (16 * row + 8 * which) & 255u;
    }
    OAR_DEVICE float factor_of(int row, uint32_t byte) const {
      if constexpr (kFactor == Factor::kPower) return to_f32(e8m0{static_cast<uint8_t>(byte)});
      else {
        const float super = to_f32(f16{static_cast<uint16_t>(supers[row])});
        return super * static_cast<float>(kFactor == Factor::kSuper
                                              ? static_cast<int>(static_cast<int8_t>(byte))
                                              : static_cast<int>(byte));
      }
    }
    OAR_DEVICE float minimum_of(int row, uint32_t byte) const {
      return to_f32(f16{static_cast<uint16_t>(supers[row] >> 16)}) * static_cast<float>(byte);
    }
    // Elements 2 j and 2 j + 1 of the eight of a row, in half `half` of 64 k.
    OAR_DEVICE uint32_t pair_of(int unit, int half, int row, int j) const {
      const uint4 w = words[unit];
      const uint32_t low = (half == 0 ? (row == 0 ? w.x : w.y) : (row == 0 ? w.z : w.w)) >> 4 * j;
      uint32_t first = low & 15u, second = low >> 16 & 15u;
      if constexpr (kUpper == 2) {
        const uint32_t bits = upper[2 * unit + half] >> (16 * row + 2 * j);
        first |= (bits & 3u) << 4;
        second |= (bits >> 8 & 3u) << 4;
      }
      return pack_bf16(number_of<kNumber>(first), number_of<kNumber>(second));
    }

    // x_sums: of x over the group, columns 2 t and 2 t + 1.
    OAR_DEVICE void multiply(float (&acc)[4], int i, uint4 h, uint4 l, float2 x_sums = {}) const {
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
        add(acc, sum, unit, 2 * half);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] = 0.f;
      }
      mma_bf16(sum, {a[0][2], a[1][2], a[0][3], a[1][3]}, {l.z, l.w});
      mma_bf16(sum, {a[0][2], a[1][2], a[0][3], a[1][3]}, {h.z, h.w});
      add(acc, sum, unit, kHalves ? 2 * half + 1 : half);
      if constexpr (kMinima) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float minimum = -minimum_of(row, byte_of(unit, row, 2 + half));
          acc[2 * row] = __fmaf_rn(minimum, x_sums.x, acc[2 * row]);
          acc[2 * row + 1] = __fmaf_rn(minimum, x_sums.y, acc[2 * row + 1]);
        }
      }
    }
    OAR_DEVICE void add(float (&acc)[4], const float (&sum)[4], int unit, int which) const {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float factor = factor_of(row, byte_of(unit, row, which));
        acc[2 * row] = __fmaf_rn(sum[2 * row], factor, acc[2 * row]);
        acc[2 * row + 1] = __fmaf_rn(sum[2 * row + 1], factor, acc[2 * row + 1]);
      }
    }
  };
};

}  // namespace oar::cuda
