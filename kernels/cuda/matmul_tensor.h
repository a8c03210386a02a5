// Products by tensor cores, whatever holds the weights: they are the left operand, 16 outputs by 16 k, rows
// of x the right one, 8 at a time. x is split in two bf16, high + low, so 16 bits of it count: rounded to 8
// they would flip near-ties of greedy sampling. Generating waits for memory, so the second product is free.
//
// The sum over K: spans of kProductSpan elements are chains of products, 16 k at a time, low before high; the
// spans' sums are added in ascending order. A warp takes a span, so a block has as many on their way as it
// has warps.
//
// Within 32 k, lane t of a quad owns k = 8 t .. 8 t + 7: any order within a product is right as long as both
// operands agree, and so a lane's part of x is 16 bytes.
#pragma once

#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul_tiles.h"

namespace oar::cuda {

constexpr int kTensorWarps = 8;
constexpr int kProductSpan = 512;
constexpr int kPart = 128;  // k of x that are in shared memory at a time
// Quads of two rows read 16 bytes a lane from different banks: rows are 64 bytes beyond a multiple of 128.
constexpr int kRowStride = kPart + 32;
constexpr int kXElements = 2 * kTileRows * kRowStride;  // of a warp
static_assert(kChainedExperts * 2 * sizeof(float) <= kXElements * sizeof(uint16_t) &&
              kChainedPairs * kSortWords * sizeof(int32_t) <= kXElements * sizeof(uint16_t));
constexpr int kOutputs = kTileOutputs * kTileRows;
constexpr int kMine = kOutputs / kWarp;  // outputs that a thread of the smallest block adds up
// A warp's sums lie row behind row, so far apart that fragments are stored, and rows r and r + 4 read
// together, from different banks.
constexpr int kSumStride = kTileOutputs + 4;
constexpr int kSums = kTileRows * kSumStride;
static_assert(kSums >= kFinishFloats);
// The row and column of the tile that output o of a thread is.
OAR_DEVICE int row_of(int o) { return o / kWarp + o / kTileOutputs % 2 * 4; }
OAR_DEVICE int column_of(int o) { return o % kTileOutputs; }

template <bool kAligned>
OAR_DEVICE float4 load_x(const float* row, int64_t k, int64_t K) {
  if constexpr (kAligned) {
    return k < K ? load(reinterpret_cast<const float4*>(row + k)) : make_float4(0.f, 0.f, 0.f, 0.f);
  } else {
    return make_float4(k < K ? row[k] : 0.f, k + 1 < K ? row[k + 1] : 0.f, k + 2 < K ? row[k + 2] : 0.f,
                       k + 3 < K ? row[k + 3] : 0.f);
  }
}

// Where weights want four elements of x, so that a lane's eight of 32 lie together: in their order; of each
// 32 four of the first 16 in front of four of the second; of each 64 the first eight of each 16 in front of
// the second. Of 128, as units of four.
enum class XOrder { kAsItIs, kHalves, kSixteens };
template <XOrder kOrder>
OAR_DEVICE constexpr int place_of(int unit) {
  if constexpr (kOrder == XOrder::kHalves) return unit / 8 * 8 + unit % 4 * 2 + unit / 4 % 2;
  else if constexpr (kOrder == XOrder::kSixteens)
    return unit / 16 * 16 + unit % 4 / 2 * 8 + unit % 16 / 4 * 2 + unit % 2;
  else return unit;
}

// Sums of x, as some weights want them, kSums of each 32: those of a tile's rows side by side. A row's are
// stored together, to different banks.
OAR_HD constexpr int sum_stride(int rows) { return rows + 2; }

// kPart elements of x, from k on, to shared memory: what rounds to bf16, and the rest. Rows first, first +
// step, .. of a tile of `rows`; those that the tile lacks are left alone. And sums of x.
template <class Weights, bool kAligned>
OAR_DEVICE void stage_x(const ProductRows& p, const float* x_rows, const Tile& tile, int first, int step,
                        int rows, int64_t k, uint16_t* high, uint16_t* low, float* sums) {
  const int64_t at = k + 4 * lane();
  const int place = 4 * place_of<Weights::kOrder>(lane());
  for (int r = first; r < rows && tile.begin + r < tile.end; r += step) {
    const int64_t row = row_of_x(p, tile.begin + r);
    float4 x = load_x<kAligned>(x_rows + row * p.ldx, at, p.K);
    if (p.gate != nullptr) {
      const float4 gate = load_x<kAligned>(p.gate + row * p.ld_gate, at, p.K);
      x = make_float4(gated(p.act, gate.x, x.x), gated(p.act, gate.y, x.y), gated(p.act, gate.z, x.z),
                      gated(p.act, gate.w, x.w));
    }
    const uint2 h = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
    const uint2 l = make_uint2(pack_bf16(x.x - low_bf16(h.x), x.y - high_bf16(h.x)),
                               pack_bf16(x.z - low_bf16(h.y), x.w - high_bf16(h.y)));
    store(reinterpret_cast<uint2*>(high + r * kRowStride + place), h);
    store(reinterpret_cast<uint2*>(low + r * kRowStride + place), l);
    if constexpr (Weights::kSums > 0) {
      constexpr int kLanes = 8 / Weights::kSums;  // of a sum
      float sum = (x.x + x.y) + (x.z + x.w);
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
      if (lane() % kLanes == 0) sums[lane() / kLanes * sum_stride(rows) + r] = sum;
    }
  }
}

// Rows that a tile lacks are zero throughout.
OAR_DEVICE void clear_row(uint16_t* high, uint16_t* low, int r) {
  for (int i = lane(); i < kRowStride / 2; i += kWarp) {
    store(reinterpret_cast<uint32_t*>(high + r * kRowStride) + i, 0u);
    store(reinterpret_cast<uint32_t*>(low + r * kRowStride) + i, 0u);
  }
}

// All sums of kPart.
template <class Weights, int kRows>
constexpr int kXSums = kPart / 32 * Weights::kSums* sum_stride(kRows);
template <class Weights>
OAR_DEVICE void clear_sums(float* sums, int rows, int r) {
  if (lane() < kPart / 32 * Weights::kSums) sums[lane() * sum_stride(rows) + r] = 0.f;
}

// A block's shared memory, of a tile of few rows.
template <class Weights>
struct FewShared {
  uint16_t *block, *high, *low;  // of all warps' x, of this one's
  float *sums, *x_sums;
  OAR_DEVICE explicit FewShared(SharedMemory& shared) {
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    block = shared.take<uint16_t>(warps * kXElements);
    high = block + warp() * kXElements;
    low = high + kTileRows * kRowStride;
    sums = shared.take<float>(warps * kSums);
    x_sums = shared.take<float>(warps * kXSums<Weights, kTileRows>) + warp() * kXSums<Weights, kTileRows>;
  }
};

// Who has a tile: all warps of a block, each a span of K in turn, or one warp, and the block as many tiles.
struct TileWarps {
  int count, own;  // warps, and this one among them
  OAR_DEVICE explicit TileWarps(bool alone)
      : count(alone ? 1 : static_cast<int>(blockDim.x) / kWarp), own(alone ? 0 : warp()) {}
};

// Weights::Part<kLength>: how a lane holds that many k of its rows g and g + 8 of a tile, and multiplies 32
// of them, with sums of x if it wants some; see the files that have them. kAligned: of rows of x. `wait` and
// the tile's weight as follow_chain() has them. All threads of the block come. kMore: results may be
// multiplied with a number.
template <class Weights, bool kAligned, bool kMore, class Weight, class Wait>
OAR_DEVICE void multiply_few(const ProductRows& p, const float* x, const Tile& tile,
                             const ProductMatrix& matrix, TileWarps of, const FewShared<Weights>& shared,
                             const Weight& weight_of_tile, const Wait& wait) {
  const int warps = of.count, threads = warps * kWarp;
  uint16_t *const high = shared.high, *const low = shared.low;
  float *const sums = shared.sums + (warp() - of.own) * kSums, *const x_sums = shared.x_sums;
  const int thread = of.own * kWarp + lane(), g = lane() / 4, t = lane() % 4;

  for (int r = static_cast<int>(tile.end - tile.begin); r < kTileRows; ++r) {
    clear_row(high, low, r);
    clear_sums<Weights>(x_sums, kTileRows, r);
  }

  // This thread adds up outputs thread, thread + threads, ...
  float total[kMine] = {};
  for (int64_t first = 0; first < p.K; first += warps * kProductSpan) {
    float acc[4] = {};
    const int64_t begin = first + of.own * kProductSpan,
                  end = begin + kProductSpan < p.K ? begin + kProductSpan : p.K;
    for (int64_t k = begin; k < end; k += kPart) {
      typename Weights::template Part<kPart> w;
      w.load(p, matrix, tile.n, k);
      if (k == of.own * kProductSpan) wait();
      stage_x<Weights, kAligned>(p, x, tile, 0, 1, kTileRows, k, high, low, x_sums);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPart / 32; ++i) {
        const int place = g * kRowStride + 32 * i + 8 * t;
        const uint4 h = load(reinterpret_cast<const uint4*>(high + place));
        const uint4 l = load(reinterpret_cast<const uint4*>(low + place));
        w.multiply(acc, i, h, l, [&](int s) {
          const int of_sum = i * Weights::kSums + s;
          return load(reinterpret_cast<const float2*>(x_sums + of_sum * sum_stride(kTileRows) + 2 * t));
        });
      }
      __syncwarp();
    }
    float* mine = sums + of.own * kSums + 2 * t * kSumStride + g;
    mine[0] = acc[0];
    mine[kSumStride] = acc[1];
    mine[8] = acc[2];
    mine[kSumStride + 8] = acc[3];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int o = thread + i * threads;
      if (o >= kOutputs) break;
      for (int s = 0; s < warps && first + s * kProductSpan < p.K; ++s) {
        total[i] += sums[s * kSums + row_of(o) * kSumStride + column_of(o)];
      }
    }
    __syncthreads();
  }
  const ProductWeight weight = weight_of_tile();
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int o = thread + i * threads;
    const int64_t n = tile.n + column_of(o), row = tile.begin + row_of(o);
    if (o < kOutputs && n < weight.n && row < tile.end) finish<kMore>(p, weight, row, n, total[i]);
  }
}

