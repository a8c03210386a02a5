// Backend: the device seam. Everything above it (graph, runtime) sees memory it may not touch, copies it must
// ask for and kernels it orders; nothing above may assume that device memory is host memory. The CPU is one
// implementation; a GPU is another with the same calls.
//
// Threads: one thread at a time per Backend. Work is ordered: launch() and the copies happen in call order,
// and synchronize() waits for all of them.
#pragma once

#include <memory>

#include "engine/tensor/tensor.h"
#include "kernels/matmul.h"
#include "kernels/thread_pool.h"

namespace oar {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;  // "cpu.avx512vnni"
  virtual MemoryKind memory() const = 0;

  virtual Result<Buffer> allocate(uint64_t bytes) = 0;  // 64-byte aligned, uninitialized
  virtual Status upload(void* device, const void* host, uint64_t bytes) = 0;
  virtual Status download(void* host, const void* device, uint64_t bytes) = 0;
  virtual Status copy(void* to, const void* from, uint64_t bytes) = 0;
  virtual Status synchronize() = 0;

  // The best kernel for a family and weight (or KV element) format; null when there is none.
  virtual const Kernel* find_kernel(KernelFamily family, Format format) const = 0;
  virtual const WeightLayout& weight_layout(Format format) const = 0;
  virtual int workers() const = 0;
  // Makes launch() allocation-free for kernels that need up to this much scratch per worker.
  virtual void reserve_worker_scratch(size_t bytes) = 0;
  virtual Status launch(const Kernel& kernel, const void* args, const KernelPlan& plan,
                        void* shared_scratch) = 0;
  // Host threads for work at load time.
  virtual ThreadPool& host_pool() = 0;
};

// The processor, at the given instruction-set level and below. The pool may be shared with other backends.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<ThreadPool> pool, Isa isa);

}  // namespace oar
