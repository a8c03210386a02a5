// Packed weights of matmul_codes.h, as tensor cores read them.
#pragma once

#include <algorithm>

#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_tensor.h"

namespace oar::cuda {

// A panel of 16 rows: codes, 32 k behind 32 k, of each lane (g, t) first 8 of row g, then 8 of row g + 8,
// from k = 8 t on. Of 4 bits two 32 k's share a lane's 16 bytes; a word has element 2 j in nibble j and 2 j +
// 1 in nibble j + 4. Those of e4m3 lie row behind row: of 64 k a lane has 16 of each row, from k = 16 t on.
// Then scales: of each group (g, g + 8), g = 0 .. 7, and in the end those of rows.
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
template <Code kCode, int kGroup, Scale kScale = Scale::kF16, bool kOfRows = false>
struct Codes {
  static constexpr bool kRows = kCode == Code::kE4m3, kRowScales = kOfRows,
                        kWideScales = kScale == Scale::kF32;
  static constexpr int kGroupElems = kGroup, kSums = 0;
  static constexpr XOrder kOrder = kRows ? XOrder::kSixteens : XOrder::kAsItIs;
  static constexpr int kBlocks = 1;
  static constexpr int kBits = kCode == Code::kInt4 ? 4 : 8;
  static constexpr int kScaleBytes = kCodePanelRows * (kScale == Scale::kF16 ? 2 : 4);  // of a group
  static constexpr int kRowBytes = kOfRows ? kCodePanelRows * 4 : 0;
  static constexpr int64_t panel_bytes(int64_t K) {
    const int64_t scales = kGroup == 0 ? 0 : K / std::max(kGroup, 1);  // groups(), of the host
    return K * kCodePanelRows * kBits / 8 + scales * kScaleBytes + kRowBytes;
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
      const int64_t code_bytes = p.K * kCodePanelRows * kBits / 8;
      const auto* panel = static_cast<const char*>(matrix.w) +
                          n / kCodePanelRows * (code_bytes + groups(p.K) * kScaleBytes + kRowBytes);
      const char* of_groups = panel + code_bytes;
      const int g = lane() / 4;
      if constexpr (kRows) {
        const char* codes = panel + g * p.K + k + 16 * (lane() % 4);
#pragma unroll
        for (int i = 0; i < kLoads; ++i) words[i] = load_once(codes + i % 2 * 8 * p.K + i / 2 * 64);
      } else {
        const char* codes = panel + k * kCodePanelRows * kBits / 8 + 16 * lane();
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

    template <class Sums>
    OAR_DEVICE void multiply(float (&acc)[4], int i, uint4 h, uint4 l, const Sums&) const {
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

}  // namespace oar::cuda