template <class Weights, bool kAligned>
__global__ void __launch_bounds__(kTensorWarps* kWarp, Weights::kBlocks) tensor_product(Product p) {
  wait_for_launches();
  SharedMemory memory;
  const FewShared<Weights> shared(memory);
  const Tile tile = tile_of<kTileOutputs, kTileRows>(p, blockIdx.x);
  if (tile.index >= 0) {
    const auto weight = [&] { return weight_of(p, tile); };
    multiply_few<Weights, kAligned, false>(p, columns_of_x(p, tile), tile, matrix_of(p, tile),
                                           TileWarps(false), shared, weight, [] {});
    store_made(p, tile);
  }
  finish_rows<true>(p, tile, gridDim.x, shared.sums);
}

// Products behind each other. The sums over K are those of a launch for each: which span a warp has follows
// from how many warps there are, the order of the spans' sums does not.
template <class Weights, bool kMore>
__global__ void __launch_bounds__(kTensorWarps* kWarp, Weights::kBlocks) tensor_products(ProductChain c) {
  wait_for_launches();
  SharedMemory memory;
  const FewShared<Weights> shared(memory);
  follow_chain<kMore>(c, memory.take<uint32_t>(1), shared.sums, reinterpret_cast<float*>(shared.block),
                      [&](const ProductChain::Step& p, const float* x, const Tile& tile,
                          const ProductMatrix& matrix, const auto& weight, const auto& wait) {
                        multiply_few<Weights, true, kMore>(
                            p, x, tile, matrix, TileWarps(kMore && p.tile_a_warp), shared, weight, wait);
                      });
}

