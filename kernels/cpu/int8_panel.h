// "int8.panel16": how q8_0 weights are kept for the CPU kernels, packed once at load. The numbers are q8_0's,
// bit for bit: groups of 32 k, an f16 scale and 32 signed bytes each.
//
// A panel is 16 weight rows. It holds blocks of two groups, the last one perhaps of one:
//
//   64 bytes     f16 scales: [2 groups][16 rows]
//   8 x 64 bytes group 0: line l holds k = 4 l .. 4 l + 3 of the 16 rows, [16 rows][4 k]
//   8 x 64 bytes group 1
//
// One line against four activations of one token, broadcast, is a dot-product instruction on every
// architecture that has one (vpdpbusd, sdot), with the 16 rows in the lanes of the result; the eight lines of
// a group are an AMX B tile of 32 k x 16 rows. Rows and k that do not exist are zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace oar {

inline constexpr int64_t kPanelRows = 16, kPanelGroup = 32, kPanelLine = 64;
inline constexpr int64_t kPanelLines = 8;  // of a group
inline constexpr int64_t kPanelGroupBytes = kPanelLines * kPanelLine;
inline constexpr int64_t kPanelBlockBytes = 64 + 2 * kPanelGroupBytes;

constexpr int64_t panel_groups(int64_t K) { return (K + kPanelGroup - 1) / kPanelGroup; }
constexpr int64_t panel_bytes(int64_t K) {
  const int64_t groups = panel_groups(K);
  return groups / 2 * kPanelBlockBytes + groups % 2 * (64 + kPanelGroupBytes);
}
// Byte offsets of group g in a panel.
constexpr int64_t panel_scales_at(int64_t g) { return g / 2 * kPanelBlockBytes + g % 2 * 32; }
constexpr int64_t panel_lines_at(int64_t g) {
  return g / 2 * kPanelBlockBytes + 64 + g % 2 * kPanelGroupBytes;
}

// The layout of matmul.h. Packs q8_0 exactly; f32, f16 and bf16 rows are quantized to q8_0 on the way.
extern const WeightLayout kInt8PanelLayout;

}  // namespace oar
