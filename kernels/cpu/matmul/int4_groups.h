// "int4.g64.panel32", "int4.g128.panel32": how weights of 4 bits with a scale for every 64 or 128 k lie for
// CPUs whose dot products are of vectors. They are packed once at load; 4.25 and 4.19 bits per weight.
// "int4z.g64.panel32" and "int4z.g128.panel32" are the same with offsets, for weights that have a zero too;
// 4.38 and 4.25 bits. Smaller groups, and matrix units, have int4.panel16 (int4_panel.h).
//
// The weight of code q in a group is
//
//   scale * m * (q - 8)                     without offsets
//   scale * (m * q + (o << shift))          with them
//
// of the group's integers m and o and the f32 scale of its block of 256 k. So the integers of a block are
// summed exactly, and one conversion to float serves 256 k:
//
//   S = sum_g (m_g * sum_k (q - 8) x)                            or
//   S = sum_g (m_g * sum_k q x + (o_g << shift) * sum_k x),      |S| < 2^28
//   sum = fma(float(S), scale_w * scale_x, sum)                  blocks in ascending order
//
// Codes are multiplied as they are, and beside sixteen dot products of a group (or 32) there is one
// multiplication with m. In int4.panel16 a code becomes a rounded byte m * (q - 8) before it is multiplied.
// That costs more for few tokens, and less for groups of 32, which would need a multiplication for every
// eight dot products (decision 18).
//
// Rounding. Without offsets m = round(127 d / max|d|) of the groups' own scales d, so |error| <= 4 / 127 of
// the largest. With them, scale = max(max|d| / 255, max|a| / (127 * 16 - 4)) for groups d q + a of u4_*, m =
// round(d / scale), and o brings the mean over the codes to the group's, to nearest: |error| <= (7.5 / 2 +
// 8) scale; shift is 4, and codes under a negative d are counted from 15 downwards. For w4a8_*, whose scale
// is the row's and whose m is s, shift is 0, and codes are counted from the least that occurs in a group,
// q', so that o = s (q' - z) is a byte whenever all s (q - z) are signed bytes, as the format wants them:
// exact. A block with others is rounded so that all weights are bytes again, |error| <= 4.25 scale. Being
// bytes, many tokens may have them expanded to int8.panel16 (int8_panel.h): the same integers, without a
// multiplication for each group.
//
// A panel is 32 weight rows, and holds blocks of 256 k, the last one perhaps with fewer steps of 32 k:
//
//   128 bytes   f32 scales of the 32 rows
//   [256 / G][32 rows]          m, bytes: signed, or unsigned where there are offsets
//   [128 / G][32 rows][2]       o of two groups, signed bytes, where there are offsets
//   [steps][4 j][2 halves][16 rows][4 bytes]
//                               codes: byte i of a row's four has that of k = 4 j + i low and
//                               that of k = 16 + 4 j + i high
//
// A row's four bytes are those of the file. Low and high halves of a line of 64 bytes against four
// activations of one token, broadcast, are a dot-product instruction with sixteen rows in the lanes of the
// result. All of a block follows itself in memory, which is what processors fetch ahead.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace oar {

inline constexpr int64_t kGroupsRows = 32;
inline constexpr int64_t kGroupsBlock = 256;
inline constexpr int64_t kGroupsStep = 32;    // k
inline constexpr int64_t kGroupsOfBlock = 4;  // at most

// Where the parts of a block are. Kernels see this alone and serve both sizes of groups.
struct Int4GroupsBlock {
  const char *scales, *multipliers, *offsets, *levels;
  int64_t groups;  // that exist
  int64_t steps;   // of a group
  static constexpr int64_t kStepBytes = kGroupsStep / 2 * kGroupsRows;
};

template <int G, bool kHasOffsets>
struct Int4GroupsPanel {
  static_assert(G == 64 || G == 128);
  static constexpr int64_t kGroups = kGroupsBlock / G;
  static constexpr int64_t kSteps = kGroupsBlock / kGroupsStep;
  // Where things are in a block, and their sizes.
  static constexpr int64_t kMultipliers = kGroupsRows * 4;
  static constexpr int64_t kOffsets = kMultipliers + kGroups * kGroupsRows;
  static constexpr int64_t kLevels = kOffsets + (kHasOffsets ? kGroups * kGroupsRows : 0);
  static constexpr int64_t kStepBytes = Int4GroupsBlock::kStepBytes;
  static constexpr int64_t kBlock = kLevels + kSteps * kStepBytes;

  static constexpr int64_t blocks(int64_t K) { return (K + kGroupsBlock - 1) / kGroupsBlock; }
  static constexpr int64_t bytes(int64_t K) { return K / kGroupsStep * kStepBytes + blocks(K) * kLevels; }
  // Groups of block b.
  static constexpr int64_t groups(int64_t K, int64_t b) {
    const int64_t left = K / G - b * kGroups;
    return left < kGroups ? left : kGroups;
  }
  static constexpr Int4GroupsBlock block(const char* panel, int64_t K, int64_t b) {
    const char* at = panel + b * kBlock;
    return {at, at + kMultipliers, at + kOffsets, at + kLevels, groups(K, b), G / kGroupsStep};
  }
};

// By how much offsets of `format`, u4_* or w4a8_*, are shifted.
int int4_groups_shift(Format format);

// The layout of matmul.h for i4_*, u4_* and w4a8_* with groups of 64 and 128, null for other formats. f32,
// f16 and bf16 rows are quantized to `format` on the way.
const WeightLayout* int4_groups_layout(Format format);

}  // namespace oar
