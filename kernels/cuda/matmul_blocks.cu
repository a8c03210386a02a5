#include "kernels/cuda/matmul_blocks.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "kernels/cuda/matmul_tensor.h"
#include "quant/formats/mxfp4.h"
#include "quant/formats/q4_k.h"
#include "quant/formats/q6_k.h"

namespace oar::cuda {
namespace {

constexpr int kPanelRows = 16, kUnit64 = 64;

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
  static constexpr int kBlocks = 1;
  static constexpr bool kSupers = kMinima || kFactor == Factor::kSuper;
  static_assert(kUpper == 0 || kUpper == 2, "bits above four");
  static constexpr int kScaleWords = kMinima || kGroup == 16 ? 2 : 1;  // of 64 k, rows g and g + 8
  static constexpr int kScaleBytes = kScaleWords * 4 * kPanelRows / 2, kSuperBytes = kMinima ? 64 : 32;
  struct Places {
    int64_t upper, scales, supers, bytes;
    OAR_HD constexpr explicit Places(int64_t K)
        : upper(K * kPanelRows / 2),
          scales(upper + K * kPanelRows * kUpper / 8),
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
      const auto* panel = static_cast<const char*>(matrix.w) + n / kPanelRows * places.bytes;
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

template <class Weights>
int launch_blocks(const Product& p, Stream stream) {
  return launch_tensor<Weights, Weights>(p, true, stream);
}

// ---- packing

// A block of a row as the panel wants it: codes, a byte for each group, and for its minimum.
struct Unpacked {
  uint8_t codes[256], scales[16], minima[8];
  uint32_t super = 0;  // f16; in the upper half that of minima
};
uint32_t bits_of(f16 x) { return x.bits; }
void unpack(const formats::q4_k::Block& b, Unpacked& u) {
  for (int g = 0; g < 8; ++g) {
    const formats::ScaleMin s = formats::unpack_scale_min(b.scales, g);
    u.scales[g] = static_cast<uint8_t>(s.scale);
    u.minima[g] = static_cast<uint8_t>(s.min);
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = b.q[g / 2 * 32 + i];
      u.codes[g * 32 + i] = static_cast<uint8_t>(g % 2 == 0 ? byte & 15 : byte >> 4);
    }
  }
  u.super = bits_of(b.d) | bits_of(b.dmin) << 16;
}
void unpack(const formats::q6_k::Block& b, Unpacked& u) {
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128, r = k / 32 % 4, i = k % 32;
    const uint8_t byte = b.low[half * 64 + r % 2 * 32 + i];
    const int nibble = r < 2 ? byte & 15 : byte >> 4, upper = b.high[half * 32 + i] >> 2 * r & 3;
    u.codes[k] = static_cast<uint8_t>(nibble | upper << 4);
  }
  for (int g = 0; g < 16; ++g) u.scales[g] = static_cast<uint8_t>(b.scales[g]);
  u.super = bits_of(b.d);
}
void unpack(const formats::mxfp4::Block& b, Unpacked& u) {
  u.scales[0] = b.e.bits;
  for (int i = 0; i < 32; ++i) u.codes[i] = static_cast<uint8_t>(formats::nibble(b.q, i));
}
template <class Weights, int kUpper, int kGroup, class Block, int kElems>
void pack(int64_t n, int64_t K, void* to, const void* rows) {
  const typename Weights::Places places(K);
  std::memset(to, 0, static_cast<size_t>((n + kPanelRows - 1) / kPanelRows * places.bytes));
  const int64_t stride = K / kElems * static_cast<int64_t>(sizeof(Block));
  for (int64_t r = 0; r < n; ++r) {
    auto* panel = static_cast<uint8_t*>(to) + r / kPanelRows * places.bytes;
    const int64_t g = r % 8, lower = r % kPanelRows / 8;
    const auto* row = static_cast<const uint8_t*>(rows) + r * stride;
    for (int64_t k0 = 0; k0 < K; k0 += kElems) {
      Block block;
      std::memcpy(&block, row + k0 / kElems * static_cast<int64_t>(sizeof block), sizeof block);
      Unpacked u{};
      unpack(block, u);
      for (int64_t i = 0; i < kElems; ++i) {
        const int64_t k = k0 + i, unit = k / kUnit64, half = k % kUnit64 / 32, in32 = k % 32;
        // Lane t's eight elements.
        const int64_t t = kGroup == 16 ? in32 % 16 / 4 : in32 / 8,
                      e = kGroup == 16 ? in32 % 4 + in32 / 16 * 4 : in32 % 8;
        const int64_t lane = unit * kWarp + g * 4 + t, place = e / 2 + e % 2 * 4;
        const uint8_t nibble = u.codes[i] & 15, upper = u.codes[i] >> 4;
        panel[lane * 16 + half * 8 + lower * 4 + place / 2] |=
            static_cast<uint8_t>(place % 2 == 0 ? nibble : nibble << 4);
        if constexpr (kUpper > 0) {
          // kUpper bits at kUpper * place of the lane's 8 kUpper of this half and row.
          const int64_t bit = (half * 2 + lower) * 8 * kUpper + kUpper * place;
          panel[places.upper + lane * 4 * kUpper + bit / 8] |= static_cast<uint8_t>(upper << bit % 8);
        }
        if (i % kGroup != 0) continue;
        const int64_t which = k % kUnit64 / kGroup, group = i / kGroup;
        uint8_t* scales = panel + places.scales + (unit * 8 + g) * 4 * Weights::kScaleWords +
                          lower * 2 * Weights::kScaleWords;
        scales[which] = u.scales[group];
        if constexpr (Weights::kMinima) scales[2 + which] = u.minima[group];
      }
      if constexpr (Weights::kMinima) {
        std::memcpy(panel + places.supers + k0 / 256 * Weights::kSuperBytes + (g * 2 + lower) * 4, &u.super,
                    4);
      } else if constexpr (Weights::kSupers) {
        std::memcpy(panel + places.supers + k0 / 256 * Weights::kSuperBytes + (g * 2 + lower) * 2, &u.super,
                    2);
      }
    }
  }
}

template <Number kNumber, int kUpper, int kGroup, Factor kFactor, class Block, const FormatInfo& kInfo>
constexpr BlockFormat block_format() {
  using Weights = Blocks<kNumber, kUpper, kGroup, kFactor>;
  return {kInfo.name, launch_blocks<Weights>, launch_chain<Weights>, Weights::panel_bytes,
          pack<Weights, kUpper, kGroup, Block, kInfo.block_elems>};
}
constexpr BlockFormat kFormats[] = {
    block_format<Number::kUnsigned, 0, 32, Factor::kSuperMinimum, formats::q4_k::Block,
                 formats::q4_k::kInfo>(),
    block_format<Number::kMinus32, 2, 16, Factor::kSuper, formats::q6_k::Block, formats::q6_k::kInfo>(),
    block_format<Number::kE2m1, 0, 32, Factor::kPower, formats::mxfp4::Block, formats::mxfp4::kInfo>(),
};

}  // namespace

std::span<const BlockFormat> block_formats() { return kFormats; }

}  // namespace oar::cuda
