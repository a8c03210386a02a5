#include "kernels/cuda/matmul_codes.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cuda/matmul_blocks.h"
#include "kernels/cuda/matmul_tensor.h"

namespace oar::cuda {
namespace {

// A panel of 16 rows: codes, 32 k behind 32 k, of each lane (g, t) first 8 of row g, then 8 of row g + 8,
// from k = 8 t on. Of 4 bits two 32 k's share a lane's 16 bytes; a word has element 2 j in nibble j and 2 j +
// 1 in nibble j + 4. Those of e4m3 lie row behind row: of 64 k a lane has 16 of each row, from k = 16 t on.
// Then scales: of each group (g, g + 8), g = 0 .. 7, and in the end those of rows.
constexpr int kPanelRows = kCodePanelRows;

enum class Code { kInt4, kInt8, kE4m3 };  // kInt4: 8 more than it means
enum class Scale { kF16, kF32 };

// Elements 2 j and 2 j + 1 of eight codes as bf16, which has them exactly.
template <Code kCode>
OAR_DEVICE uint32_t pair_of(uint32_t low, uint32_t high, int j) {
  if constexpr (kCode == Code::kInt4) {
    const uint32_t c = low >> 4 * j;
    return pack_bf16(static_cast<float>(static_cast<int>(c & 15u) - 8),
                     static_cast<float>(static_cast<int>(c >> 16 & 15u) - 8));
  } else {
    const uint32_t c = (j < 2 ? low : high) >> (j % 2 * 16);
    if constexpr (kCode == Code::kInt8) {
      return pack_bf16(static_cast<float>(static_cast<int8_t>(c)),
                       static_cast<float>(static_cast<int8_t>(c >> 8)));
    } else {
      const float2 both =
          __half22float2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(c), __NV_E4M3));
      return pack_bf16(both.x, both.y);
    }
  }
}

// kGroup 0: rows alone have scales. kOfRows: they have, too.
template <Code kCode, int kGroup, Scale kScale, bool kOfRows>
struct Codes {
  static constexpr bool kMinima = false, kRows = kCode == Code::kE4m3;
  static constexpr XOrder kOrder = kRows ? XOrder::kSixteens : XOrder::kAsItIs;
  static constexpr int kBlocks = 1;
  static constexpr int kBits = kCode == Code::kInt4 ? 4 : 8;
  static constexpr int kScaleBytes = kPanelRows * (kScale == Scale::kF16 ? 2 : 4);  // of a group
  static constexpr int kRowBytes = kOfRows ? kPanelRows * 4 : 0;
  static constexpr int64_t panel_bytes(int64_t K) {
    const int64_t scales = kGroup == 0 ? 0 : K / std::max(kGroup, 1);  // groups(), of the host
    return K * kPanelRows * kBits / 8 + scales * kScaleBytes + kRowBytes;
  }
  static OAR_DEVICE constexpr int64_t groups(int64_t k) {
    if constexpr (kGroup == 0) return 0;
    else return k / kGroup;
  }

  template <int kLength>
  struct Part {
    static constexpr int kLoads =
        kLength / 4 * 2 * kBits / 128;  // of 16 bytes: a quarter of the k of two rows
    static constexpr int kScales = kGroup == 0 ? 0 : kLength < kGroup ? 1 : kLength / kGroup;
    uint4 words[kLoads];
    float2 scales[kScales > 0 ? kScales : 1];  // of rows g and g + 8

