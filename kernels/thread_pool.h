// The CPU pool: runs the phases of a kernel over fixed workers. The calling thread is worker 0, so a pool of
// N has N - 1 threads of its own. Workers spin for a bounded time and then park; a futex sleep inside a step
// costs ~50 us on virtual machines, so spinning is the rule within a step and parking between steps. Each
// worker first does its own contiguous range of chunks and then steals from the tails of others. So a worker
// that is late does not hold up the rest. One that loses its processor inside a chunk does: nobody else may
// finish what it has begun. When that happens the pool works with one thread less for a while, which leaves a
// processor to whoever wants it (docs/decisions/0012-preempted-workers-rest.md). A process has one set of
// workers, and each model a share of it: shares take turns, fair by time (fair_turns.h), so that no two
// models' threads spin against each other.
#pragma once

#include <memory>

#include "kernels/kernel.h"

namespace oar {

struct ThreadPoolOptions {
  int threads = 0;   // of this share; 0: the processors this process may use (affinity mask and cgroup quota)
  int capacity = 0;  // the most that a share may have; threads begin with the first share that wants them
  bool pin = false;  // pin workers to processors of the affinity mask; if not, to their NUMA node (numa.h)
  int spin_us = 50;  // how long an idle worker spins before it parks
  // For tests: how long the calling thread has been ready without a processor, in ns, instead of asking the
  // system.
  uint64_t (*run_delay_ns)() = nullptr;
};

// Number of processors usable by this process: min(affinity mask, cgroup v1/v2 CPU quota rounded up), at
// least 1.
int usable_processors();

class ThreadPool {
 public:
  explicit ThreadPool(const ThreadPoolOptions& options = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Another share of the same workers, of `threads` of them (at most capacity(); 0: all). As long as several
  // shares have work, each gets the same time. May outlive this one.
  std::shared_ptr<ThreadPool> share(int threads = 0) const;
  int workers() const;
  int capacity() const;
  // Runs every phase of the kernel to completion; `plan` is what kernel.plan() said for these args, `shared`
  // has plan.shared_scratch bytes (64-byte aligned). Worker scratch comes from the pool and grows only
  // through reserve_scratch(). Blocking; callable from any thread, one at a time.
  // `next`: workers without work bring its first weights to their caches; its args are looked at until run()
  // returns.
  void run(const Kernel& kernel, const void* args, const KernelPlan& plan, void* shared,
           const NextKernel& next = {});
  // Makes sure each worker owns that many bytes of scratch, so that run() never allocates.
  void reserve_scratch(size_t bytes_per_worker);
  // Runs fn(ctx, begin, end) over [0, count): for work at load time (packing, decoding), not per step.
  void parallel_for(int64_t count, int64_t grain, void (*fn)(void* ctx, int64_t begin, int64_t end),
                    void* ctx);
  template <class F>
  void parallel_for(int64_t count, int64_t grain, F&& f) {
    parallel_for(
        count, grain, [](void* c, int64_t b, int64_t e) { (*static_cast<F*>(c))(b, e); }, &f);
  }
  // Of all shares, since start, for `oar bench` and metrics. rests: how often a worker was left out for a
  // while.
  struct Counters {
    uint64_t runs, steals, parks, rests;
  };
  Counters counters() const;

 private:
  struct Workers;
  struct Share;
  struct Turn;
  explicit ThreadPool(std::unique_ptr<Share> share);
  std::unique_ptr<Share> share_;
};

}  // namespace oar
