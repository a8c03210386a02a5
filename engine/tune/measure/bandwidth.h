// How fast this machine reads memory right now: what a decode step's speed is divided by. A pass takes some
// tens of milliseconds, so that it can be interleaved with what it is compared to; on shared machines the
// value moves by half within a minute.
#pragma once

#include "engine/tensor/buffer.h"
#include "kernels/thread_pool.h"

namespace oar {

class ReadProbe {
 public:
  // Touches `bytes` of memory (several times the last-level cache) and keeps it.
  static Result<ReadProbe> create(ThreadPool& pool, uint64_t bytes);
  // Over memory that has been written to; a multiple of 1 MiB is read.
  ReadProbe(ThreadPool& pool, Buffer memory) : pool_(&pool), memory_(std::move(memory)) {}
  // Bytes per second: the best of three passes of all workers over the memory, each with another number of
  // sequential streams per worker.
  double measure();

 private:
  double pass(uint64_t (*read)(const std::byte*));
  ThreadPool* pool_;
  Buffer memory_;
};

}  // namespace oar
