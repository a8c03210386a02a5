// The general product: stored rows of weights come into shared memory side by side, where a format's own
// decoder makes f32 of them. One thread decodes a block of the format, one thread makes one output. Included
// by the files that list formats.
#pragma once

#include <algorithm>

#include "kernels/cuda/math.h"
#include "kernels/cuda/matmul_tiles.h"
#include "quant/format.h"

namespace oar::cuda {

// Blocks [first, first + count) of a row, as FormatInfo::decode.
using Decode = void (*)(const void* row, int64_t first, int64_t count, float* out);

constexpr int kGeneralThreads = kTileOutputs * kTileRows;
constexpr int kGeneralBlocks = 8;      // of a multiprocessor: a decoder that is given fewer registers spills
constexpr int kRun = 256;              // elements of K that are summed by themselves
constexpr int kXRowFloats = kRun + 1;  // rows lie in different banks

// Floats of a decoded block: neighbours decode blocks side by side, into banks of their own.
template <int kElems>
constexpr int kBlockFloats = kElems > 1 ? kElems + 1 : 1;
// Of a run of a row of weights: two blocks of all rows have different banks.
template <int kElems>
constexpr int kWRowFloats = (kRun / kElems * kBlockFloats<kElems> + 29) / 32 * 32 + 2;

// A run of a row's blocks, of up to kMostBytes, as they are stored, in shared memory. It lies there as in its
// words, so that rows begin at banks of their own. The row's head is in front of it, where the decoder looks
// for it.
template <int kHeadBytes, int kMostBytes>
struct StoredRun {
  static constexpr int kHeadRoom = (kHeadBytes + 7) / 8 * 8, kBytes = kHeadRoom + (kMostBytes + 6) / 4 * 4;

  OAR_DEVICE static int in_word(const char* from) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(from) % 4);
  }
  // The row of which the run at `from` is in `shared`, as if its first block were the row's.
  OAR_DEVICE static char* row(char* shared, const char* from) {
    return shared + kHeadRoom - kHeadBytes + in_word(from);
  }
  // Brought by a warp, the part `part` of `parts`: lanes have words side by side, of whole sectors. Words
  // that it does not have whole come as bytes. A lane beyond the words reads one of them again.
  OAR_DEVICE static void take(char* shared, const char* from, int bytes, int part, int parts) {
    constexpr int kSector = 32;
    // In bytes and words of the first word.
    const int begin = in_word(from), end = begin + bytes, first = (begin + 3) / 4, last = end / 4 - 1;
    const char* const its = from - begin;
    const int of_sector = static_cast<int>(reinterpret_cast<uintptr_t>(its) % kSector / 4);
    char* const to = shared + kHeadRoom;
    if (first <= last) {
      for (int word = part * kWarp - of_sector; 4 * word < end; word += parts * kWarp) {
        const int mine = word + lane();
        const uint32_t four = load(reinterpret_cast<const uint32_t*>(its) + min(max(mine, first), last));
        if (mine >= first && mine <= last) store(reinterpret_cast<uint32_t*>(to) + mine, four);
      }
    }
    if (part != 0 || lane() >= 8) return;
    const bool behind = lane() >= 4;
    const int byte = behind ? 4 * max(first, last + 1) + lane() - 4 : begin + lane();
    if (byte < (behind ? end : min(4 * first, end))) store(to + byte, load(its + byte));
  }
};
// A warp decodes two blocks of each row side by side. They are so many apart that it is an odd number of
// words: rows begin at even banks. Of blocks that are even numbers of words it is four times an odd number,
// as of q5_1, and rows begin at the first four of each eight banks (StoredRows).
template <int kElems, int kBlockBytes>
constexpr int kApart = std::min(kBlockBytes % 8 == 0   ? 2
                                : kBlockBytes % 4 == 0 ? 1
                                : kBlockBytes % 2 == 0 ? 2
                                                       : 4,
                                std::max(kRun / kElems / 2, 1));
// Of 2 kOf blocks come first and kOf + first, second and kOf + second, ..; and in which turn a block does.
template <int kOf>
OAR_DEVICE constexpr int block_of_turn(int turn) {
  return turn / (2 * kOf) * (2 * kOf) + turn % 2 * kOf + turn / 2 % kOf;
}
template <int kOf>
OAR_DEVICE constexpr int turn_of_block(int block) {
  return block / (2 * kOf) * (2 * kOf) + block % kOf * 2 + block / kOf % 2;
}
// Elements that are blocks by themselves are decoded where they lie, if nothing is in front of them.
template <int kElems, int kHeadBytes>
constexpr bool kTakesRuns = kElems > 1 || kHeadBytes > 0;

