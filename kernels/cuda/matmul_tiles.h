// Which tile a block of a product has, what comes before and behind it, and the launch of a block for each.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/element_rows.h"
#include "kernels/cuda/last_block.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/norm_rows.h"
#include "kernels/cuda/route_rows.h"
#include "kernels/cuda/streamed.h"

namespace oar::cuda {

// Of `across` tiles of outputs and `down` of rows, those of a block: a band of rows comes behind another, and
// within a band all its tiles of rows with some outputs before those with the next.
struct GridPlace {
  uint32_t x, y;
};
OAR_DEVICE GridPlace place_of(uint32_t block, uint32_t across, uint32_t down, uint32_t band) {
  const uint32_t first = block / (band * across) * band, in_band = block % (band * across),
                 rows = down - first < band ? down - first : band;
  return {in_band / rows, first + in_band % rows};
}

// Weights that lie side by side: the tile at a place, whose rows are begin .. end.
template <int kOutputs, int kRows>
OAR_DEVICE Tile tile_at(const ProductRows& p, GridPlace at, int64_t begin, int64_t end) {
  for (int i = 0; i < p.per; ++i) {
    const auto outputs = static_cast<uint32_t>((p.weights[i].n + kOutputs - 1) / kOutputs);
    if (at.x < outputs) return {i, int64_t{at.x} * kOutputs, begin + int64_t{at.y} * kRows, end};
    at.x -= outputs;
  }
  return {-1, 0, 0, 0};
}
// Of experts, whose blocks come one behind another, each for its own rows.
template <int kRows>
OAR_DEVICE uint32_t tiles_down(const ProductRows& p, int e) {
  return static_cast<uint32_t>((p.start[p.first + e + 1] - p.start[p.first + e] + kRows - 1) / kRows);
}
template <int kOutputs, int kRows>
OAR_DEVICE Tile tile_of_expert(const ProductRows& p, int e, uint32_t block) {
  const GridPlace at = place_of(block, p.across, tiles_down<kRows>(p, e), p.band);
  Tile tile = tile_at<kOutputs, kRows>(p, at, p.start[p.first + e], p.start[p.first + e + 1]);
  tile.index += e * p.per;
  return tile;
}
// Each lane adds up the blocks of some experts, as these may be many.
template <int kOutputs, int kRows>
OAR_DEVICE Tile tile_of_experts(const ProductRows& p, uint32_t block) {
  const auto blocks_of = [&](int e) { return tiles_down<kRows>(p, e) * p.across; };
  const int each = (p.count + kWarp - 1) / kWarp;
  uint32_t own = 0;
  for (int e = lane() * each; e < (lane() + 1) * each && e < p.count; ++e) own += blocks_of(e);
  uint32_t end = own;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const uint32_t before = __shfl_sync(kAllLanes, end, (lane() - offset) & (kWarp - 1));
    if (lane() >= offset) end += before;
  }
  const uint32_t behind = __ballot_sync(kAllLanes, block < end);
  if (behind == 0) return {-1, 0, 0, 0};
  const int which = __ffs(behind) - 1;
  block -= __shfl_sync(kAllLanes, end - own, which);
  int e = which * each;
  for (uint32_t of_expert = blocks_of(e); block >= of_expert; of_expert = blocks_of(++e)) block -= of_expert;
  return tile_of_expert<kOutputs, kRows>(p, e, block);
}
template <int kOutputs, int kRows>
OAR_DEVICE Tile tile_of_weights(const ProductRows& p, uint32_t block) {
  return tile_at<kOutputs, kRows>(p, place_of(block, p.across, p.down, p.band), 0, p.T);
}
// Of these, or of all rows head behind head.
template <int kOutputs, int kRows>
OAR_DEVICE Tile tile_of_rows(const ProductRows& p, uint32_t block) {
  const uint32_t of_head = p.across * p.down, head = block / of_head;
  Tile tile = tile_of_weights<kOutputs, kRows>(p, block - head * of_head);
  if (p.x_step != 0) tile.index = static_cast<int>(head);
  return tile;
}
template <int kOutputs, int kRows>
OAR_DEVICE Tile tile_of(const Product& p, uint32_t block) {
  return p.start != nullptr ? tile_of_experts<kOutputs, kRows>(p, block)
                            : tile_of_rows<kOutputs, kRows>(p, block);
}

// What a tile reads, and what it is of.
OAR_DEVICE ProductMatrix matrix_of(const Product& p, const Tile& tile) {
  return {p.matrices[tile.index], p.weights[tile.index % p.per].n};
}
OAR_DEVICE ProductMatrix matrix_of(const ProductChain& c, const ProductChain::Step& p, const Tile& tile) {
  return {c.matrices[p.matrix + tile.index], p.weights[tile.index % p.per].n};
}
OAR_DEVICE ProductWeight weight_of(const ProductRows& p, const Tile& tile) {
  ProductWeight w = p.weights[tile.index % p.per];
  if (w.bias != nullptr) w.bias += tile.index / p.per * p.bias_step;
  w.out_col += tile.index * p.out_step;
  return w;
}

// Where the columns of x begin that a tile reads.
OAR_DEVICE const float* columns_of_x(const ProductRows& p, const Tile& tile) {
  return p.x + tile.index * p.x_step;
}
// The row of x that belongs to a row of out.
OAR_DEVICE int64_t row_of_x(const ProductRows& p, int64_t row) {
  return p.rows != nullptr ? p.rows[row] : row;
}

