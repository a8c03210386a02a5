// Which tile a block of a product has, and the launch of a block for each.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/last_block.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm_rows.h"

namespace oar::cuda {

// Blocks of a plain product lie along x, weight behind weight, and tiles of rows along y. Of experts the
// tiles of outputs lie along x, and along y the tiles of rows, expert behind expert, of one weight after the
// other.
template <int kOutputs, int kRows, int kMost>
OAR_DEVICE Tile tile_of(const ProductOf<kMost>& p, const GridPlace& at) {
  int64_t x = at.x, y = at.y;
  for (int i = 0, e = p.first; i < p.count; ++i) {
    const int64_t n = p.weights[i].n, outputs = (n + kOutputs - 1) / kOutputs;
    if (p.start == nullptr) {
      if (x < outputs) return {i, x * kOutputs, y * kRows, p.T};
      x -= outputs;
    } else {
      const int64_t begin = p.start[e], end = p.start[e + 1];
      if (++e == p.first + p.each) e = p.first;
      const int64_t tiles = (end - begin + kRows - 1) / kRows;
      if (y < tiles) return {x < outputs ? i : -1, x * kOutputs, begin + y * kRows, end};
      y -= tiles;
    }
  }
  return {-1, 0, 0, 0};
}

OAR_DEVICE GridPlace grid_place() { return {blockIdx.x, blockIdx.y, gridDim.x}; }

// The row of x that belongs to a row of out.
OAR_DEVICE int64_t row_of_x(const ProductRows& p, int64_t row) {
  return p.rows != nullptr ? p.rows[row] : row;
}

// out = sum + bias + residual.
OAR_DEVICE void finish(const ProductRows& p, const ProductWeight& w, int64_t row, int64_t n, float sum) {
  const int64_t at = row * p.ldo + w.out_col + n;
  if (w.bias != nullptr) sum += w.bias[n];
  if (p.residual != nullptr) sum += p.residual[at];
  p.out[at] = sum;
}

// What a gate makes of a tile's rows, by one of the blocks that read them.
OAR_DEVICE void store_made(const ProductRows& p, const Tile& tile) {
  if (p.made == nullptr || tile.n != 0) return;
  const int64_t end = tile.end - tile.begin < kTileRows ? tile.end : tile.begin + kTileRows;
  for (int64_t row = tile.begin; row < end; ++row) {
    for (int64_t k = threadIdx.x; k < p.K; k += blockDim.x) {
      p.made[row * p.ld_made + k] = gated(p.act, p.gate[row * p.ld_gate + k], p.x[row * p.ldx + k]);
    }
  }
}

template <bool kAligned>
OAR_DEVICE void combine_rows(const MoeCombineArgs& a) {
  for_norm_parts(static_cast<int>(a.T), [&](int t, int64_t begin, int) {
    for (int64_t i = begin; i < a.E; i += kNormWidth * kNormThreads) {
      store_quad<kAligned>(a.out + t * a.E, i, a.E, combined<kAligned>(a, t, i));
    }
  });
}

// What follows a tile of few rows when all its blocks are done, or experts' rows when all of the launch are.
// All threads of each block come, of experts those of empty tiles too; `spare`: kFinishFloats of shared
// memory that are read no more.
constexpr int kFinishFloats = kWarp + kTileRows * kNormWarps;
template <bool kExperts>
OAR_DEVICE void finish_rows(const ProductRows& p, const Tile& tile, const GridPlace& at, float* spare) {
  const bool combines = kExperts && p.combine.out != nullptr;
  if (p.norm_count == 0 && !combines) return;
  const int blocks = static_cast<int>(combines ? gridDim.x * gridDim.y : at.across);
  if (!is_last_block(p.counters + (combines ? 0 : at.y), blocks, reinterpret_cast<uint32_t*>(spare))) return;
  const int64_t left = tile.end - tile.begin, first = combines ? 0 : tile.begin;
  const int rows = static_cast<int>(combines ? p.combine.T : left < kTileRows ? left : kTileRows);
  if (combines && p.combine_aligned) combine_rows<true>(p.combine);
  if (combines && !p.combine_aligned) combine_rows<false>(p.combine);
  float* partial = spare + kWarp;
#pragma unroll 1
  for (int i = 0; i < p.norm_count; ++i) {
    // The one before has read its sums.
    __syncthreads();
    if (p.norms_aligned[i]) rms_norm_rows<true>(p.norms[i], first, rows, partial);
    else rms_norm_rows<false>(p.norms[i], first, rows, partial);
  }
}

// Launches a kernel of Product with a block per tile. A cudaError_t.
inline int launch_tiles(void (*kernel)(Product), const Product& p, int outputs, int rows, int threads,
                        size_t shared, Stream stream) {
  constexpr int64_t kMostRowTiles = 65535;  // of a grid
  const TileGrid grid = tile_grid(p, outputs, rows);
  if (grid.x == 0 || grid.y == 0) return 0;
  if (grid.y > kMostRowTiles) return cudaErrorInvalidValue;
  return launch(kernel, dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)),
                static_cast<unsigned>(threads), shared, stream, p);
}

}  // namespace oar::cuda
