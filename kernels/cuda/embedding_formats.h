// Embeddings of any storage format: the row's part comes into shared memory as it is stored, a thread decodes
// a block of the format, and the part is written side by side. Included by the files that list formats.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/matmul_formats.h"
#include "kernels/embedding.h"

namespace oar::cuda {

constexpr int kEmbeddingThreads = 128;
constexpr int kEmbeddingPart = 1024;  // elements of a row that a block of threads decodes
// Floats of a part: block b begins at b kBlockFloats.
template <int kElems>
constexpr int kPartFloats = kEmbeddingPart / kElems* kBlockFloats<kElems>;
template <int kElems, int kBlockBytes, int kHeadBytes>
using StoredPart = StoredRun<kHeadBytes, kEmbeddingPart / kElems * kBlockBytes>;

// What embedding needs of EmbeddingArgs; its format is not for the device.
struct EmbeddingRows {
  float* out;
  const void* table;
  const int32_t* ids;
  int64_t E;
  float scale;
};

template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
__global__ void __launch_bounds__(kEmbeddingThreads) embedding_kernel(EmbeddingRows a) {
  wait_for_launches();
  constexpr int kBlock = kBlockFloats<kElems>;
  constexpr bool kTakes = kTakesRuns<kElems, kHeadBytes>;
  using Stored = StoredPart<kElems, kBlockBytes, kHeadBytes>;
  SharedMemory shared;
  float* part = shared.take<float>(kPartFloats<kElems>);
  [[maybe_unused]] char* const stored = shared.take<char>(kTakes ? Stored::kBytes : 0);
  const int64_t first = int64_t{blockIdx.y} * kEmbeddingPart;
  const int length = static_cast<int>(a.E - first < kEmbeddingPart ? a.E - first : kEmbeddingPart);
  const int64_t stride = kHeadBytes + a.E / kElems * kBlockBytes;
  const char* row = static_cast<const char*>(a.table) + a.ids[blockIdx.x] * stride;
  const int thread = static_cast<int>(threadIdx.x);
  int64_t before = first / kElems;  // blocks
  if constexpr (kTakes) {
    const char* const from = row + kHeadBytes + before * kBlockBytes;
    if (thread < kHeadBytes) store(Stored::row(stored, from) + thread, load(row + thread));
    Stored::take(stored, from, length / kElems * kBlockBytes, warp(), kEmbeddingThreads / kWarp);
    __syncthreads();
    row = Stored::row(stored, from);
    before = 0;
  }
  // A warp decodes blocks that are kWarps apart, which is a number of whole words, and puts them side by
  // side; or blocks side by side, where they are so in banks of their own.
  constexpr int kBlocks = kEmbeddingPart / kElems, kWarps = kEmbeddingThreads / kWarp;
  constexpr int kApart = kBlocks <= kEmbeddingThreads && kBlockBytes % 8 != 0 ? kWarps : 1;
  constexpr int kEach = kBlocks / kWarps;  // of a warp, where no thread has two
  const auto place_of = [](int b) { return (b % kApart * kEach + b / kApart) * kBlock; };
  if constexpr (kBlocks <= kEmbeddingThreads) {
    const int b = kApart > 1 ? kApart * lane() + warp() : kEach * warp() + lane();
    if (lane() < kEach && b < length / kElems) kDecode(row, before + b, 1, part + place_of(b));
  } else {
    for (int b = thread; b < length / kElems; b += kEmbeddingThreads)
      kDecode(row, before + b, 1, part + b * kBlock);
  }
  __syncthreads();
  float* out = a.out + blockIdx.x * a.E + first;
  for (int i = thread; i < length; i += kEmbeddingThreads) {
    const int b = i / kElems;
    out[i] = part[(kApart > 1 ? place_of(b) : b * kBlock) + i % kElems] * a.scale;
  }
}

template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
CudaStatus run_embedding(const EmbeddingArgs& a, Stream stream) {
  if (a.T <= 0 || a.E <= 0) return {};
  const dim3 grid(static_cast<unsigned>(a.T),
                  static_cast<unsigned>((a.E + kEmbeddingPart - 1) / kEmbeddingPart));
  const EmbeddingRows rows{a.out, a.table, a.ids, a.E, a.scale};
  constexpr size_t kStored =
      kTakesRuns<kElems, kHeadBytes> ? StoredPart<kElems, kBlockBytes, kHeadBytes>::kBytes : 0;
  constexpr size_t kShared =
      (kPartFloats<kElems> * sizeof(float) + 127) / 128 * 128 + (kStored + 127) / 128 * 128;
  return {launch(embedding_kernel<kDecode, kElems, kBlockBytes, kHeadBytes>, grid, kEmbeddingThreads, kShared,
                 stream, rows)};
}

}  // namespace oar::cuda