// The same for many rows: a block has 16 outputs a warp and kManyRows rows, whose x its warps share. A warp
// takes the spans of K one behind another, so each sum is made of the same parts in the same order as above.
constexpr int kManyRows = 64, kManyOutputs = kTensorWarps * kTileOutputs;
constexpr int kManyPart = 64;  // k of weights in a lane's registers, beside those that follow

template <class Weights, bool kAligned>
__global__ void __launch_bounds__(kTensorWarps* kWarp, 1) tensor_product_of_many(Product p) {
  wait_for_launches();
  constexpr int kTiles = kManyRows / kTileRows;
  using Part = typename Weights::template Part<kManyPart>;
  SharedMemory shared;
  uint16_t* high = shared.take<uint16_t>(kManyRows * kRowStride);
  uint16_t* low = shared.take<uint16_t>(kManyRows * kRowStride);
  float* x_sums = shared.take<float>(kXSums<Weights, kManyRows>);
  const Tile tile = tile_of<kManyOutputs, kManyRows>(p, blockIdx.x);
  if (tile.begin >= tile.end) return;
  const ProductMatrix matrix = matrix_of(p, tile);
  const int g = lane() / 4, t = lane() % 4;
  const int64_t n = tile.n + warp() * kTileOutputs;
  const bool has_outputs = n < matrix.n;  // a warp without any copies x and waits with the others

  for (int r = warp(); r < kManyRows; r += kTensorWarps) {
    if (tile.begin + r < tile.end) continue;
    clear_row(high, low, r);
    clear_sums<Weights>(x_sums, kManyRows, r);
  }

  float total[kTiles][4] = {};
  for (int64_t first = 0; first < p.K; first += kProductSpan) {
    float acc[kTiles][4] = {};
    const int64_t end = first + kProductSpan < p.K ? first + kProductSpan : p.K;
    for (int64_t k = first; k < end; k += kPart) {
      Part next;
      if (has_outputs) next.load(p, matrix, n, k);
      stage_x<Weights, kAligned>(p, p.x, tile, warp(), kTensorWarps, kManyRows, k, high, low, x_sums);
      __syncthreads();
#pragma unroll 1
      for (int part = 0; part < kPart && has_outputs; part += kManyPart) {
        const Part w = next;
        if (part + kManyPart < kPart) next.load(p, matrix, n, k + part + kManyPart);
#pragma unroll
        for (int i = 0; i < kManyPart / 32; ++i) {
#pragma unroll
          for (int r = 0; r < kTiles; ++r) {
            const int place = (r * kTileRows + g) * kRowStride + part + 32 * i + 8 * t;
            const uint4 h = load(reinterpret_cast<const uint4*>(high + place));
            const uint4 l = load(reinterpret_cast<const uint4*>(low + place));
            w.multiply(acc[r], i, h, l, [&](int s) {
              const int of_sum = (part / 32 + i) * Weights::kSums + s;
              return load(reinterpret_cast<const float2*>(x_sums + of_sum * sum_stride(kManyRows) +
                                                          r * kTileRows + 2 * t));
            });
          }
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) total[r][i] += acc[r][i];
    }
  }
  const ProductWeight weight = weight_of(p, tile);
#pragma unroll
  for (int r = 0; r < kTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = tile.begin + r * kTileRows + 2 * t + i % 2, output = n + g + i / 2 * 8;
      if (output < weight.n && row < tile.end) finish<false>(p, weight, row, output, total[r][i]);
    }
  }
}

