// Low-rank adapters for one instruction set; included by elementwise_<isa>.cc.
//
// Two phases: A x for tiles of ranks, then B times that for tiles of columns. A chunk finds the rows of its
// block that share an adapter and takes several at once, so that a loaded number serves them all. Each sum
// has an accumulator of its own and is made alike whatever rows are beside it.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/lora.h"
#include "kernels/partition.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kLoraRows = 32;      // of a chunk
inline constexpr int64_t kLoraRanks = 4;      // of a chunk of the first phase
inline constexpr int64_t kLoraColumns = 512;  // of a chunk of the second phase
// Rows at once: as many as have their accumulators in registers, of which AVX2 and SSE have half as many.
#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kLoraAtOnce = 4;
#else
inline constexpr int kLoraAtOnce = 2;
#endif

inline void lora_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const LoraArgs*>(args);
  const int64_t blocks = row_chunks(a.T, kLoraRows);
  *out = {.phases = 2,
          .chunks = {blocks * ceil_div(a.R, kLoraRanks), blocks * ceil_div(a.n, kLoraColumns)},
          .worker_scratch = 0,
          .shared_scratch = static_cast<size_t>(a.T * a.R) * sizeof(float)};
}

// low[row, rank] for kN rows of one adapter and up to kLoraRanks of its ranks.
template <class T, int kN>
OAR_INLINE void lora_shrink(const LoraArgs& a, const T* rows_of_a, const int64_t* rows, int64_t ranks,
                            float* low) {
  // A rank beyond the last reads the last again; its sum is dropped.
  const T* p[kLoraRanks];
  for (int64_t r = 0; r < kLoraRanks; ++r) p[r] = rows_of_a + (r < ranks ? r : ranks - 1) * a.K;
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
      OAR_UNROLL
      for (int i = 0; i < kN; ++i) sum[i][r] = fma(w, x[i], sum[i][r]);
    }
  });
  OAR_UNROLL
  for (int i = 0; i < kN; ++i) {
    OAR_UNROLL
    for (int r = 0; r < kLoraRanks; ++r) {
      if (r < ranks) low[rows[i] * a.R + r] = reduce_add(sum[i][r]);
    }
  }
}

// Columns [begin, end) of kN rows of one adapter.
template <class T, int kN>
OAR_INLINE void lora_expand(const LoraArgs& a, const T* b, const int64_t* rows, int64_t rank,
                            const float* low, int64_t begin, int64_t end) {
  constexpr int kWide = 2;  // vectors at a time
  int64_t j = begin;
  for (; j + kWide * kLanes <= end; j += kWide * kLanes) {
    Vf sum[kN][kWide];
    OAR_UNROLL
    for (int i = 0; i < kN; ++i) {
      OAR_UNROLL
      for (int v = 0; v < kWide; ++v) sum[i][v] = zero();
    }
    for (int64_t r = 0; r < rank; ++r) {
      const T* p = b + r * a.n + j;
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
      float* y = a.y + rows[i] * a.ldy + j;
      OAR_UNROLL
      for (int v = 0; v < kWide; ++v) store(y + v * kLanes, load(y + v * kLanes) + sum[i][v]);
    }
  }
  for (; j < end; j += kLanes) {
    const int64_t lanes = end - j < kLanes ? end - j : kLanes;
    for (int i = 0; i < kN; ++i) {
      Vf sum = zero();
      for (int64_t r = 0; r < rank; ++r)
        sum = fma(load_part(b + r * a.n + j, lanes), set1(low[rows[i] * a.R + r]), sum);
      float* y = a.y + rows[i] * a.ldy + j;
      store_part(y, load_part(y, lanes) + sum, lanes);
    }
  }
}

// Calls f<rows at once>(slot, rows) over the rows of a block, those of one adapter together.
template <class F>
OAR_INLINE void lora_groups(const LoraArgs& a, int64_t block, F&& f) {
  const int64_t first = block * kLoraRows;
  const int64_t count = a.T - first < kLoraRows ? a.T - first : kLoraRows;
  uint32_t left = 0;
  for (int64_t i = 0; i < count; ++i) left |= a.index[first + i] >= 0 ? 1u << i : 0u;
  while (left != 0) {
    const int32_t slot = a.index[first + __builtin_ctz(left)];
    int64_t rows[kLoraRows], n = 0;
    for (int64_t i = 0; i < count; ++i) {
      if ((left >> i & 1u) == 0 || a.index[first + i] != slot) continue;
      rows[n++] = first + i;
      left &= ~(1u << i);
    }
    f(slot, rows, n);
  }
}

template <class T>
OAR_INLINE void lora_shrink_chunk(const LoraArgs& a, int64_t block, int64_t tile, float* low) {
  lora_groups(a, block, [&](int32_t slot, const int64_t* rows, int64_t n) {
    const int64_t r = tile * kLoraRanks, rank = a.ranks[slot];
    if (r >= rank) return;
    const int64_t ranks = rank - r < kLoraRanks ? rank - r : kLoraRanks;
    const T* p = static_cast<const T*>(a.a) + (slot * a.R + r) * a.K;
    int64_t i = 0;
    for (; i + kLoraAtOnce <= n; i += kLoraAtOnce)
      lora_shrink<T, kLoraAtOnce>(a, p, rows + i, ranks, low + r);
    for (; i < n; ++i) lora_shrink<T, 1>(a, p, rows + i, ranks, low + r);
  });
}

template <class T>
OAR_INLINE void lora_expand_chunk(const LoraArgs& a, int64_t block, int64_t tile, const float* low) {
  lora_groups(a, block, [&](int32_t slot, const int64_t* rows, int64_t n) {
    const int64_t rank = a.ranks[slot], begin = tile * kLoraColumns;
    if (rank == 0) return;
    const int64_t end = a.n - begin < kLoraColumns ? a.n : begin + kLoraColumns;
    const T* p = static_cast<const T*>(a.b) + slot * a.R * a.n;
    int64_t i = 0;
    for (; i + kLoraAtOnce <= n; i += kLoraAtOnce)
      lora_expand<T, kLoraAtOnce>(a, p, rows + i, rank, low, begin, end);
    for (; i < n; ++i) lora_expand<T, 1>(a, p, rows + i, rank, low, begin, end);
  });
}

template <class T>
inline void lora_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const LoraArgs*>(args);
  auto* low = static_cast<float*>(scratch.shared);
  const int64_t tiles = phase == 0 ? ceil_div(a.R, kLoraRanks) : ceil_div(a.n, kLoraColumns);
  for (int64_t c = begin; c < end; ++c) {
    if (phase == 0) lora_shrink_chunk<T>(a, c / tiles, c % tiles, low);
    else lora_expand_chunk<T>(a, c / tiles, c % tiles, low);
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
