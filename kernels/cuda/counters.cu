#include "kernels/cuda/counters.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/device.h"

namespace oar::cuda {
namespace {

struct Streams {
  std::mutex mutex;
  std::map<std::pair<int, Stream>, uint32_t*> counters;  // by device too: each has a default stream
};
Streams& g_streams = *new Streams;  // devices may be gone when static objects end

}  // namespace

int counters_of(Stream stream, uint32_t** counters) {
  *counters = nullptr;
  if (foreseen_launches != nullptr) return cudaSuccess;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const std::lock_guard lock(g_streams.mutex);
  uint32_t*& its = g_streams.counters[{device, stream}];
  if (its == nullptr) {
    constexpr size_t kBytes = kCounters * sizeof(uint32_t);
    void* memory = nullptr;
    cudaError_t error = cudaMalloc(&memory, kBytes);
    if (error == cudaSuccess) error = cudaMemset(memory, 0, kBytes);
    // Streams that do not follow the default one wait for it nowhere else.
    if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);
    if (error != cudaSuccess) {
      (void)cudaFree(memory);
      return error;
    }
    its = static_cast<uint32_t*>(memory);
  }
  *counters = its;
  return cudaSuccess;
}

void release_counters(Stream stream) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return;
  const std::lock_guard lock(g_streams.mutex);
  const auto its = g_streams.counters.find({device, stream});
  if (its == g_streams.counters.end()) return;
  (void)cudaFree(its->second);
  g_streams.counters.erase(its);
}

}  // namespace oar::cuda
