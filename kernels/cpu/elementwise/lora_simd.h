// Low-rank adapters for one instruction set; included by elementwise_<isa>.cc.
//
// Two phases: A x for tiles of ranks, then B times that for tiles of columns. A chunk is a tile and some
// rows: the first row of a block that names an adapter computes the tile for all of them, several at once, so
// that a loaded number serves them all. Each sum has an accumulator of its own and is made alike whatever
// rows are beside it.
//
// A tile's numbers are read once, in runs no longer than a page, where the processor's prefetcher begins late
// and stops early. So each chunk fetches the next one's beside reading its own.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/lora.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kLoraRows = 32;      // of a block
inline constexpr int64_t kLoraParts = 4;      // of a block, for the workers to share
inline constexpr int64_t kLoraRanks = 4;      // of a tile of the first phase
inline constexpr int64_t kLoraColumns = 512;  // of a tile of the second phase
// Rows at once: as many as have their accumulators in registers, of which AVX2 and SSE have half as many.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kLoraAtOnce = 4;
#else
inline constexpr int kLoraAtOnce = 2;
#endif

OAR_INLINE int64_t lora_less(int64_t a, int64_t b) { return a < b ? a : b; }

// How a call is cut. Chunk (block, tile, part) has number (block * tiles + tile) * parts + part.
struct LoraCut {
  int64_t block_rows, part_rows, parts, blocks;
  OAR_INLINE explicit LoraCut(const LoraArgs& a)
      : block_rows(lora_less(a.T > 0 ? a.T : 1, kLoraRows)),
        part_rows(ceil_div(block_rows, kLoraParts)),
        parts(ceil_div(block_rows, part_rows)),
        blocks(row_chunks(a.T, kLoraRows)) {}
  OAR_INLINE static int64_t tiles(const LoraArgs& a, int phase) {
    return phase == 0 ? ceil_div(a.R, kLoraRanks) : ceil_div(a.n, kLoraColumns);
  }
};

inline void lora_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const LoraArgs*>(args);
  const LoraCut cut(a);
  const int64_t parts = cut.blocks * cut.parts;
  *out = {.phases = 2,
          .chunks = {parts * LoraCut::tiles(a, 0), parts * LoraCut::tiles(a, 1)},
          .worker_scratch = 0,
          .shared_scratch = static_cast<size_t>(a.T * a.R) * sizeof(float)};
}

// A tile of an adapter's matrix: ranks of A with all their columns, or columns of B of all its ranks.
template <class T>
struct LoraTile {
  const T* at = nullptr;
  int64_t ranks = 0, columns = 0, stride = 0;  // numbers from rank to rank

  // Fetches lines of `count` numbers, or a part of a line.
  OAR_INLINE void fetch(int64_t rank, int64_t column, int64_t count) const {
    constexpr int64_t kLine = 64 / sizeof(T);
    if (rank >= ranks || column >= columns || column % kLine >= count) return;
    for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(at + rank * stride + column + i, 0, 2);
  }
};

// low[row, rank] for kN rows of one adapter and the ranks of `tile`, at most kLoraRanks.
template <class T, int kN>
OAR_INLINE void lora_shrink(const LoraArgs& a, const LoraTile<T>& tile, const LoraTile<T>& next,
                            const int64_t* rows, float* low) {
  // A rank beyond the last reads the last again; its sum is dropped.
  const T* p[kLoraRanks];
  for (int64_t r = 0; r < kLoraRanks; ++r) p[r] = tile.at + (r < tile.ranks ? r : tile.ranks - 1) * a.K;
  Vf sum[kN][kLoraRanks];
  OAR_UNROLL
  for (int i = 0; i < kN; ++i) {
    OAR_UNROLL
    for (int r = 0; r < kLoraRanks; ++r) sum[i][r] = zero();
  }
  for_lanes(a.K, [&](int64_t k, int64_t lanes) {
    Vf x[kN];
    OAR_UNROLL
    for (int i = 0; i < kN; ++i) x[i] = load_part(a.x + rows[i] * a.ldx + k, lanes);
    OAR_UNROLL
    for (int r = 0; r < kLoraRanks; ++r) {
      const Vf w = load_part(p[r] + k, lanes);
      next.fetch(r, k, kLanes);
      OAR_UNROLL
      for (int i = 0; i < kN; ++i) sum[i][r] = fma(w, x[i], sum[i][r]);
    }
  });
  OAR_UNROLL
  for (int i = 0; i < kN; ++i) {
    OAR_UNROLL
    for (int r = 0; r < kLoraRanks; ++r) {
      if (r < tile.ranks) low[rows[i] * a.R + r] = reduce_add(sum[i][r]);
    }
  }
}