    OAR_DEVICE void load(const ProductRows& p, const ProductMatrix& matrix, int64_t n, int64_t k) {
      const int64_t code_bytes = p.K * kPanelRows * kBits / 8;
      const auto* panel = static_cast<const char*>(matrix.w) +
                          n / kPanelRows * (code_bytes + groups(p.K) * kScaleBytes + kRowBytes);
      const char* of_groups = panel + code_bytes;
      const int g = lane() / 4;
      if constexpr (kRows) {
        const char* codes = panel + g * p.K + k + 16 * (lane() % 4);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) words[i] = load_once(codes + i % 2 * 8 * p.K + i / 2 * 64);
      } else {
        const char* codes = panel + k * kPanelRows * kBits / 8 + 16 * lane();
#pragma unroll
        for (int i = 0; i < kLoads; ++i) words[i] = load_once(codes + i * 16 * kWarp);
      }
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        const int64_t at = (groups(k) + i) * 8 + g;
        if constexpr (kScale == Scale::kF16) {
          const uint32_t both = oar::cuda::load(reinterpret_cast<const uint32_t*>(of_groups) + at);
          scales[i] =
              __half22float2(__half2_raw{static_cast<uint16_t>(both), static_cast<uint16_t>(both >> 16)});
        } else {
          scales[i] = oar::cuda::load(reinterpret_cast<const float2*>(of_groups) + at);
        }
      }
      if constexpr (kOfRows) {
        const float2 of_rows =
            oar::cuda::load(reinterpret_cast<const float2*>(of_groups + groups(p.K) * kScaleBytes) + g);
        if constexpr (kScales == 0) scales[0] = of_rows;
#pragma unroll
        for (int i = 0; i < kScales; ++i) {
          scales[i] = make_float2(scales[i].x * of_rows.x, scales[i].y * of_rows.y);
        }
      }
    }

    OAR_DEVICE void multiply(float (&acc)[4], int i, uint4 h, uint4 l) const {
      uint32_t row[2][2];  // words of rows g and g + 8
      if constexpr (kRows) {
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
          const uint4 w = words[i / 2 * 2 + lower];
          row[lower][0] = i % 2 == 0 ? w.x : w.z;
          row[lower][1] = i % 2 == 0 ? w.y : w.w;
        }
      } else if constexpr (kCode == Code::kInt4) {
        const uint4 w = words[i * kLoads * 32 / kLength];
        row[0][0] = i % 2 == 0 ? w.x : w.z;
        row[1][0] = i % 2 == 0 ? w.y : w.w;
        row[0][1] = row[1][1] = 0;
      } else {
        const uint4 w = words[i];
        row[0][0] = w.x;
        row[0][1] = w.y;
        row[1][0] = w.z;
        row[1][1] = w.w;
      }
      uint32_t a[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[0][j] = pair_of<kCode>(row[0][0], row[0][1], j);
        a[1][j] = pair_of<kCode>(row[1][0], row[1][1], j);
      }
      float sum[4] = {};
      mma_bf16(sum, {a[0][0], a[1][0], a[0][1], a[1][1]}, {l.x, l.y});
      mma_bf16(sum, {a[0][0], a[1][0], a[0][1], a[1][1]}, {h.x, h.y});
      mma_bf16(sum, {a[0][2], a[1][2], a[0][3], a[1][3]}, {l.z, l.w});
      mma_bf16(sum, {a[0][2], a[1][2], a[0][3], a[1][3]}, {h.z, h.w});
      const float2 scale = scales[kScales == 0 ? 0 : i * 32 * kScales / kLength];
      acc[0] = __fmaf_rn(sum[0], scale.x, acc[0]);
      acc[1] = __fmaf_rn(sum[1], scale.x, acc[1]);
      acc[2] = __fmaf_rn(sum[2], scale.y, acc[2]);
      acc[3] = __fmaf_rn(sum[3], scale.y, acc[3]);
    }
  };
};

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
template <Code kCode, int kGroup, Scale kScale = Scale::kF16, bool kOfRows = false>
constexpr CodeFormat code_format(std::string_view name, int block_scale) {
  using Weights = Codes<kCode, kGroup, kScale, kOfRows>;
  return {name,
          Weights::kBits,
          kGroup,
          Weights::kRows,
          kOfRows * 4,
          block_scale,
          kScale == Scale::kF32,
          launch_codes<Weights>,
          launch_chain<Weights>,
          Weights::panel_bytes};
}
constexpr std::array kFormats = {
    code_format<Code::kInt4, 32>("q4_0", 2),
    code_format<Code::kInt4, 64>("i4_g64", 2),
    code_format<Code::kInt4, 128>("i4_g128", 2),
    code_format<Code::kInt4, 32, Scale::kF16, true>("i4_s8_g32", 1),
    code_format<Code::kInt8, 32>("q8_0", 2),
    code_format<Code::kInt8, 64>("i8_g64", 2),
    code_format<Code::kInt8, 128>("i8_g128", 2),
    code_format<Code::kInt8, 0, Scale::kF32, true>("i8_channel", 0),
    code_format<Code::kE4m3, 0, Scale::kF32, true>("e4m3_channel", 0),
    code_format<Code::kE4m3, 128, Scale::kF32>("e4m3_g128", 4),
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
  if (!packs(m.K) || !reads_wide(m.K, m.x, m.ldx, a.gate, a.ld_gate)) return nullptr;
  if (const CodeFormat* f = find(kFormats, format)) return f->chain;
  const BlockFormat* f = find(block_formats(), format);
  return f != nullptr ? f->chain : nullptr;
}

uint64_t packed_bytes(std::string_view format, int64_t n, int64_t K) {
  const CodeFormat* codes = find(kFormats, format);
  const BlockFormat* blocks = find(block_formats(), format);
  if ((codes == nullptr && blocks == nullptr) || !packs(K)) return 0;
  const int64_t panel = codes != nullptr ? codes->panel_bytes(K) : blocks->panel_bytes(K);
  return static_cast<uint64_t>((n + kPanelRows - 1) / kPanelRows * panel);
}

void pack_weight(std::string_view format, int64_t n, int64_t K, void* to, const void* rows) {
  if (const BlockFormat* blocks = find(block_formats(), format)) return blocks->pack(n, K, to, rows);
  const CodeFormat& f = *find(kFormats, format);
  std::memset(to, 0, packed_bytes(format, n, K));  // rows that the last panel lacks
  // Codes of 4 bits lie in the order of quant/formats/group.h. Without groups a row is one block.
  const int64_t group = f.group > 0 ? f.group : K, block = f.block_scale + group * f.bits / 8,
                stride = f.row_head + K / group * block, of_scale = f.wide_scale ? 4 : 2;
  for (int64_t r = 0; r < n; ++r) {
    auto* panel = static_cast<uint8_t*>(to) + r / kPanelRows * f.panel_bytes(K);
    const int64_t g = r % 8, lower = r % kPanelRows / 8;
    uint8_t* const scales = panel + K * kPanelRows * f.bits / 8;
    const auto* row = static_cast<const uint8_t*>(rows) + r * stride;
    if (f.row_head > 0) std::memcpy(panel + f.panel_bytes(K) - kPanelRows * 4 + (g * 2 + lower) * 4, row, 4);
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
          panel[r % kPanelRows * K + k] = q[i];
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
