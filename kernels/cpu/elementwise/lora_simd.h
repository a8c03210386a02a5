// Low-rank adapters for one instruction set; included by elementwise_<isa>.cc.
//
// Two phases: A x for tiles of ranks, then B times that for tiles of columns. The rows of a block that name
// one adapter are a group; a unit is a tile for the rows of a group, several at once, so that a loaded number
// serves them all. Units stand adapter by adapter, each adapter's in the order of its memory, and chunks
// share them evenly, however many groups there are. Each sum has an accumulator of its own and is made alike
// whatever rows are beside it.
//
// A tile's numbers are read once, in runs that are short for the processor's prefetcher. So each unit fetches
// the next one's beside reading its own.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/lora.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kLoraRows = 32;      // of a block: a bit for each
inline constexpr int64_t kLoraPart = 16;      // rows of a unit at most, for the workers to share one adapter
inline constexpr int64_t kLoraChunks = 64;    // of a block at most
inline constexpr int64_t kLoraRanks = 4;      // of a tile of the first phase
inline constexpr int64_t kLoraColumns = 256;  // of a tile of the second phase: whole panels
inline constexpr int64_t kLoraAhead = 2;      // panels between what is read and what is fetched
// Rows at once: as many as have their accumulators in registers, of which AVX2 and SSE have half as many.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kLoraAtOnce = 6;
#else
inline constexpr int kLoraAtOnce = 2;
#endif

OAR_INLINE int64_t lora_less(int64_t a, int64_t b) { return a < b ? a : b; }

// How a call is cut: the same for every content of its arrays.
struct LoraCut {
  int64_t block_rows, blocks;
  OAR_INLINE explicit LoraCut(const LoraArgs& a)
      : block_rows(lora_less(a.T > 0 ? a.T : 1, kLoraRows)), blocks(row_chunks(a.T, kLoraRows)) {}
  // Tiles of an adapter of so many ranks.
  OAR_INLINE static int64_t tiles(const LoraArgs& a, int phase, int64_t rank) {
    return phase == 0 ? ceil_div(rank, kLoraRanks) : ceil_div(a.n, kLoraColumns);
  }
  OAR_INLINE int64_t chunks(const LoraArgs& a, int phase) const {
    return lora_less(block_rows * tiles(a, phase, a.R), kLoraChunks);
  }
};

inline void lora_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const LoraArgs*>(args);
  const LoraCut cut(a);
  *out = {.phases = 2,
          .chunks = {cut.blocks * cut.chunks(a, 0), cut.blocks * cut.chunks(a, 1)},
          .worker_scratch = 0,
          .shared_scratch = static_cast<size_t>(a.T * a.R) * sizeof(float)};
}

// The rows of a block that name one adapter.
struct LoraGroup {
  int64_t slot, rank, tiles, parts;
  int64_t begin;  // its first unit
  uint32_t rows;  // a bit for each
};

struct LoraGroups {
  int64_t count = 0, units = 0;
  LoraGroup group[kLoraRows];

  OAR_INLINE LoraGroups(const LoraArgs& a, int phase, int64_t first, int64_t rows) {
    constexpr int64_t kPlaces = 64;  // more than rows: a search ends
    int8_t places[kPlaces];
    memset(places, -1, sizeof places);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t slot = a.index[first + i];
      if (slot < 0 || a.ranks[slot] <= 0) continue;
      int64_t at = slot % kPlaces;
      while (places[at] >= 0 && group[places[at]].slot != slot) at = (at + 1) % kPlaces;
      if (places[at] < 0) {
        places[at] = static_cast<int8_t>(count);
        group[count++] = {.slot = slot, .rank = a.ranks[slot], .tiles = 0, .parts = 0, .begin = 0, .rows = 0};
      }
      group[places[at]].rows |= 1u << i;
    }
    for (int64_t g = 0; g < count; ++g) {
      LoraGroup& of = group[g];
      of.tiles = LoraCut::tiles(a, phase, of.rank);
      of.parts = ceil_div(__builtin_popcount(of.rows), kLoraPart);
      of.begin = units;
      units += of.tiles * of.parts;
    }
  }
};

// A tile of an adapter's matrix: ranks of A with all their columns, or panels of B of all its ranks.
template <class T>
struct LoraTile {
  const T* at = nullptr;
  int64_t ranks = 0, columns = 0;