// The columns of `tile`, of which the first is `begin`, of kN rows of one adapter.
template <class T, int kN>
OAR_INLINE void lora_expand(const LoraArgs& a, const LoraTile<T>& tile, const LoraTile<T>& next,
                            const int64_t* rows, const float* low, int64_t begin) {
  constexpr int kWide = kN == 1 ? 8 : 2;  // vectors at a time: enough that no sum is waited for
  int64_t j = 0;
  for (; j + kWide * kLanes <= tile.columns; j += kWide * kLanes) {
    Vf sum[kN][kWide];
    OAR_UNROLL
    for (int i = 0; i < kN; ++i) {
      OAR_UNROLL
      for (int v = 0; v < kWide; ++v) sum[i][v] = zero();
    }
    for (int64_t r = 0; r < tile.ranks; ++r) {
      const T* p = tile.at + r * tile.stride + j;
      next.fetch(r, j, kWide * kLanes);
      Vf w[kWide];
      OAR_UNROLL
      for (int v = 0; v < kWide; ++v) w[v] = load(p + v * kLanes);
      OAR_UNROLL
      for (int i = 0; i < kN; ++i) {
        const Vf u = set1(low[rows[i] * a.R + r]);
        OAR_UNROLL
        for (int v = 0; v < kWide; ++v) sum[i][v] = fma(w[v], u, sum[i][v]);
      }
    }
    OAR_UNROLL
    for (int i = 0; i < kN; ++i) {
      float* y = a.y + rows[i] * a.ldy + begin + j;
      OAR_UNROLL
      for (int v = 0; v < kWide; ++v) store(y + v * kLanes, load(y + v * kLanes) + sum[i][v]);
    }
  }
  for (; j < tile.columns; j += kLanes) {
    const int64_t lanes = lora_less(tile.columns - j, kLanes);
    for (int i = 0; i < kN; ++i) {
      Vf sum = zero();
      for (int64_t r = 0; r < tile.ranks; ++r)
        sum = fma(load_part(tile.at + r * tile.stride + j, lanes), set1(low[rows[i] * a.R + r]), sum);
      float* y = a.y + rows[i] * a.ldy + begin + j;
      store_part(y, load_part(y, lanes) + sum, lanes);
    }
  }
}

// The tile of row `row` of a block; without ranks where the row does not compute it: it has no adapter, an
// earlier row of the block has the same, or the adapter has fewer ranks.
template <class T>
OAR_INLINE LoraTile<T> lora_tile(const LoraArgs& a, int phase, const int32_t* index, int64_t row,
                                 int64_t tile) {
  const int64_t slot = index[row];
  if (slot < 0) return {};
  for (int64_t i = 0; i < row; ++i) {
    if (index[i] == slot) return {};
  }
  const int64_t rank = a.ranks[slot];
  if (phase == 0) {
    const int64_t r = tile * kLoraRanks;
    if (r >= rank) return {};
    return {static_cast<const T*>(a.a) + (slot * a.R + r) * a.K, lora_less(rank - r, kLoraRanks), a.K, a.K};
  }
  const int64_t j = tile * kLoraColumns;
  return {static_cast<const T*>(a.b) + slot * a.R * a.n + j, rank, lora_less(a.n - j, kLoraColumns), a.n};
}

// What is computed after the tile of `row`: that of a later row of the block, or of a row in the next tile.
template <class T>
OAR_INLINE LoraTile<T> lora_next(const LoraArgs& a, int phase, const int32_t* index, int64_t count,
                                 int64_t row, int64_t tile) {
  for (int64_t i = row + 1; i < count; ++i) {
    if (const auto next = lora_tile<T>(a, phase, index, i, tile); next.ranks > 0) return next;
  }
  for (int64_t i = 0; i <= row && tile + 1 < LoraCut::tiles(a, phase); ++i) {
    if (const auto next = lora_tile<T>(a, phase, index, i, tile + 1); next.ranks > 0) return next;
  }
  return {};
}

template <class T, int kN>
OAR_INLINE void lora_rows(const LoraArgs& a, int phase, const LoraTile<T>& tile, const LoraTile<T>& next,
                          const int64_t* rows, int64_t number, float* low) {
  if (phase == 0) lora_shrink<T, kN>(a, tile, next, rows, low + number * kLoraRanks);
  else lora_expand<T, kN>(a, tile, next, rows, low, number * kLoraColumns);
}

// The tile of `row` for all rows of the block that name its adapter; nothing where an earlier one does that.
template <class T>
OAR_INLINE void lora_chunk(const LoraArgs& a, int phase, int64_t first, int64_t count, int64_t row,
                           int64_t number, float* low) {
  const int32_t* index = a.index + first;
  const auto tile = lora_tile<T>(a, phase, index, row, number);
  if (tile.ranks == 0) return;
  int64_t rows[kLoraRows], n = 0;
  for (int64_t i = row; i < count; ++i) {
    if (index[i] == index[row]) rows[n++] = first + i;
  }
  // The first rows fetch what comes next.
  auto next = lora_next<T>(a, phase, index, count, row, number);
  int64_t i = 0;
  for (; i + kLoraAtOnce <= n; i += kLoraAtOnce, next = {})
    lora_rows<T, kLoraAtOnce>(a, phase, tile, next, rows + i, number, low);
  for (; i < n; ++i, next = {}) lora_rows<T, 1>(a, phase, tile, next, rows + i, number, low);
}

template <class T>
inline void lora_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const LoraArgs*>(args);
  const LoraCut cut(a);
  const int64_t tiles = LoraCut::tiles(a, phase);
  for (int64_t c = begin; c < end; ++c) {
    const int64_t tile = c / cut.parts, first = tile / tiles * cut.block_rows,
                  row = c % cut.parts * cut.part_rows;
    const int64_t count = lora_less(a.T - first, cut.block_rows);
    for (int64_t i = row; i < lora_less(row + cut.part_rows, count); ++i)
      lora_chunk<T>(a, phase, first, count, i, tile % tiles, static_cast<float*>(scratch.shared));
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
