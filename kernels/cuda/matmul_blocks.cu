#include "kernels/cuda/matmul_blocks.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "kernels/cuda/matmul_weights.h"

namespace oar::cuda {
namespace {

template <class Weights>
int launch_blocks(const Product& p, Stream stream) {
  return launch_tensor<Weights, Weights>(p, true, stream);
}

// ---- packing

// A block of a row as the panel wants it: codes, what each group has, and in the end what each 256 have.
struct Unpacked {
  uint8_t codes[256];
  uint32_t groups[16];
  uint32_t super;
};
uint32_t bits_of(f16 x) { return x.bits; }
// q5_0; q4_1 and q5_1 with a minimum.
template <class Block>
void unpack_halves(const Block& b, Unpacked& u) {
  u.groups[0] = bits_of(b.d);
  if constexpr (requires { b.m; }) u.groups[0] |= bits_of(b.m) << 16;
  for (int i = 0; i < 32; ++i) {
    int code = formats::nibble(b.q, i);
    if constexpr (requires { b.high; }) code |= (b.high[i / 8] >> i % 8 & 1) << 4;
    u.codes[i] = static_cast<uint8_t>(code);
  }
}
void unpack(const formats::q4_1::Block& b, Unpacked& u) { unpack_halves(b, u); }
void unpack(const formats::q5_0::Block& b, Unpacked& u) { unpack_halves(b, u); }
void unpack(const formats::q5_1::Block& b, Unpacked& u) { unpack_halves(b, u); }
void unpack(const formats::q2_k::Block& b, Unpacked& u) {
  for (int k = 0; k < 256; ++k) {
    u.codes[k] = static_cast<uint8_t>(b.q[k / 128 * 32 + k % 32] >> 2 * (k % 128 / 32) & 3);
  }
  for (int g = 0; g < 16; ++g) u.groups[g] = b.scales[g];
  u.super = bits_of(b.d) | bits_of(b.dmin) << 16;
}
void unpack(const formats::q3_k::Block& b, Unpacked& u) {
  for (int k = 0; k < 256; ++k) {
    const int pair = b.low[k / 128 * 32 + k % 32] >> 2 * (k % 128 / 32) & 3;
    u.codes[k] = static_cast<uint8_t>(pair | (b.high[k % 32] >> k / 32 & 1) << 2);
  }
  for (int g = 0; g < 16; ++g) {
    const int bottom = g < 8 ? b.scales[g] & 15 : b.scales[g - 8] >> 4,
              top = b.scales[8 + g % 4] >> 2 * (g / 4) & 3;
    u.groups[g] = static_cast<uint8_t>((bottom | top << 4) - 32);
  }
  u.super = bits_of(b.d);
}
// q4_k, and q5_k with an upper bit.
template <class Block>
void unpack_pairs(const Block& b, Unpacked& u) {
  for (int g = 0; g < 8; ++g) {
    const formats::ScaleMin s = formats::unpack_scale_min(b.scales, g);
    u.groups[g] = static_cast<uint32_t>(s.scale | s.min << 8);
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = b.q[g / 2 * 32 + i];
      int code = g % 2 == 0 ? byte & 15 : byte >> 4;
      if constexpr (requires { b.high; }) code |= (b.high[i] >> g & 1) << 4;
      u.codes[g * 32 + i] = static_cast<uint8_t>(code);
    }
  }
  u.super = bits_of(b.d) | bits_of(b.dmin) << 16;
}
void unpack(const formats::q4_k::Block& b, Unpacked& u) { unpack_pairs(b, u); }
void unpack(const formats::q5_k::Block& b, Unpacked& u) { unpack_pairs(b, u); }
void unpack(const formats::q6_k::Block& b, Unpacked& u) {
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128, r = k / 32 % 4, i = k % 32;
    const uint8_t byte = b.low[half * 64 + r % 2 * 32 + i];
    const int nibble = r < 2 ? byte & 15 : byte >> 4, upper = b.high[half * 32 + i] >> 2 * r & 3;
    u.codes[k] = static_cast<uint8_t>(nibble | upper << 4);
  }
  for (int g = 0; g < 16; ++g) u.groups[g] = static_cast<uint8_t>(b.scales[g]);
  u.super = bits_of(b.d);
}
void unpack(const formats::mxfp4::Block& b, Unpacked& u) {
  u.groups[0] = b.e.bits;
  for (int i = 0; i < 32; ++i) u.codes[i] = static_cast<uint8_t>(formats::nibble(b.q, i));
}