// Whether tiles of many rows pay: at half a tile on average; experts' shares of the rows are not known here.
static_assert(2 * kFewRows + 2 == kManyRows);
inline bool has_many_rows(const Product& p) {
  return 2 * p.T >= kManyRows * static_cast<int64_t>(p.start == nullptr ? 1 : p.experts);
}

// Warps of a block of few rows, and its shared memory.
inline unsigned warps_of(int64_t K) {
  const int64_t spans = (K + kProductSpan - 1) / kProductSpan;
  return spans < 1 ? 1 : spans < kTensorWarps ? static_cast<unsigned>(spans) : kTensorWarps;
}
template <class Weights>
size_t few_bytes(unsigned warps) {
  return warps * (kXElements * sizeof(uint16_t) + (kSums + kXSums<Weights, kTileRows>)*sizeof(float));
}
// Whether rows of x, and of a gate if there is one, are read 16 bytes at a time; how far apart they lie is
// nothing to one row.
inline bool reads_wide(int64_t rows, int64_t K, const float* x, int64_t ldx, const float* gate,
                       int64_t ld_gate) {
  const auto wide = [&](const float* at, int64_t ld) {
    return reinterpret_cast<uintptr_t>(at) % 16 == 0 && (rows == 1 || ld % 4 == 0);
  };
  return K % 4 == 0 && wide(x, ldx) && (gate == nullptr || wide(gate, ld_gate));
}

// A cudaError_t. Weights whose own loads have two widths are chosen by the caller.
template <class Weights, class Unaligned>
int launch_tensor(const Product& p, bool aligned, Stream stream) {
  aligned = aligned && reads_wide(p.T, p.K, p.x, p.ldx, p.gate, p.ld_gate) && p.x_step % 4 == 0;
  if (has_many_rows(p)) {
    constexpr size_t kShared =
        2 * kManyRows * kRowStride * sizeof(uint16_t) + kXSums<Weights, kManyRows> * sizeof(float);
    return launch_tiles(
        aligned ? tensor_product_of_many<Weights, true> : tensor_product_of_many<Unaligned, false>, p,
        kManyOutputs, kManyRows, kTensorWarps * kWarp, kShared, stream);
  }
  const unsigned warps = warps_of(p.K);
  return launch_tiles(aligned ? tensor_product<Weights, true> : tensor_product<Unaligned, false>, p,
                      kTileOutputs, kTileRows, static_cast<int>(warps) * kWarp, few_bytes<Weights>(warps),
                      stream);
}

// Weights and rows of every step are aligned.
template <class Weights>
int launch_chain(ProductChain& c, Stream stream) {
  const std::span steps(c.steps, static_cast<size_t>(c.count));
  unsigned warps = 1;
  bool more = c.route.T > 0;
  for (ProductChain::Step& s : steps) {
    warps = std::max(warps, warps_of(s.K));
    s.tile_a_warp = s.x_step != 0 && warps_of(s.K) == 1;
    more = more || s.start != nullptr || s.x_step != 0 || s.scaled != nullptr || s.elements > 0;
  }
  const int64_t blocks = lay_chain(c, warps);
  return launch_blocks(more ? tensor_products<Weights, true> : tensor_products<Weights, false>, c, blocks,
                       static_cast<int>(warps) * kWarp, few_bytes<Weights>(warps) + kLastBlockShared, stream);
}

}  // namespace oar::cuda
