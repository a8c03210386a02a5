// Matmul of weights in the layouts of int4_groups.h, for any number of tokens:
//
//   64 tokens at a time (int4_groups_token.h)
//     panel after panel of 32 rows
//       256 k after 256 k: 4 KB of levels, read once from memory, then from the first-level cache
//         tiles of 32 rows and up to Arch::kTileTokens tokens
//
// so weights are read evenly whatever the batch, and one arithmetic serves them all: an output depends on its
// row, its token and K alone. The first tiles of a block fetch what comes kAhead later. For kManyTokens and
// more, weights that are bytes (w4a8's) are expanded to int8.panel16, a piece at a time. The core of 8-bit
// weights multiplies them, with the same result.
//
//   struct Arch {
//     using Int8;  // int8_core.h's
//     // Sixteen rows of a block, half `half` of its panel, to a block of int8.panel16.
//     static void expand(const Int4GroupsBlock&, int64_t half, char* to);
//     static constexpr int kTileTokens;
//     static void quantize(const float*, int64_t group, GroupsToken*);  // as GroupsToken::quantize
//     // Adds the products of one block of 256 k and tiles of NT tokens to their sums.
//     template <bool kOffsets, int NT, int kFetch>
//     static void block(const Int4GroupsTask&);
//   };
//
// Roofline: one token, bytes of the weights over memory bandwidth. Many: G / 4 dot products of sixteen rows
// for one multiplication with m and, with offsets, half a product of theirs.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "kernels/cpu/matmul/int4_groups_token.h"
#include "kernels/cpu/matmul/int8_core.h"
#include "kernels/cpu/unrolled.h"

namespace oar {
namespace {  // compiled with the flags of every instruction set

// Tiles of a block and of as many tokens each, one after the other.
struct Int4GroupsTask {
  Int4GroupsBlock w;
  int shift;   // of offsets
  bool first;  // of the panel: the sums begin
  const GroupsToken* x;
  float (*sums)[kGroupsRows];
  int64_t tiles;
  // Fetched meanwhile, the same number of lines by each of `ahead_tiles`. Those after them fetch the
  // activations of the next tile.
  const char* ahead;
  int64_t ahead_tiles;
};

// No loop, no condition: either costs a tile a tenth.
template <int kLines>
[[gnu::always_inline]] inline void fetch_lines(const char* at) {
  unrolled<kLines>([&](auto i) OAR_INLINE_BODY { __builtin_prefetch(at + i * 64, 0, 3); });
}

// kBytes: with offsets, and all weights are bytes.
template <class Arch, int G, bool kOffsets, bool kBytes>
struct Int4GroupsCore {
  using Panel = Int4GroupsPanel<G, kOffsets>;
  using Token = GroupsToken;
  // Tokens at a time: a block of theirs, its weights and the sums fit 32 KB, all of K the second-level cache.
  static constexpr int64_t kTokens = 64, kTokensBytes = 192 << 10;
  // 100 ns of latency at 20 GB/s of one core are 2 KB; four times that, since tiles of a block that is read
  // again ask for less than they multiply.
  static constexpr int64_t kAhead = 8192;
  // With more tokens a chunk is read again for each kTokens, from the second-level cache.
  static constexpr int64_t kManyTokensChunks = 64, kPieceBytes = 128 << 10;

  // From here on expanding is no slower (Zen 5: 512 tokens 1.03 times as fast, 128 0.93).
  static constexpr int64_t kManyTokens = 320;
  using Int8 = Int8Core<typename Arch::Int8>;
  static bool expands(int64_t tokens) { return kBytes && tokens >= kManyTokens; }
  static int64_t piece_rows(int64_t K) {
    return std::max<int64_t>(1, Int8::kPieceBytes / (panel_bytes(K) / kPanelRows) / Int8::kTileRows) *
           Int8::kTileRows;
  }

  static int64_t x_bytes(int64_t K) {
    return kBytes ? std::max(Token::bytes(K), Int8Tokens::bytes(K)) : Token::bytes(K);
  }
  static int64_t w_bytes(const MatmulView& v) { return Panel::bytes(v.K) / kGroupsRows; }
  static int64_t scratch_bytes(const MatmulView& v) {
    return expands(v.P) ? piece_rows(v.K) / kPanelRows * panel_bytes(v.K) : 0;
  }
  static int64_t chunk_rows(const MatmulView& v, int64_t total_rows) {
    if (v.P / v.runs <= kTokens) return default_chunk_rows(v, total_rows, w_bytes(v), kGroupsRows);
    if (expands(v.P / v.runs)) {
      // Whole panels too: experts of a grouped matmul have few tokens or many.
      constexpr int64_t kWhole = std::lcm(Int8::kTileRows, kGroupsRows);
      return std::max(kWhole, std::min(total_rows / kManyTokensChunks, piece_rows(v.K)) / kWhole * kWhole);
    }
    const int64_t rows = std::min(total_rows / kManyTokensChunks, kPieceBytes / w_bytes(v));
    return std::max(kGroupsRows, rows / kGroupsRows * kGroupsRows);
  }
  static void pack(void* run, const PackTask& p) {
    if (expands(p.tokens)) return Int8Tokens::pack(run, p);
    Token::pack(run, p, G, Arch::quantize);
  }

