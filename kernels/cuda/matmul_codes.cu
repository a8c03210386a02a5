#include "kernels/cuda/matmul_codes.h"

#include <cuda_runtime_api.h>

#include <cstring>

#include "kernels/cuda/matmul_tensor.h"

namespace oar::cuda {
namespace {

// A panel of 16 rows: codes, 32 k behind 32 k, of each lane (g, t) first 8 of row g, then 8 of row g + 8,
// from k = 8 t on. Of 4 bits two 32 k's share a lane's 16 bytes; a word has element 2 j in nibble j and 2 j +
// 1 in nibble j + 4. Then scales: of each group (g, g + 8) as f16, g = 0 .. 7.
constexpr int kPanelRows = 16;
constexpr int kScaleBytes = 2 * kPanelRows;  // of a group

template <int kBits>
OAR_DEVICE uint32_t pair_of(uint32_t low, uint32_t high, int j) {
  if constexpr (kBits == 4) {
    const uint32_t c = low >> 4 * j;
    return pack_bf16(static_cast<float>(static_cast<int>(c & 15u) - 8),
                     static_cast<float>(static_cast<int>(c >> 16 & 15u) - 8));
  } else {
    const uint32_t c = (j < 2 ? low : high) >> (j % 2 * 16);
    return pack_bf16(static_cast<float>(static_cast<int8_t>(c)),
                     static_cast<float>(static_cast<int8_t>(c >> 8)));
  }
}

template <int kBits, int kGroup>
struct Codes {
  template <int kLength>
  struct Part {
    static constexpr int kLoads =
        kLength / 4 * 2 * kBits / 128;  // of 16 bytes: a quarter of the k of two rows
    static constexpr int kScales = kLength < kGroup ? 1 : kLength / kGroup;
    uint4 words[kLoads];
    uint32_t scales[kScales];

    OAR_DEVICE void load(const Product& p, const Product::Weight& weight, int64_t n, int64_t k) {
      const int64_t code_bytes = p.K * kPanelRows * kBits / 8;
      const auto* panel =
          static_cast<const char*>(weight.w) + n / kPanelRows * (code_bytes + p.K / kGroup * kScaleBytes);
      const char* codes = panel + k * kPanelRows * kBits / 8 + 16 * lane();
#pragma unroll
      for (int i = 0; i < kLoads; ++i) words[i] = load_once(codes + i * 16 * kWarp);
      const auto* of_groups =
          reinterpret_cast<const uint32_t*>(panel + code_bytes) + k / kGroup * 8 + lane() / 4;
#pragma unroll
      for (int i = 0; i < kScales; ++i) scales[i] = oar::cuda::load(of_groups + i * 8);
    }

    OAR_DEVICE void multiply(float (&acc)[4], int i, uint4 h, uint4 l) const {
      const uint4 w = words[i * kLoads * 32 / kLength];
      uint32_t row[2][2];  // words of rows g and g + 8
      if constexpr (kBits == 4) {
        row[0][0] = i % 2 == 0 ? w.x : w.z;
        row[1][0] = i % 2 == 0 ? w.y : w.w;
        row[0][1] = row[1][1] = 0;
      } else {
        row[0][0] = w.x;
        row[0][1] = w.y;
        row[1][0] = w.z;
        row[1][1] = w.w;
      }
      uint32_t a[2][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        a[0][j] = pair_of<kBits>(row[0][0], row[0][1], j);
        a[1][j] = pair_of<kBits>(row[1][0], row[1][1], j);
      }
      float sum[4] = {};
      mma_bf16(sum, {a[0][0], a[1][0], a[0][1], a[1][1]}, {l.x, l.y});
      mma_bf16(sum, {a[0][0], a[1][0], a[0][1], a[1][1]}, {h.x, h.y});
      mma_bf16(sum, {a[0][2], a[1][2], a[0][3], a[1][3]}, {l.z, l.w});
      mma_bf16(sum, {a[0][2], a[1][2], a[0][3], a[1][3]}, {h.z, h.w});
      const uint32_t both = scales[i * 32 / kGroup];
      const float upper = to_f32(f16{static_cast<uint16_t>(both)}),
                  lower = to_f32(f16{static_cast<uint16_t>(both >> 16)});
      acc[0] = __fmaf_rn(sum[0], upper, acc[0]);
      acc[1] = __fmaf_rn(sum[1], upper, acc[1]);
      acc[2] = __fmaf_rn(sum[2], lower, acc[2]);
      acc[3] = __fmaf_rn(sum[3], lower, acc[3]);
    }
  };
};

template <int kBits, int kGroup>
int launch_codes(const Product& p, Stream stream) {
  return launch_tensor<Codes<kBits, kGroup>, Codes<kBits, kGroup>>(p, true, stream);
}

struct CodeFormat {
  std::string_view name;
  int bits, group;
  LaunchProduct launch;
};
constexpr CodeFormat kFormats[] = {
    {"q4_0", 4, 32, launch_codes<4, 32>},      {"i4_g64", 4, 64, launch_codes<4, 64>},
    {"i4_g128", 4, 128, launch_codes<4, 128>}, {"q8_0", 8, 32, launch_codes<8, 32>},
    {"i8_g64", 8, 64, launch_codes<8, 64>},    {"i8_g128", 8, 128, launch_codes<8, 128>},
};
const CodeFormat* find(std::string_view name) {
  for (const CodeFormat& f : kFormats)
    if (f.name == name) return &f;
  return nullptr;
}

int64_t panel_bytes(const CodeFormat& f, int64_t K) {
  return K * kPanelRows * f.bits / 8 + K / f.group * kScaleBytes;
}

}  // namespace

LaunchProduct launch_of_codes(std::string_view format) {
  const CodeFormat* f = find(format);
  return f != nullptr ? f->launch : nullptr;
}

uint64_t packed_bytes(std::string_view format, int64_t n, int64_t K) {
  const CodeFormat* f = find(format);
  if (f == nullptr || !packs(K)) return 0;
  return static_cast<uint64_t>((n + kPanelRows - 1) / kPanelRows * panel_bytes(*f, K));
}

void pack_weight(std::string_view format, int64_t n, int64_t K, void* to, const void* rows) {
  const CodeFormat& f = *find(format);
  std::memset(to, 0, packed_bytes(format, n, K));  // rows that the last panel lacks
  // A block: its f16 scale, then its codes, of 4 bits in the order of quant/formats/group.h.
  const int64_t block = 2 + f.group * f.bits / 8, stride = K / f.group * block;
  for (int64_t r = 0; r < n; ++r) {
    auto* panel = static_cast<uint8_t*>(to) + r / kPanelRows * panel_bytes(f, K);
    const int64_t g = r % 8, lower = r % kPanelRows / 8;
    for (int64_t k0 = 0; k0 < K; k0 += f.group) {
      const auto* from = static_cast<const uint8_t*>(rows) + r * stride + k0 / f.group * block;
      std::memcpy(panel + K * kPanelRows * f.bits / 8 + k0 / f.group * kScaleBytes + g * 4 + lower * 2, from,
                  2);
      const uint8_t* q = from + 2;
      for (int i = 0; i < f.group; ++i) {
        const int64_t k = k0 + i, in32 = k % 32, lane = g * 4 + in32 / 8, e = in32 % 8;
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
