// Which tile a block of a product has.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/matmul.h"

namespace oar::cuda {

// Blocks of a plain product lie along x, weight behind weight, and tiles of rows along y. Of experts the
// tiles of outputs lie along x, and along y the tiles of rows, expert behind expert.
OAR_DEVICE Tile tile_of(const Product& p) {
  int64_t x = blockIdx.x, y = blockIdx.y;
  for (int i = 0; i < p.count; ++i) {
    const int64_t n = p.weights[i].n, outputs = (n + kTileOutputs - 1) / kTileOutputs;
    if (p.start == nullptr) {
      if (x < outputs) return {i, x * kTileOutputs, y * kTileRows, p.T};
      x -= outputs;
    } else {
      const int64_t begin = p.start[p.first + i], end = p.start[p.first + i + 1];
      const int64_t tiles = (end - begin + kTileRows - 1) / kTileRows;
      if (y < tiles) return {x < outputs ? i : -1, x * kTileOutputs, begin + y * kTileRows, end};
      y -= tiles;
    }
  }
  return {-1, 0, 0, 0};
}

// The row of x that belongs to a row of out.
OAR_DEVICE int64_t row_of_x(const Product& p, int64_t row) { return p.rows != nullptr ? p.rows[row] : row; }

// out = sum + bias + residual.
OAR_DEVICE void finish(const Product& p, const Product::Weight& w, int64_t row, int64_t n, float sum) {
  const int64_t at = row * p.ldo + w.out_col + n;
  if (w.bias != nullptr) sum += w.bias[n];
  if (p.residual != nullptr) sum += p.residual[at];
  p.out[at] = sum;
}

}  // namespace oar::cuda
