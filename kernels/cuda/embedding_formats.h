// Embeddings of any storage format: a thread decodes a block of the format into shared memory, then the row's
// part is written side by side. Included by the files that list formats.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/matmul_formats.h"
#include "kernels/embedding.h"

namespace oar::cuda {

constexpr int kEmbeddingThreads = 128;
constexpr int kEmbeddingPart = 1024;  // elements of a row that a block of threads decodes
constexpr size_t kEmbeddingShared = kEmbeddingPart * sizeof(float);

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
  float* part = SharedMemory().take<float>(kEmbeddingPart);
  const int64_t first = int64_t{blockIdx.y} * kEmbeddingPart;
  const int length = static_cast<int>(a.E - first < kEmbeddingPart ? a.E - first : kEmbeddingPart);
  const int64_t stride = kHeadBytes + a.E / kElems * kBlockBytes;
  const char* row = static_cast<const char*>(a.table) + a.ids[blockIdx.x] * stride;
  const int thread = static_cast<int>(threadIdx.x);
  for (int b = thread; b < length / kElems; b += kEmbeddingThreads) {
    kDecode(row, first / kElems + b, 1, part + b * kElems);
  }
  __syncthreads();
  float* out = a.out + blockIdx.x * a.E + first;
  for (int i = thread; i < length; i += kEmbeddingThreads) out[i] = part[i] * a.scale;
}

template <Decode kDecode, int kElems, int kBlockBytes, int kHeadBytes>
CudaStatus run_embedding(const EmbeddingArgs& a, Stream stream) {
  if (a.T <= 0 || a.E <= 0) return {};
  const dim3 grid(static_cast<unsigned>(a.T),
                  static_cast<unsigned>((a.E + kEmbeddingPart - 1) / kEmbeddingPart));
  const EmbeddingRows rows{a.out, a.table, a.ids, a.E, a.scale};
  return {launch(embedding_kernel<kDecode, kElems, kBlockBytes, kHeadBytes>, grid, kEmbeddingThreads,
                 kEmbeddingShared, stream, rows)};
}

}  // namespace oar::cuda
