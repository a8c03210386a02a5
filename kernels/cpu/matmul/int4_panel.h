// "int4.panel16": how weights of 4 bits and a scale lie for the CPU kernels, packed once at load; 4.375 bits
// per weight. "int4z.panel16" is the same with offsets, for weights that have a zero or a minimum too; 4.625
// bits.
//
// The weight of code q in a group of 32 k is scale * w8 with the signed byte
//
//   w8 = (m * c[q] + 64) >> 7                            (an arithmetic shift: rounding to nearest)
//
// of the group's signed multiplier m, the f32 scale of its block of 256 k and the format's codebook c: 16 (q
// - 8) for q4_0, i4_g64, i4_g128 and i4_s8_g32, the 16 values of iq4_nl, 32 times mxfp4's (e2m1). With the
// groups' own scales d, m = round(127 * d / max|d|) and scale = 128/127 * max|d| / 16, / 1; of mxfp4, whose
// scales are powers of two, m = 64 d / max|d| and scale = max|d| / 16, so that w8 = 16 q d / max|d| is exact
// of groups down to an eighth of the largest scale, and rounded below that. So the sixteen weights of a group
// are a table of bytes, and one shuffle makes them of codes. The rest of the arithmetic is that of
// int8.panel16, exactly: a token has the same value whether codes are looked up on the way (one token) or the
// panel was expanded first (several). The price is one step of scale at most for a weight, half of it for
// rounding m and half for rounding w8: |error| <= 8 / 127 max|d| of linear codes, 21 dB below the rounding to
// 4 bits that has already happened.
//
// With offsets, m is unsigned, and a signed byte o of each group is added to its table:
//
//   w8 = ((m * c[q]) >> 8) + o                           (rounding downwards)
//
// c is 16 q for u4_* and q4_1, whose groups are d q + a; codes under a negative d are counted from 15
// downwards. scale = max(16 max|d| / 255, max|w| / 125.79) of all sixteen values of the block's groups, m =
// round(16 |d| / scale), and o brings the mean over the codes to the group's, to nearest: |error| <= 1.21
// scale, of which 7.5 / 32 are for rounding m, 15 / 32 for the product and 1 / 2 for o, and nothing leaves a
// byte. c is 256 q for w4a8_*, whose scale is the row's and whose m is s. Codes are counted from the least
// that occurs in a group, q', so that o = s (q' - z) and the products s (q - q') <= 255 are bytes whenever
// all s (q - z) are signed bytes, as the format wants them: exact. A block with others is rounded, |error| <=
// 4.25 scale.
//
// A panel is 16 weight rows, and holds blocks of 256 k, the last one perhaps with fewer groups:
//
//   64 bytes    f32 scales of the 16 rows
//   128 bytes   m, [8 groups][16 rows]
//   128 bytes   o, [8 groups][16 rows], where there are offsets
//   32 lines    [groups][4 j]: row 4 i + j in 16-byte lane i, byte c with code k = c low, k = 16 + c high
//
// The bytes of a lane are those of the file. With this order of rows, transposing 4 x 4 dwords within lanes
// makes lines of int8.panel16 of four lines. The same transpose brings their dots to the order of the
// outputs.
#pragma once

#include "kernels/cpu/matmul/int8_panel.h"

namespace oar {

inline constexpr int64_t kInt4Group = 32;
inline constexpr int64_t kInt4BlockGroups = kPanelBlock / kInt4Group;
inline constexpr int64_t kInt4GroupBytes = 4 * kPanelLine;
inline constexpr int64_t kInt4GroupsBytes = kInt4BlockGroups * kPanelRows;  // of m, and of o

template <bool kOffsets>
struct Int4Panel {
  static constexpr int64_t kHeadBytes = kPanelLine + (kOffsets ? 2 : 1) * kInt4GroupsBytes;
  static constexpr int64_t bytes(int64_t K) {
    return K / kInt4Group * kInt4GroupBytes + panel_blocks(K) * kHeadBytes;
  }
  // Byte offset of block b in a panel: scales, multipliers, offsets, lines.
  static constexpr int64_t block_at(int64_t b) {
    return b * (kHeadBytes + kInt4BlockGroups * kInt4GroupBytes);
  }
};
constexpr int64_t int4_block_groups(int64_t K, int64_t b) {
  const int64_t left = K / kInt4Group - b * kInt4BlockGroups;
  return left < kInt4BlockGroups ? left : kInt4BlockGroups;
}

// Names of the formats whose matmul is that of the layout, without and with offsets; with AVX-512 VNNI those
// with groups of 64 and 128 lie otherwise (int4_groups.h).
constexpr const char* kInt4PanelFormats[] = {"i4_s8_g32", "q4_0", "i4_g64", "i4_g128", "iq4_nl", "mxfp4"};
constexpr const char* kInt4OffsetFormats[] = {"w4a8_g32", "w4a8_g64", "w4a8_g128", "u4_g32",
                                              "u4_g64",   "u4_g128",  "q4_1"};
constexpr const char *kInt4PanelLayoutName = "int4.panel16", *kInt4OffsetLayoutName = "int4z.panel16";
// The codebook of one of them.
const int16_t* int4_codebook(Format format);

// The layout of matmul.h for `format`, or null when it is none of those above. f32, f16 and bf16 rows are
// quantized to `format` on the way, if it has an encoder.
const WeightLayout* int4_panel_layout(Format format);

}  // namespace oar