  OAR_INLINE LoraTile() = default;
  OAR_INLINE LoraTile(const LoraArgs& a, int phase, const LoraGroup& g, int64_t tile) {
    if (phase == 0) {
      const int64_t r = tile * kLoraRanks;
      at = static_cast<const T*>(a.a) + (g.slot * a.R + r) * a.K;
      ranks = lora_less(g.rank - r, kLoraRanks);
      columns = a.K;
    } else {
      const int64_t j = tile * kLoraColumns;
      at = static_cast<const T*>(a.b) + (g.slot * a.n + j) * a.R;
      ranks = g.rank;
      columns = lora_less(a.n - j, kLoraColumns);
    }
  }
};

// Fetches lines of `count` numbers, or a part of a line, of a run from `at` on, of which this is number i.
template <class T>
OAR_INLINE void lora_fetch(const T* at, int64_t i, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(T);
  if (at == nullptr || i % kLine >= count) return;
  for (int64_t k = 0; k < count; k += kLine) __builtin_prefetch(at + i + k, 0, 2);
}

// low[row, rank] for kN rows of one adapter and the ranks of `tile`, at most kLoraRanks.
template <class T, int kN>
OAR_INLINE void lora_shrink(const LoraArgs& a, const LoraTile<T>& tile, const LoraTile<T>& next,
                            const int64_t* rows, float* low) {
  // A rank beyond the last reads the last again; its sum is dropped.
  const T *p[kLoraRanks], *soon[kLoraRanks];
  const float* x[kN];
  for (int64_t r = 0; r < kLoraRanks; ++r) {
    p[r] = tile.at + (r < tile.ranks ? r : tile.ranks - 1) * a.K;
    soon[r] = r < next.ranks ? next.at + r * a.K : nullptr;
  }
  for (int i = 0; i < kN; ++i) x[i] = a.x + rows[i] * a.ldx;
  Vf sum[kN][kLoraRanks];
  OAR_UNROLL
  for (int i = 0; i < kN; ++i) {
    OAR_UNROLL
    for (int r = 0; r < kLoraRanks; ++r) sum[i][r] = zero();
  }
  for_lanes(a.K, [&](int64_t k, int64_t lanes) {
    Vf w[kLoraRanks];
    OAR_UNROLL
    for (int r = 0; r < kLoraRanks; ++r) {
      w[r] = load_part(p[r] + k, lanes);
      lora_fetch(soon[r], k, kLanes);
    }
    OAR_UNROLL
    for (int i = 0; i < kN; ++i) {
      const Vf v = load_part(x[i] + k, lanes);
      OAR_UNROLL
      for (int r = 0; r < kLoraRanks; ++r) sum[i][r] = fma(w[r], v, sum[i][r]);
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
  // Vectors at a time: enough that no sum is waited for.
  constexpr int64_t kPanel = kLoraPanel / kLanes;
  constexpr int kWide = kN > 1 ? 4 : kPanel < 8 ? kPanel : 8;
  const float* u[kN];
  float* y[kN];
  for (int i = 0; i < kN; ++i) {
    u[i] = low + rows[i] * a.R;
    y[i] = a.y + rows[i] * a.ldy + begin;
  }
  const int64_t fetched = next.ranks > 0 ? kLoraAhead * kLoraPanel : 0;
  for (int64_t panel = 0; panel < tile.columns; panel += kLoraPanel) {
    const T* at = tile.at + panel * a.R;
    const int64_t width = lora_less(tile.columns - panel, kLoraPanel), far = panel + fetched;
    // Of this tile, or of the next one.
    const T* soon = fetched == 0         ? nullptr
                    : far < tile.columns ? tile.at + far * a.R
                    : far - tile.columns < next.columns
                        ? next.at + (far - tile.columns) / kLoraPanel * kLoraPanel * a.R
                        : nullptr;
    int64_t j = 0;
    for (; j + kWide * kLanes <= width; j += kWide * kLanes) {
      Vf sum[kN][kWide];
      OAR_UNROLL
      for (int i = 0; i < kN; ++i) {
        OAR_UNROLL
        for (int v = 0; v < kWide; ++v) sum[i][v] = zero();
      }
      for (int64_t r = 0; r < tile.ranks; ++r) {
        const T* p = at + r * width + j;
        lora_fetch(soon, r * kLoraPanel + j, kWide * kLanes);
        Vf w[kWide];
        OAR_UNROLL
        for (int v = 0; v < kWide; ++v) w[v] = load(p + v * kLanes);
        OAR_UNROLL
        for (int i = 0; i < kN; ++i) {
          const Vf b = set1(u[i][r]);
          OAR_UNROLL
          for (int v = 0; v < kWide; ++v) sum[i][v] = fma(w[v], b, sum[i][v]);
        }
      }
      OAR_UNROLL
      for (int i = 0; i < kN; ++i) {
        OAR_UNROLL
        for (int v = 0; v < kWide; ++v) {
          float* out = y[i] + panel + j + v * kLanes;
          store(out, load(out) + sum[i][v]);
        }
      }
    }
    for (; j < width; j += kLanes) {
      const int64_t lanes = lora_less(width - j, kLanes);
      for (int i = 0; i < kN; ++i) {
        Vf sum = zero();
        for (int64_t r = 0; r < tile.ranks; ++r)
          sum = fma(load_part(at + r * width + j, lanes), set1(u[i][r]), sum);
        float* out = y[i] + panel + j;
        store_part(out, load_part(out, lanes) + sum, lanes);
      }
    }
  }
}

template <class T, int kN>
OAR_INLINE void lora_rows(const LoraArgs& a, int phase, const LoraTile<T>& tile, const LoraTile<T>& next,
                          const int64_t* rows, int64_t number, float* low) {
  if (phase == 0) lora_shrink<T, kN>(a, tile, next, rows, low + number * kLoraRanks);
  else lora_expand<T, kN>(a, tile, next, rows, low, number * kLoraColumns);
}

// Units [begin, end) of the block whose first row is `first`.
template <class T>
OAR_INLINE void lora_units(const LoraArgs& a, int phase, int64_t first, const LoraGroups& groups,
                           int64_t begin, int64_t end, float* low) {
  int64_t g = 0;
  for (int64_t unit = begin; unit < end; ++unit) {
    while (g + 1 < groups.count && groups.group[g + 1].begin <= unit) ++g;
    const LoraGroup& group = groups.group[g];
    const int64_t tile = (unit - group.begin) / group.parts, part = (unit - group.begin) % group.parts;
    int64_t rows[kLoraPart], n = 0, passed = part * kLoraPart;
    for (uint32_t left = group.rows; left != 0 && n < kLoraPart; left &= left - 1) {
      if (passed-- <= 0) rows[n++] = first + __builtin_ctz(left);
    }
    const LoraTile<T> its(a, phase, group, tile);
    // The first rows fetch what comes next.
    LoraTile<T> next;
    if (part == 0 && tile + 1 < group.tiles) next = LoraTile<T>(a, phase, group, tile + 1);
    else if (part == 0 && g + 1 < groups.count) next = LoraTile<T>(a, phase, groups.group[g + 1], 0);
    int64_t i = 0;
    for (; i + kLoraAtOnce <= n; i += kLoraAtOnce, next = {})
      lora_rows<T, kLoraAtOnce>(a, phase, its, next, rows + i, tile, low);
    if constexpr (kLoraAtOnce > 4) {
      for (; i + 4 <= n; i += 4, next = {}) lora_rows<T, 4>(a, phase, its, next, rows + i, tile, low);
    }
    for (; i < n; ++i, next = {}) lora_rows<T, 1>(a, phase, its, next, rows + i, tile, low);
  }
}

template <class T>
inline void lora_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const LoraArgs*>(args);
  const LoraCut cut(a);
  const int64_t chunks = cut.chunks(a, phase);
  while (begin < end) {
    const int64_t block = begin / chunks, first = block * cut.block_rows,
                  stop = lora_less(end, (block + 1) * chunks);
    const LoraGroups groups(a, phase, first, lora_less(a.T - first, cut.block_rows));
    lora_units<T>(a, phase, first, groups, (begin - block * chunks) * groups.units / chunks,
                  (stop - block * chunks) * groups.units / chunks, static_cast<float*>(scratch.shared));
    begin = stop;
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