// Of a tile's rows the blocks of some runs.
template <int kElems, int kBlockBytes, int kHeadBytes>
struct StoredRows {
  static constexpr bool kThere = kTakesRuns<kElems, kHeadBytes>;
  static constexpr int kRunBytes = kRun / kElems * kBlockBytes, kLeast = 512;
  static constexpr int kRuns = kRunBytes < kLeast ? kLeast / kRunBytes : 1;
  using Run = StoredRun<kHeadBytes, kRuns * kRunBytes>;
  static constexpr bool kEven = kBlockBytes % 8 == 0;
  static constexpr int kRow =
      kEven ? (Run::kBytes + 127) / 128 * 128 : (Run::kBytes + 119) / 128 * 128 + 8;  // bytes
  static constexpr int kAll = kTileOutputs * kRow + (kEven ? 128 : 0);
  static_assert(kTileOutputs * kHeadBytes <= kGeneralThreads);
  static constexpr size_t bytes() { return kThere ? (static_cast<size_t>(kAll) + 127) / 128 * 128 : 0; }

  char* stored;
  const char* weight;  // the tile's first row
  int64_t stride;
  int rows;
  char head = '\0';  // of thread r kHeadBytes + i: byte i in front of row r

  OAR_DEVICE StoredRows(SharedMemory& shared, const char* first, int64_t row_bytes, int count)
      : stored(shared.take<char>(kThere ? kAll : 0)), weight(first), stride(row_bytes), rows(count) {
    if constexpr (kHeadBytes > 0) {
      const int thread = static_cast<int>(threadIdx.x), r = thread / kHeadBytes;
      if (r < rows) head = load(weight + r * stride + thread % kHeadBytes);
    }
  }
  // Where block `first` of row r is stored.
  OAR_DEVICE const char* place(int r, int64_t first) const {
    return weight + r * stride + kHeadBytes + first * kBlockBytes;
  }
  // Row r as if block `first`, from which on take() has brought blocks, were its first.
  OAR_DEVICE char* row(int r, int64_t first) const { return Run::row(run(r), place(r, first)); }
  OAR_DEVICE char* run(int r) const { return stored + r * kRow + (kEven ? 4 * (r / 4 * 8 + r % 4) : 0); }
  // Blocks [first, end) of all rows.
  OAR_DEVICE void take(int64_t first, int64_t end) const {
    [[maybe_unused]] const int thread = static_cast<int>(threadIdx.x);
    const int bytes = static_cast<int>(end - first) * kBlockBytes;
    if constexpr (kHeadBytes > 0) {
      if (const int r = thread / kHeadBytes; r < rows) store(row(r, first) + thread % kHeadBytes, head);
    }
    for (int r = warp(); r < rows; r += kGeneralThreads / kWarp)
      Run::take(run(r), place(r, first), bytes, 0, 1);
  }
};

