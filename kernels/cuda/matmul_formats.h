// The general product: a format's own decoder brings rows of weights into shared memory as f32. One thread
// decodes a block of the format, one thread makes one output. Included by the files that list formats.
#pragma once

#include <algorithm>

#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul_tiles.h"
#include "quant/format.h"

namespace oar::cuda {

// Blocks [first, first + count) of a row, as FormatInfo::decode.
using Decode = void (*)(const void* row, int64_t first, int64_t count, float* out);

constexpr int kGeneralThreads = kTileOutputs * kTileRows;
constexpr int kRun = 256;             // elements of K that are summed by themselves
constexpr int kRowFloats = kRun + 1;  // rows lie in different banks
constexpr size_t kGeneralShared =
    (kTileOutputs + kTileRows) * ((kRowFloats * sizeof(float) + 127) / 128 * 128) + 256;

template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
__global__ void __launch_bounds__(kGeneralThreads) general_product(Product p) {
  wait_for_launches();
  static_assert(kRun % kElems == 0);
  SharedMemory shared;
  float* ws = shared.take<float>(kTileOutputs * kRowFloats);
  float* xs = shared.take<float>(kTileRows * kRowFloats);
  const Tile tile = tile_of<kTileOutputs, kTileRows>(p, grid_place());
  if (tile.index < 0) return;
  const ProductWeight& weight = p.weights[tile.index];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t stride = kHeadBytes + p.K / kElems * kBlockBytes;

  const int output = thread % kTileOutputs, row = thread / kTileOutputs;
  // Computed where it is wanted: kept through the loop it would cost a register, and iq3_xxs a stack.
  const auto has_output = [&] { return tile.n + output < weight.n && tile.begin + row < tile.end; };
  float total = 0.f;
  for (int64_t k0 = 0; k0 < p.K; k0 += kRun) {
    const int length = static_cast<int>(p.K - k0 < kRun ? p.K - k0 : kRun);
    const int blocks = length / kElems;
    for (int unit = thread; unit < kTileOutputs * blocks; unit += kGeneralThreads) {
      const int r = unit / blocks, b = unit % blocks;
      if (tile.n + r >= weight.n) break;
      kDecode(static_cast<const char*>(weight.w) + (tile.n + r) * stride, k0 / kElems + b, 1,
              ws + r * kRowFloats + b * kElems);
    }
    for (int r = warp(); r < kTileRows; r += kGeneralThreads / kWarp) {
      if (tile.begin + r >= tile.end) break;
      const int64_t from = row_of_x(p, tile.begin + r);
      const float* x = p.x + from * p.ldx + k0;
      const float* gate = p.gate != nullptr ? p.gate + from * p.ld_gate + k0 : nullptr;
      for (int k = lane(); k < length; k += kWarp) {
        xs[r * kRowFloats + k] = gate != nullptr ? gated(p.act, gate[k], x[k]) : x[k];
      }
    }
    __syncthreads();
    if (has_output()) {
      float sum = 0.f;
      for (int k = 0; k < length; ++k) {
        sum = __fmaf_rn(ws[output * kRowFloats + k], xs[row * kRowFloats + k], sum);
      }
      total += sum;
    }
    __syncthreads();
  }
  if (has_output()) finish(p, weight, tile.begin + row, tile.n + output, total);
  finish_rows(p, tile, grid_place(), ws);
}

template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
int launch_general(const Product& p, Stream stream) {
  return launch_tiles(general_product<kDecode, kElems, kBlockBytes, kHeadBytes>, p, kTileOutputs, kTileRows,
                      kGeneralThreads, kGeneralShared, stream);
}

}  // namespace oar::cuda
