// Which tile a block of a product has, and the launch of a block for each.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/last_block.h"
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

// What follows a tile of few rows when all its blocks are done. All threads of each come; `spare`:
// kFinishFloats of shared memory that are written no more.
constexpr int kFinishFloats = kWarp + kTileRows * kNormWarps;
OAR_DEVICE void finish_rows(const ProductRows& p, const Tile& tile, const GridPlace& at, float* spare) {
  if (p.norm_count == 0) return;
  const int blocks = static_cast<int>(at.across), left = static_cast<int>(tile.end - tile.begin);
  if (!is_last_block(p.counters + at.y, blocks, reinterpret_cast<uint32_t*>(spare))) return;
  const int rows = left < kTileRows ? left : kTileRows;
  float* partial = spare + kWarp;
#pragma unroll 1
  for (int i = 0; i < p.norm_count; ++i) {
    // The one before has read its sums.
    __syncthreads();
    if (p.norms_aligned[i]) rms_norm_rows<true>(p.norms[i], tile.begin, rows, partial);
    else rms_norm_rows<false>(p.norms[i], tile.begin, rows, partial);
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
