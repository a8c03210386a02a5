// Weights of 4- and 8-bit codes under scales of groups and rows, for tensor cores: q4_0, i4_g64, i4_g128,
// i4_s8_g32, q8_0, i8_g64, i8_g128, i8_channel, e4m3_channel, e4m3_g128. They are packed at load in panels of
// 16 rows, so that a lane's codes are 16 bytes and a warp's 512 side by side; those of e4m3 lie row behind
// row, as products of warp groups want them. Behind a panel's codes come its scales. K a multiple of 128;
// other weights stay rows (matmul_formats.cu). matmul_blocks.h has q4_k and others.
//
// Codes are exact in bf16, so a group's sum is that of x; it is scaled in f32, 32 k at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/cuda/matmul.h"

namespace oar::cuda {

constexpr int kCodePanelRows = 16;

// Bytes of a packed weight; 0: it stays in rows.
uint64_t packed_bytes(std::string_view format, int64_t n, int64_t K);
// Writes them to host memory, from rows in host memory; packed_bytes() is not 0.
void pack_weight(std::string_view format, int64_t n, int64_t K, void* to, const void* rows);

// Null: a format that is not packed.
LaunchProduct launch_of_codes(std::string_view format);
// Null: that, or K or rows that need other kernels.
LaunchChain chain_of_codes(std::string_view format, const GatedMatmulArgs& args);
constexpr bool packs(int64_t K) { return K > 0 && K % 128 == 0; }

}  // namespace oar::cuda
