// "int8.panel16": how 8-bit weights lie for the CPU kernels, packed once at load; 4-bit weights are expanded
// to it in a worker's scratch when there are many tokens (int4_panel.h).
//
// The arithmetic that this layout is for: a weight is scale * w8 with a signed byte w8 and one f32 scale for
// each (row, 256 k). Blocks this long leave the inner loop to integers, a few hundred dot-product
// instructions for one conversion to float. The price is a second rounding of formats with smaller groups
// (q8_0): at most half a step, 1/254 of the largest weight of the block, 44 dB below Gaussian weights.
// i8_channel's bytes are taken as they are.
//
// A panel is 16 weight rows, and holds blocks of 256 k, the last one perhaps shorter:
//
//   64 bytes   f32 scales of the 16 rows
//   64 lines   line l holds k = 4 l .. 4 l + 3 of the 16 rows, [16 rows][4 k]; a multiple of 16 lines
//
// One line against four activations of one token, broadcast, is a dot-product instruction on every
// architecture that has one (vpdpbusd, sdot), with the 16 rows in the lanes of the result; two lines zipped
// by dwords are operands of smmla, 2 rows x 8 k; sixteen lines are an AMX B tile of 64 k x 16 rows. Rows and
// k that do not exist are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace oar {

inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kPanelBlock = 256;  // k under one scale
inline constexpr int64_t kPanelStep = 64;    // k of an AMX tile; K is padded to a multiple
inline constexpr int64_t kPanelLine = 64;    // bytes
inline constexpr int64_t kStepLines = 16;

constexpr int64_t panel_k(int64_t K) { return (K + kPanelStep - 1) / kPanelStep * kPanelStep; }
constexpr int64_t panel_blocks(int64_t K) { return (K + kPanelBlock - 1) / kPanelBlock; }
// Steps of block b.
constexpr int64_t panel_steps(int64_t K, int64_t b) {
  const int64_t left = panel_k(K) - b * kPanelBlock;
  return (left < kPanelBlock ? left : kPanelBlock) / kPanelStep;
}
constexpr int64_t panel_bytes(int64_t K) { return panel_k(K) * kPanelRows + panel_blocks(K) * kPanelLine; }
// Byte offset of block b in a panel; its lines follow its scales.
constexpr int64_t panel_block_at(int64_t b) { return b * (kPanelBlock * kPanelRows + kPanelLine); }

// The layout of matmul.h for q8_0, i8_g64, i8_g128, i8_channel, and for formats whose levels are no table of
// sixteen for 32 k (q5_0, q5_1; nvfp4), which take 8 bits here. f32, f16 and bf16 rows are quantized on the
// way.
extern const WeightLayout kInt8PanelLayout;
// Names of the formats whose matmul is that of the layout.
constexpr const char* kInt8PanelFormats[] = {"q8_0", "i8_g64", "i8_g128", "i8_channel",
                                             "q5_0", "q5_1",   "nvfp4"};

}  // namespace oar
