#include "kernels/cuda/matmul_codes.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cuda/matmul_blocks.h"
#include "kernels/cuda/matmul_weights.h"

namespace oar::cuda {
namespace {

template <class Weights>
int launch_codes(const Product& p, Stream stream) {
  return launch_tensor<Weights, Weights>(p, true, stream);
}

// As rows have them: a head, then blocks of a scale and codes.
struct CodeFormat {
  std::string_view name;
  int bits, group;
  bool rows;                  // codes lie row behind row
  int row_head, block_scale;  // bytes; a scale of 1 byte is an integer
  bool wide_scale;            // f32
  LaunchProduct launch;
  LaunchChain chain;
  int64_t (*panel_bytes)(int64_t K);
};
template <const FormatInfo& kInfo>
constexpr CodeFormat code_format(int block_scale) {
  using Weights = TensorWeightsOf<kInfo>;
  return {kInfo.name,           Weights::kBits,          Weights::kGroupElems,
          Weights::kRows,       Weights::kRowScales * 4, block_scale,
          Weights::kWideScales, launch_codes<Weights>,   launch_chain<Weights>,
          Weights::panel_bytes};
}
constexpr std::array kFormats = {
    code_format<formats::q4_0::kInfo>(2),         code_format<formats::i4_g64::kInfo>(2),
    code_format<formats::i4_g128::kInfo>(2),      code_format<formats::i4_s8_g32::kInfo>(1),
    code_format<formats::q8_0::kInfo>(2),         code_format<formats::i8_g64::kInfo>(2),
    code_format<formats::i8_g128::kInfo>(2),      code_format<formats::i8_channel::kInfo>(0),
    code_format<formats::e4m3_channel::kInfo>(0), code_format<formats::e4m3_g128::kInfo>(4),
};
template <class Known>
const typename Known::value_type* find(const Known& known, std::string_view name) {
  for (const auto& f : known)
    if (f.name == name) return &f;
  return nullptr;
}

}  // namespace

LaunchProduct launch_of_codes(std::string_view format) {
  if (const CodeFormat* f = find(kFormats, format)) return f->launch;
  const BlockFormat* f = find(block_formats(), format);
  return f != nullptr ? f->launch : nullptr;
}

LaunchChain chain_of_codes(std::string_view format, const GatedMatmulArgs& a) {
  const MatmulArgs& m = a.matmul;
  if (!packs(m.K) || !reads_wide(m.T, m.K, m.x, m.ldx, a.gate, a.ld_gate)) return nullptr;
  if (const CodeFormat* f = find(kFormats, format)) return f->chain;
  const BlockFormat* f = find(block_formats(), format);
  return f != nullptr ? f->chain : nullptr;
}

uint64_t packed_bytes(std::string_view format, int64_t n, int64_t K) {
  const CodeFormat* codes = find(kFormats, format);
  const BlockFormat* blocks = find(block_formats(), format);
  if ((codes == nullptr && blocks == nullptr) || !packs(K)) return 0;
  const int64_t panel = codes != nullptr ? codes->panel_bytes(K) : blocks->panel_bytes(K);
  return static_cast<uint64_t>((n + kCodePanelRows - 1) / kCodePanelRows * panel);
}

void pack_weight(std::string_view format, int64_t n, int64_t K, void* to, const void* rows) {
  if (const BlockFormat* blocks = find(block_formats(), format)) return blocks->pack(n, K, to, rows);
  const CodeFormat& f = *find(kFormats, format);
  std::memset(to, 0, packed_bytes(format, n, K));  // rows that the last panel lacks
  // Codes of 4 bits lie in the order of quant/formats/group.h. Without groups a row is one block.
  const int64_t group = f.group > 0 ? f.group : K, block = f.block_scale + group * f.bits / 8,
                stride = f.row_head + K / group * block, of_scale = f.wide_scale ? 4 : 2;
  for (int64_t r = 0; r < n; ++r) {
    auto* panel = static_cast<uint8_t*>(to) + r / kCodePanelRows * f.panel_bytes(K);
    const int64_t g = r % 8, lower = r % kCodePanelRows / 8;
    uint8_t* const scales = panel + K * kCodePanelRows * f.bits / 8;
    const auto* row = static_cast<const uint8_t*>(rows) + r * stride;
    if (f.row_head > 0)
      std::memcpy(panel + f.panel_bytes(K) - kCodePanelRows * 4 + (g * 2 + lower) * 4, row, 4);
    for (int64_t k0 = 0; k0 < K; k0 += group) {
      const uint8_t* from = row + f.row_head + k0 / group * block;
      uint8_t* scale = scales + ((k0 / group * 8 + g) * 2 + lower) * of_scale;
      if (f.block_scale == 1) {
        const f16 exact = to_f16(static_cast<float>(*from));
        std::memcpy(scale, &exact, sizeof exact);
      } else {
        std::memcpy(scale, from, static_cast<size_t>(f.block_scale));
      }
      const uint8_t* q = from + f.block_scale;
      for (int64_t i = 0; i < group; ++i) {
        const int64_t k = k0 + i, in32 = k % 32, lane = g * 4 + in32 / 8, e = in32 % 8;
        if (f.rows) {
          panel[r % kCodePanelRows * K + k] = q[i];
          continue;
        }
        if (f.bits == 8) {
          panel[k / 32 * 512 + lane * 16 + lower * 8 + e] = q[i];
          continue;
        }
        const uint8_t byte = q[i / 32 * 16 + i % 16];
        const auto code = static_cast<uint8_t>(i % 32 < 16 ? byte & 15 : byte >> 4);
        const int64_t nibble = e / 2 + e % 2 * 4;
        panel[k / 64 * 512 + lane * 16 + k % 64 / 32 * 8 + lower * 4 + nibble / 2] |=
            static_cast<uint8_t>(nibble % 2 == 0 ? code : code << 4);
      }
    }
  }
}

}  // namespace oar::cuda