  static void panel(const PanelTask& p) {
    if constexpr (kBytes) {
      if (expands(p.tokens)) return expanded(p);
    }
    const int shift = kOffsets ? int4_groups_shift(p.format) : 0;
    const int64_t bytes = Panel::bytes(p.K), blocks = Panel::blocks(p.K);
    const int64_t together = tokens_together(p.K);
    for (int64_t t = 0; t < p.tokens; t += together) {
      const int64_t n = std::min(together, p.tokens - t), tiles = (n + kTile - 1) / kTile;
      // As even as possible: `larger` tiles of one token more than the others.
      const int64_t least = n / tiles, larger = n % tiles;
      const bool few = tiles < kFetchTiles;
      const int64_t ahead_tiles = few ? 1 : kFetchTiles;
      const auto& block_of = few ? kAlone : kShared;
      const auto* x = static_cast<const Token*>(p.x) + t;
      const char* w = static_cast<const char*>(p.w) + p.row_begin / kGroupsRows * bytes;
      for (int64_t row = p.row_begin; row < p.row_end; row += kGroupsRows, w += bytes) {
        alignas(64) float sums[kTokens][kGroupsRows];
        for (int64_t b = 0; b < blocks; ++b) {
          const char* block = w + b * Panel::kBlock;
          const bool last = b + 1 == blocks;  // whose sums leave tile by tile
          for (int64_t tile = 0, of = 0; tile < tiles; tile += of) {
            of = last ? 1 : tile < larger ? larger : tiles - tile;  // of the same size
            const int64_t j = tile * least + std::min(tile, larger), size = least + (tile < larger ? 1 : 0);
            block_of[static_cast<size_t>(size - 1)](
                {Panel::block(w, p.K, b), shift, b == 0, x + b * p.tokens + j, sums + j, of,
                 block + kAhead + tile * kTileLines * 64, ahead_tiles - tile});
            if (last) store(p, row, t + j, size, sums + j);
          }
        }
      }
    }
  }

 private:
  static void expanded(const PanelTask& p) {
    const int64_t step = piece_rows(p.K), bytes = Panel::bytes(p.K);
    char* piece = static_cast<char*>(p.scratch);
    for (int64_t row = p.row_begin; row < p.row_end; row += step) {
      const int64_t n = std::min(step, p.row_end - row);
      for (int64_t r = 0; r < n; r += kPanelRows) {
        const char* w = static_cast<const char*>(p.w) + (row + r) / kGroupsRows * bytes;
        char* to = piece + r / kPanelRows * panel_bytes(p.K);
        for (int64_t b = 0; b < Panel::blocks(p.K); ++b) {
          Arch::expand(Panel::block(w, p.K, b), (row + r) / kPanelRows % (kGroupsRows / kPanelRows),
                       to + panel_block_at(b));
        }
      }
      PanelTask q = piece_of(p, row, n, piece);
      // The next piece, of this chunk or most likely of this worker's next one.
      const int64_t next = row + n;
      q.ahead = static_cast<const char*>(p.w) + next / kGroupsRows * bytes;
      q.ahead_bytes = std::max<int64_t>(0, std::min(n, p.rows - next)) / kGroupsRows * bytes;
      Int8::panel(q);
    }
  }

  static int64_t tokens_together(int64_t K) {
    return std::clamp<int64_t>(kTokensBytes / x_bytes(K) / kTile * kTile, 3 * kTile, kTokens);
  }

  static constexpr int kTile = Arch::kTileTokens;
  // Lines beside 32 k: all of a block's by one tile, or by three.
  static constexpr int kFetch = 9, kFetchTiles = 3;
  static constexpr int64_t kTileLines = kFetch / kFetchTiles * Panel::kSteps;
  static_assert(kTileLines * kFetchTiles * 64 >= Panel::kBlock);

  using Block = void (*)(const Int4GroupsTask&);
  // By the number of tokens, from kLeast on.
  template <int kLines, int kLeast>
  static constexpr auto blocks_of() {
    return []<int... kToken>(std::integer_sequence<int, kToken...>) {
      return std::array<Block, kTile>{
          kToken + 1 < kLeast ? nullptr
                              : &Arch::template block<kOffsets, std::max(kLeast, kToken + 1), kLines>...};
    }
    (std::make_integer_sequence<int, kTile>{});
  }
  static constexpr auto kAlone = blocks_of<kFetch, 1>();
  // Where there are three tiles, they have this many tokens at least.
  static constexpr auto kShared = blocks_of<kFetch / kFetchTiles, (2 * kTile + 1) / kFetchTiles>();

  static void store(const PanelTask& p, int64_t row, int64_t t, int64_t n, float (*sums)[kGroupsRows]) {
    const int64_t rows = std::min(kGroupsRows, p.row_end - row);
    for (int64_t j = 0; j < n; ++j) {
      float* out = p.out + (t + j) * p.ldo + row;
      if (p.bias != nullptr) add(sums[j], p.bias + row, rows);
      if (p.residual != nullptr) add(sums[j], p.residual + (out - p.out), rows);
      if (rows == kGroupsRows) {
        std::memcpy(out, sums[j], sizeof *sums);
      } else {
        std::memcpy(out, sums[j], static_cast<size_t>(rows) * sizeof(float));
      }
    }
  }
  static void add(float* __restrict to, const float* __restrict from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }
};

// The core for the formats of the layouts.
template <class Arch>
constexpr auto int4_groups_kernels(Isa isa) {
  return join(MatmulDriver<Int4GroupsCore<Arch, 64, false, false>>::kernels("i4_g64", isa),
              MatmulDriver<Int4GroupsCore<Arch, 128, false, false>>::kernels("i4_g128", isa),
              MatmulDriver<Int4GroupsCore<Arch, 64, true, false>>::kernels("u4_g64", isa),
              MatmulDriver<Int4GroupsCore<Arch, 128, true, false>>::kernels("u4_g128", isa),
              MatmulDriver<Int4GroupsCore<Arch, 64, true, true>>::kernels("w4a8_g64", isa),
              MatmulDriver<Int4GroupsCore<Arch, 128, true, true>>::kernels("w4a8_g128", isa));
}

}  // namespace
}  // namespace oar