// `bits` of element `i` of a lane's 32, of which pairs lie in halves of words from `lane` on.
void put(uint8_t* lane, int64_t bits, int64_t i, uint32_t code) {
  const int64_t bit = i / 2 * bits, at = bit / 16 * 32 + i % 2 * 16 + bit % 16;
  lane[at / 8] |= static_cast<uint8_t>(code << at % 8);
}
template <class Weights, class Block, int kElems>
void pack(int64_t n, int64_t K, void* to, const void* rows) {
  constexpr int kLower = Weights::kLowerBits, kUpper = Weights::kUpperBits, kGroup = Weights::kGroupElems,
                kScaleBytes = 4 * Weights::kScaleWords;
  const typename Weights::Places places(K);
  std::memset(to, 0, static_cast<size_t>((n + kCodePanelRows - 1) / kCodePanelRows * places.bytes));
  const int64_t stride = K / kElems * static_cast<int64_t>(sizeof(Block));
  for (int64_t r = 0; r < n; ++r) {
    auto* panel = static_cast<uint8_t*>(to) + r / kCodePanelRows * places.bytes;
    const int64_t g = r % 8, lower = r % kCodePanelRows / 8;
    const auto* row = static_cast<const uint8_t*>(rows) + r * stride;
    for (int64_t k0 = 0; k0 < K; k0 += kElems) {
      Block block;
      std::memcpy(&block, row + k0 / kElems * static_cast<int64_t>(sizeof block), sizeof block);
      Unpacked u{};
      unpack(block, u);
      for (int64_t i = 0; i < kElems; ++i) {
        const int64_t k = k0 + i, unit = k / kUnit64, in32 = k % 32;
        // Lane t's eight elements.
        const int64_t t = kGroup == 16 ? in32 % 16 / 4 : in32 / 8,
                      e = kGroup == 16 ? in32 % 4 + in32 / 16 * 4 : in32 % 8;
        const int64_t lane = unit * kWarp + g * 4 + t, place = (k % kUnit64 / 32 * 2 + lower) * 8 + e;
        put(panel + lane * 4 * kLower, kLower, place, u.codes[i] & ((1u << kLower) - 1));
        if constexpr (kUpper > 0)
          put(panel + places.upper + lane * 4 * kUpper, kUpper, place, u.codes[i] >> kLower);
        if (i % kGroup != 0) continue;
        uint8_t* scales = panel + places.scales + (unit * 8 + g) * kScaleBytes + lower * kScaleBytes / 2;
        std::memcpy(scales + k % kUnit64 / kGroup * Weights::kGroupBits / 8, &u.groups[i / kGroup],
                    Weights::kGroupBits / 8);
      }
      std::memcpy(panel + places.supers + (k0 / 256 * kCodePanelRows + g * 2 + lower) * Weights::kSuperBytes,
                  &u.super, Weights::kSuperBytes);
    }
  }
}

template <const FormatInfo& kInfo, class Block>
constexpr BlockFormat block_format() {
  using Weights = TensorWeightsOf<kInfo>;
  return {kInfo.name, launch_blocks<Weights>, launch_chain<Weights>, Weights::panel_bytes,
          pack<Weights, Block, kInfo.block_elems>};
}
constexpr BlockFormat kFormats[] = {
    block_format<formats::q4_1::kInfo, formats::q4_1::Block>(),
    block_format<formats::q5_0::kInfo, formats::q5_0::Block>(),
    block_format<formats::q5_1::kInfo, formats::q5_1::Block>(),
    block_format<formats::q2_k::kInfo, formats::q2_k::Block>(),
    block_format<formats::q3_k::kInfo, formats::q3_k::Block>(),
    block_format<formats::q4_k::kInfo, formats::q4_k::Block>(),
    block_format<formats::q5_k::kInfo, formats::q5_k::Block>(),
    block_format<formats::q6_k::kInfo, formats::q6_k::Block>(),
    block_format<formats::mxfp4::kInfo, formats::mxfp4::Block>(),
};

}  // namespace

std::span<const BlockFormat> block_formats() { return kFormats; }

}  // namespace oar::cuda