// A tile of few rows, by all kGeneralThreads of a block, in shared memory of its own; all as follow_chain()
// has it.
template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes, class Weight, class Wait>
OAR_DEVICE void multiply_general(const ProductRows& p, const float* x_rows, const Tile& tile,
                                 const ProductMatrix& matrix, SharedMemory shared, const Weight& weight,
                                 const Wait& wait) {
  static_assert(kRun % kElems == 0);
  constexpr int kBlock = kBlockFloats<kElems>, kRowFloats = kWRowFloats<kElems>;
  using Stored = StoredRows<kElems, kBlockBytes, kHeadBytes>;
  float* const ws = shared.take<float>(kTileOutputs * kRowFloats);
  float* const xs = shared.take<float>(kTileRows * kXRowFloats);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t stride = kHeadBytes + p.K / kElems * kBlockBytes, left = matrix.n - tile.n;
  const int outputs = left < kTileOutputs ? static_cast<int>(left) : kTileOutputs;
  const Stored stored(shared, static_cast<const char*>(matrix.w) + tile.n * stride, stride, outputs);

  const int output = thread % kTileOutputs, row = thread / kTileOutputs;
  const auto has_output = [&] { return output < outputs && tile.begin + row < tile.end; };
  float total = 0.f;
  int runs = 0;       // that are stored there
  int64_t first = 0;  // block of these
  for (int64_t k0 = 0; k0 < p.K; k0 += kRun) {
    const int length = static_cast<int>(p.K - k0 < kRun ? p.K - k0 : kRun);
    const int blocks = length / kElems;
    if (Stored::kThere && runs == 0) {
      runs = Stored::kRuns;
      first = k0 / kElems;
      const int64_t end = first + runs * (kRun / kElems), all = p.K / kElems;
      stored.take(first, end < all ? end : all);
      __syncthreads();
    }
    --runs;
    constexpr int kOf = kApart<kElems, kBlockBytes>;
    const int turns = (blocks + 2 * kOf - 1) / (2 * kOf) * (2 * kOf);
    for (int unit = thread; unit < kTileOutputs * (kElems > 1 ? turns : blocks); unit += kGeneralThreads) {
      // Neighbours have a block of different rows, or elements side by side.
      const int r = kElems > 1 ? unit % kTileOutputs : unit / blocks,
                turn = kElems > 1 ? unit / kTileOutputs : unit % blocks;
      const int b = kElems > 1 ? block_of_turn<kOf>(turn) : turn;
      if (r >= outputs || b >= blocks) continue;
      float* const to = ws + r * kRowFloats + turn * kBlock;
      if constexpr (Stored::kThere) kDecode(stored.row(r, first), k0 / kElems - first + b, 1, to);
      else kDecode(stored.place(r, 0), k0 / kElems + b, 1, to);
    }
    if (k0 == 0) wait();
    for (int r = warp(); r < kTileRows; r += kGeneralThreads / kWarp) {
      if (tile.begin + r >= tile.end) break;
      const int64_t from = row_of_x(p, tile.begin + r);
      const float* x = x_rows + from * p.ldx + k0;
      const float* gate = p.gate != nullptr ? p.gate + from * p.ld_gate + k0 : nullptr;
      for (int k = lane(); k < length; k += kWarp) {
        xs[r * kXRowFloats + k] = gate != nullptr ? gated(p.act, gate[k], x[k]) : x[k];
      }
    }
    __syncthreads();
    if (has_output()) {
      float sum = 0.f;
      const float* x = xs + row * kXRowFloats;
      for (int b = 0; b < blocks; ++b) {
        const float* const w = ws + output * kRowFloats + (kElems > 1 ? turn_of_block<kOf>(b) : b) * kBlock;
        for (int k = 0; k < kElems; ++k) sum = __fmaf_rn(w[k], x[k], sum);
        x += kElems;
      }
      total += sum;
    }
    __syncthreads();
  }
  if (has_output()) finish<true>(p, weight(), tile.begin + row, tile.n + output, total);
}

// Shared memory of a block that does so.
template <int kElems, int kBlockBytes, int kHeadBytes>
constexpr size_t general_bytes() {
  return (kTileOutputs * kWRowFloats<kElems> * sizeof(float) + 127) / 128 * 128 +
         (kTileRows * kXRowFloats * sizeof(float) + 127) / 128 * 128 +
         StoredRows<kElems, kBlockBytes, kHeadBytes>::bytes();
}

// One product, or several behind each other.
template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
__global__ void __launch_bounds__(kGeneralThreads, kGeneralBlocks) general_product(ProductChain c) {
  wait_for_launches();
  constexpr int kWFloats = kTileOutputs * kWRowFloats<kElems>;
  static_assert(kChainedExperts * 2 * (kGeneralThreads / kWarp) <= kWFloats &&
                kChainedPairs * kSortWords <= kWFloats && kFinishFloats <= kWFloats);
  SharedMemory shared;
  uint32_t* const word = shared.take<uint32_t>(1);
  float* const ws = SharedMemory(shared).take<float>(kWFloats);
  follow_chain<true>(c, word, ws, ws,
                     [&](const ProductRows& p, const float* x, const Tile& tile, const ProductMatrix& matrix,
                         const auto& weight, const auto& wait) {
                       multiply_general<kDecode, kElems, kBlockBytes, kHeadBytes>(p, x, tile, matrix, shared,
                                                                                  weight, wait);
                     });
}

template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
int launch_general_chain(ProductChain& c, Stream stream) {
  constexpr size_t kShared = kLastBlockShared + general_bytes<kElems, kBlockBytes, kHeadBytes>();
  const int64_t blocks = lay_chain(c, kGeneralThreads / kWarp);
  return launch_blocks(general_product<kDecode, kElems, kBlockBytes, kHeadBytes>, c, blocks, kGeneralThreads,
                       kShared, stream);
}
template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
int launch_general(const Product& p, Stream stream) {
  ProductChain c{};
  c.count = 1;
  static_cast<ProductRows&>(c.steps[0]) = p;
  std::ranges::copy(p.matrices, c.matrices);
  return launch_general_chain<kDecode, kElems, kBlockBytes, kHeadBytes>(c, stream);
}

}  // namespace oar::cuda