// out = sum + bias + residual; scaled = that times a number, where kScales.
template <bool kScales>
OAR_DEVICE void finish(const ProductRows& p, const ProductWeight& w, int64_t row, int64_t n, float sum) {
  const int64_t at = row * p.ldo + w.out_col + n;
  if (w.bias != nullptr) sum += w.bias[n];
  if (p.residual != nullptr) sum += load_streamed(p.residual + at, p.streams);
  store_streamed(p.out + at, sum, p.streams);
  if (kScales && p.scaled != nullptr) p.scaled[at] = __fmul_rn(sum, *p.scale);
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

// What follows a tile of few rows when all its blocks are done, or experts' rows and elementwise ops when all
// `blocks` of them are. All threads of each block come, of experts those of empty tiles too; `spare`:
// kFinishFloats of shared memory that are read no more.
constexpr int kFinishFloats = kWarp + kTileRows * kNormWarps;
template <bool kMore>
OAR_DEVICE void finish_rows(const ProductRows& p, const Tile& tile, uint32_t blocks, float* spare) {
  const bool combines = kMore && p.combine.out != nullptr, of_all = kMore && p.norm_rows > 0;
  if (p.norm_count == 0 && !combines) return;
  const auto others = static_cast<int>(of_all ? blocks : p.across);
  uint32_t* const counter = p.counters + (of_all ? 0 : tile.begin / kTileRows);
  if (!is_last_block(counter, others, reinterpret_cast<uint32_t*>(spare))) return;
  const int64_t left = tile.end - tile.begin, first = of_all ? 0 : tile.begin;
  const int rows = static_cast<int>(of_all ? p.norm_rows : left < kTileRows ? left : kTileRows);
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

// The tile of a block of a chain's step, or of a warp of it. kMore: the step may be of heads or of experts.
template <bool kMore>
OAR_DEVICE Tile tile_of_step(const ProductChain::Step& p, uint32_t block) {
  if constexpr (kMore) {
    if (p.start != nullptr) return tile_of_experts<kTileOutputs, kTileRows>(p, block);
    if (p.tile_a_warp) block = block * (blockDim.x / kWarp) + static_cast<uint32_t>(warp());
    // A warp behind the last tile has its outputs, of no rows.
    const bool is_behind = block >= p.tiles;
    Tile tile = tile_of_rows<kTileOutputs, kTileRows>(p, is_behind ? p.tiles - 1 : block);
    if (is_behind) tile.end = tile.begin;
    return tile;
  } else {
    return tile_of_weights<kTileOutputs, kTileRows>(p, block);
  }
}

// A block of a chain: multiply(step, x, tile, matrix, weight, wait) makes a tile's rows of columns from x on,
// and what follows comes behind it. `weight()` is the tile's; wait() returns when a warp may read x and
// write: weights are asked for before. kMore: there may be one step, which needs no tickets, and steps of
// heads, of experts or of elementwise ops, or they are multiplied with a number, or their rows choose. `word`
// is one of shared memory; `spare`: as finish_rows() has it; `of_route`: as route_few().
template <bool kMore, class Multiply>
OAR_DEVICE void follow_chain(const ProductChain& c, uint32_t* word, float* spare, float* of_route,
                             const Multiply& multiply) {
  uint32_t ticket = kMore && c.count == 1 ? blockIdx.x : take_ticket(c.tickets, c.blocks, word);
  int s = 0;
  for (; ticket >= c.steps[s].blocks; ++s) ticket -= c.steps[s].blocks;
  const ProductChain::Step& p = c.steps[s];
  const auto wait = [&] {
    if (s > 0) wait_for_blocks(c.finished + s - 1, c.steps[s - 1].blocks);
  };
  Tile tile{};
  if (!kMore || p.elements == 0) tile = tile_of_step<kMore>(p, ticket);
  if (kMore && (p.elements > 0 || tile.index < 0)) {
    // Until the step before is done counters are its own.
    wait();
    do_elements(c.elements + p.first_element, p.elements, int64_t{ticket} * blockDim.x + threadIdx.x);
  } else if constexpr (kMore) {
    const auto weight = [&] { return weight_of(p, tile); };
    multiply(p, columns_of_x(p, tile), tile, matrix_of(c, p, tile), weight, wait);
    store_made(p, tile);
  } else {
    const ProductWeight& its = p.weights[tile.index];
    multiply(
        p, p.x, tile, ProductMatrix{its.w, its.n}, [&] { return its; }, wait);
  }
  finish_rows<kMore>(p, tile, p.blocks, spare);
  if (s + 1 < c.count) {
    tell_finished(c.finished + s);
    return;
  }
  if (kMore && c.route.T > 0 && is_last_block(c.route_done, static_cast<int>(p.blocks), word))
    route_few(c.route, c.chosen, of_route);
  if (!kMore || c.count > 1) end_chain(c.finished, s, p.blocks);
}

// Launches a kernel with so many blocks. A cudaError_t.
template <class Args>
int launch_blocks(void (*kernel)(Args), const Args& args, int64_t blocks, int threads, size_t shared,
                  Stream stream) {
  if (blocks == 0) return 0;
  if (blocks > INT32_MAX) return cudaErrorInvalidValue;  // of a grid
  return launch(kernel, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared, stream, args);
}
// One of Product with a block per tile.
inline int launch_tiles(void (*kernel)(Product), Product p, int outputs, int rows, int threads, size_t shared,
                        Stream stream) {
  const int64_t blocks = lay_tiles(p, outputs, rows);
  return launch_blocks(kernel, p, blocks, threads, shared, stream);
}

}  // namespace oar::cuda
