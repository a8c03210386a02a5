// Products with bf16 weights in place by tensor cores: the weights are the left operand, 16 outputs by 16 k,
// rows of x the right one, 8 at a time. x is split in two bf16, high + low, so 16 bits of it count: rounded
// to 8 they would flip near-ties of greedy sampling. Generating waits for memory, so the second product is
// free.
//
// The sum over K: spans of kSpan elements are chains of products, 16 k at a time, low before high; the spans'
// sums are added in ascending order. A warp takes a span, so a block has as many on their way as it has
// warps.
//
// Within 32 k, lane t of a quad owns k = 8 t .. 8 t + 7: any order within a product is right as long as both
// operands agree, and so a lane's weights are 16 bytes, and those of a quad 64 side by side.
#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul_tiles.h"

namespace oar::cuda {
namespace {

constexpr int kMaxWarps = 8;
constexpr int kSpan = 512;
constexpr int kPart = 128;  // k of x that a warp has in shared memory
// Quads of two rows read 16 bytes a lane from different banks: rows are 64 bytes beyond a multiple of 128.
constexpr int kRowStride = kPart + 32;
constexpr int kXElements = 2 * kTileRows * kRowStride;  // of a warp
constexpr int kOutputs = kTileOutputs * kTileRows;
constexpr int kMine = kOutputs / kWarp;  // outputs that a thread of the smallest block adds up
// A warp's sums lie row behind row, so far apart that fragments are stored, and rows r and r + 4 read
// together, from different banks.
constexpr int kSumStride = kTileOutputs + 4;
constexpr int kSums = kTileRows * kSumStride;
// The row and column of the tile that output o of a thread is.
OAR_DEVICE int row_of(int o) { return o / kWarp + o / kTileOutputs % 2 * 4; }
OAR_DEVICE int column_of(int o) { return o % kTileOutputs; }

// Elements [k, k + 8) of a row of K weights; zeros beyond its end.
template <bool kAligned>
OAR_DEVICE uint4 load_weights(const uint16_t* row, int64_t k, int64_t K) {
  if constexpr (kAligned) {
    return k < K ? load_once(row + k) : make_uint4(0, 0, 0, 0);
  } else {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = k + 2 * i < K ? row[k + 2 * i] : 0,
                     high = k + 2 * i + 1 < K ? row[k + 2 * i + 1] : 0;
      pair[i] = low | high << 16;
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
  }
}

template <bool kAligned>
OAR_DEVICE float4 load_x(const float* row, int64_t k, int64_t K) {
  if constexpr (kAligned) {
    return k < K ? load(reinterpret_cast<const float4*>(row + k)) : make_float4(0.f, 0.f, 0.f, 0.f);
  } else {
    return make_float4(k < K ? row[k] : 0.f, k + 1 < K ? row[k + 1] : 0.f, k + 2 < K ? row[k + 2] : 0.f,
                       k + 3 < K ? row[k + 3] : 0.f);
  }
}

// kPart elements of the tile's rows, from k on, to shared memory: what rounds to bf16, and the rest.
template <bool kAligned>
OAR_DEVICE void stage_x(const Product& p, const Tile& tile, int64_t k, uint16_t* high, uint16_t* low) {
  const int64_t at = k + 4 * lane();
  for (int r = 0; r < kTileRows && tile.begin + r < tile.end; ++r) {
    const int64_t row = row_of_x(p, tile.begin + r);
    float4 x = load_x<kAligned>(p.x + row * p.ldx, at, p.K);
    if (p.gate != nullptr) {
      const float4 gate = load_x<kAligned>(p.gate + row * p.ld_gate, at, p.K);
      x = make_float4(gated(p.act, gate.x, x.x), gated(p.act, gate.y, x.y), gated(p.act, gate.z, x.z),
                      gated(p.act, gate.w, x.w));
    }
    const uint2 h = make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
    const uint2 l = make_uint2(pack_bf16(x.x - low_bf16(h.x), x.y - high_bf16(h.x)),
                               pack_bf16(x.z - low_bf16(h.y), x.w - high_bf16(h.y)));
    store(reinterpret_cast<uint2*>(high + r * kRowStride + 4 * lane()), h);
    store(reinterpret_cast<uint2*>(low + r * kRowStride + 4 * lane()), l);
  }
}

template <bool kAligned>
__global__ void __launch_bounds__(kMaxWarps* kWarp) bf16_product(Product p) {
  const int threads = static_cast<int>(blockDim.x), warps = threads / kWarp;
  SharedMemory shared;
  uint16_t* high = shared.take<uint16_t>(warps * kXElements) + warp() * kXElements;
  uint16_t* low = high + kTileRows * kRowStride;
  float* sums = shared.take<float>(warps * kSums);
  const Tile tile = tile_of(p);
  if (tile.index < 0) return;
  const Product::Weight& weight = p.weights[tile.index];
  const auto* w = static_cast<const uint16_t*>(weight.w) + tile.n * p.K;
  const int thread = static_cast<int>(threadIdx.x), g = lane() / 4, t = lane() % 4;
  const bool upper = tile.n + g < weight.n, lower = tile.n + g + 8 < weight.n;

  // Rows that the tile lacks are zero throughout.
  for (int r = static_cast<int>(tile.end - tile.begin); r < kTileRows; ++r) {
    for (int i = lane(); i < kRowStride / 2; i += kWarp) {
      store(reinterpret_cast<uint32_t*>(high + r * kRowStride) + i, 0u);
      store(reinterpret_cast<uint32_t*>(low + r * kRowStride) + i, 0u);
    }
  }

  // This thread adds up outputs thread, thread + threads, ...
  float total[kMine] = {};
  for (int64_t first = 0; first < p.K; first += warps * kSpan) {
    float acc[4] = {};
    const int64_t begin = first + warp() * kSpan, end = begin + kSpan < p.K ? begin + kSpan : p.K;
    for (int64_t k = begin; k < end; k += kPart) {
      uint4 words[2][kPart / 32];
#pragma unroll
      for (int i = 0; i < kPart / 32; ++i) {
        const int64_t at = k + 32 * i + 8 * t;
        words[0][i] = upper ? load_weights<kAligned>(w + g * p.K, at, p.K) : make_uint4(0, 0, 0, 0);
        words[1][i] = lower ? load_weights<kAligned>(w + (g + 8) * p.K, at, p.K) : make_uint4(0, 0, 0, 0);
      }
      stage_x<kAligned>(p, tile, k, high, low);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kPart / 32; ++i) {
        const int place = g * kRowStride + 32 * i + 8 * t;
        const uint4 h = load(reinterpret_cast<const uint4*>(high + place));
        const uint4 l = load(reinterpret_cast<const uint4*>(low + place));
        const uint4 a = words[0][i], b = words[1][i];
        mma_bf16(acc, {a.x, b.x, a.y, b.y}, {l.x, l.y});
        mma_bf16(acc, {a.x, b.x, a.y, b.y}, {h.x, h.y});
        mma_bf16(acc, {a.z, b.z, a.w, b.w}, {l.z, l.w});
        mma_bf16(acc, {a.z, b.z, a.w, b.w}, {h.z, h.w});
      }
      __syncwarp();
    }
    float* mine = sums + warp() * kSums + 2 * t * kSumStride + g;
    mine[0] = acc[0];
    mine[kSumStride] = acc[1];
    mine[8] = acc[2];
    mine[kSumStride + 8] = acc[3];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int o = thread + i * threads;
      if (o >= kOutputs) break;
      for (int s = 0; s < warps && first + s * kSpan < p.K; ++s) {
        total[i] += sums[s * kSums + row_of(o) * kSumStride + column_of(o)];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kMine; ++i) {
    const int o = thread + i * threads;
    const int64_t n = tile.n + column_of(o), row = tile.begin + row_of(o);
    if (o < kOutputs && n < weight.n && row < tile.end) finish(p, weight, row, n, total[i]);
  }
}

}  // namespace

int launch_bf16(const Product& p, unsigned x, unsigned y, Stream stream) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  bool wide = p.K % 8 == 0 && p.ldx % 4 == 0 && aligned(p.x);
  if (p.gate != nullptr) wide = wide && p.ld_gate % 4 == 0 && aligned(p.gate);
  for (int i = 0; i < p.count; ++i) wide = wide && aligned(p.weights[i].w);
  const int64_t spans = (p.K + kSpan - 1) / kSpan;
  const unsigned warps = spans < 1 ? 1 : spans < kMaxWarps ? static_cast<unsigned>(spans) : kMaxWarps;
  const size_t shared = warps * (kXElements * sizeof(uint16_t) + kSums * sizeof(float));
  return launch(wide ? bf16_product<true> : bf16_product<false>, dim3(x, y), warps * kWarp, shared, stream,
                p);
}

}  // namespace oar::cuda
