// The CPU pool (contract: thread_pool.h). How a phase runs:
//
//   - The caller divides the chunks into one contiguous range per worker and opens the gate by publishing a
//   new
//     odd ticket. A worker that sees the ticket raises its `inside` flag, looks at the ticket again, and only
//     then touches the job. The caller closes the gate with the next even ticket and waits until every flag
//     is down, so nobody can be inside a job that the caller has left, and a worker that slept through a job
//     never sees it. (Flag and ticket are sequentially consistent: either the worker sees the gate closed or
//     the caller sees the flag.)
//   - A range is one word, (begin, end). Its owner takes from the front, a sixteenth of what is left at a
//   time;
//     thieves take from the tail. All ranges empty and all flags down means the phase is complete: there is
//     no count of finished chunks to fight over.
//   - Between phases nobody sleeps. A worker parks in the kernel only after spin_us without work; its range
//   is then
//     simply stolen, so waking up is never waited for.
#include "kernels/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace oar {
namespace {

// Pauses an idle worker lets pass before it steals: about 2 us, long enough not to disturb workers that are
// about to finish, short beside the milliseconds a preempted one is away.
constexpr int kPausesBeforeStealing = 50;
constexpr int kPausesPerClockLook = 64;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory");
#endif
}

// Two cache lines: the adjacent-line prefetcher of x86 couples lines in pairs.
constexpr size_t kApart = 128;

struct AlignedDelete {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

AlignedBytes allocate_aligned(size_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{64})));
}

// A half-open range of units in one word.
struct Range {
  uint32_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  uint32_t size() const { return empty() ? 0 : end - begin; }
};
constexpr uint64_t pack(Range r) { return (static_cast<uint64_t>(r.begin) << 32) | r.end; }
constexpr Range unpack(uint64_t word) {
  return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
}

// One worker's place; each on lines of its own.
struct alignas(kApart) Slot {
  std::atomic<uint64_t> range{0};
  alignas(kApart) std::atomic<uint32_t> inside{0};
  std::atomic<uint64_t> steals{0};
  std::atomic<uint64_t> parks{0};
  AlignedBytes scratch;
};

// One phase: call(self, begin, end, scratch) for chunks [0, chunks), handed out in units of `unit` chunks.
struct Job {
  void (*call)(const Job& job, int64_t begin, int64_t end, const KernelScratch& scratch) = nullptr;
  const void* fn = nullptr;  // the Kernel or a RangeFn
  const void* args = nullptr;
  int phase = 0;
  int64_t chunks = 0;
  void* shared = nullptr;
  int64_t unit = 1, units = 0;  // set by run_phase()
};

void call_kernel(const Job& job, int64_t begin, int64_t end, const KernelScratch& scratch) {
  static_cast<const Kernel*>(job.fn)->run(job.args, job.phase, begin, end, scratch);
}

struct RangeFn {
  void (*fn)(void* ctx, int64_t begin, int64_t end);
  void* ctx;
  int64_t count, grain;
};
void call_range_fn(const Job& job, int64_t begin, int64_t end, const KernelScratch&) {
  const RangeFn& f = *static_cast<const RangeFn*>(job.fn);
  f.fn(f.ctx, begin * f.grain, end == job.chunks ? f.count : end * f.grain);
}

}  // namespace

struct ThreadPool::Impl {
  Impl(int count, const ThreadPoolOptions& options)
      : slots(static_cast<size_t>(count)), spin(std::chrono::microseconds(std::max(0, options.spin_us))) {
    std::vector<int> processors;
    if (options.pin) processors = affinity_list();
    for (int w = 1; w < count; ++w) {
      threads.emplace_back([this, w] { worker_main(w); });
      if (!processors.empty()) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(processors[static_cast<size_t>(w) % processors.size()], &set);
        pthread_setaffinity_np(threads.back().native_handle(), sizeof set, &set);
      }
    }
  }

  ~Impl() {
    stopping.store(true);
    ticket.fetch_add(2);  // stays even: nobody enters
    ticket.notify_all();
    for (std::thread& t : threads) t.join();
  }

  static std::vector<int> affinity_list() {
    std::vector<int> list;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return list;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) list.push_back(cpu);
    }
    return list;
  }

  // The next piece of the owner's range: a sixteenth of what is left, at least one unit. What a worker has
  // taken nobody can take over when its processor goes to somebody else for milliseconds.
  Range take_own(Slot& slot) {
    uint64_t word = slot.range.load(std::memory_order_relaxed);
    while (true) {
      const Range r = unpack(word);
      if (r.empty()) return {};
      const uint32_t n = std::max(1u, r.size() / 16);
      if (slot.range.compare_exchange_weak(word, pack({r.begin + n, r.end}), std::memory_order_relaxed)) {
        return {r.begin, r.begin + n};
      }
    }
  }

  // A piece from the tail of the fullest range: an eighth of it, at least one unit.
  Range steal(Slot& thief) {
    Slot* victim = nullptr;
    uint32_t most = 0;
    for (Slot& s : slots) {
      const uint32_t n = unpack(s.range.load(std::memory_order_relaxed)).size();
      if (n > most) most = n, victim = &s;
    }
    if (victim == nullptr) return {};
    uint64_t word = victim->range.load(std::memory_order_relaxed);
    while (true) {
      const Range r = unpack(word);
      if (r.empty()) return {};
      const uint32_t n = std::max(1u, r.size() / 8);
      if (victim->range.compare_exchange_weak(word, pack({r.begin, r.end - n}), std::memory_order_relaxed)) {
        thief.steals.fetch_add(1, std::memory_order_relaxed);
        return {r.end - n, r.end};
      }
    }
  }

  bool all_empty() const {
    for (const Slot& s : slots) {
      if (!unpack(s.range.load(std::memory_order_relaxed)).empty()) return false;
    }
    return true;
  }

  void work(Slot& slot) {
    const KernelScratch scratch{slot.scratch.get(), job.shared};
    const auto run = [&](Range r) {
      job.call(job, r.begin * job.unit, r.end == job.units ? job.chunks : r.end * job.unit, scratch);
    };
    for (Range r = take_own(slot); !r.empty(); r = take_own(slot)) run(r);
    for (int pauses = 0; !all_empty();) {
      if (pauses < kPausesBeforeStealing) {
        ++pauses;
        pause();
        continue;
      }
      if (const Range r = steal(slot); !r.empty()) run(r);
    }
  }

  void worker_main(int w) {
    Slot& slot = slots[static_cast<size_t>(w)];
    uint32_t seen = 0;
    while (true) {
      const uint32_t now = wait_for_ticket(slot, seen);
      if (stopping.load(std::memory_order_relaxed)) return;
      seen = now;
      if (now % 2 == 0) continue;  // closed again before we came
      slot.inside.store(1);
      if (ticket.load() == now) work(slot);
      slot.inside.store(0, std::memory_order_release);
    }
  }

  // Returns the ticket once it differs from `seen`: spins, then parks.
  uint32_t wait_for_ticket(Slot& slot, uint32_t seen) {
    uint32_t now = ticket.load(std::memory_order_acquire);
    if (now != seen) return now;
    const auto deadline = std::chrono::steady_clock::now() + spin;
    do {
      for (int i = 0; i < kPausesPerClockLook; ++i) {
        pause();
        now = ticket.load(std::memory_order_acquire);
        if (now != seen) return now;
      }
    } while (std::chrono::steady_clock::now() < deadline);
    slot.parks.fetch_add(1, std::memory_order_relaxed);
    parked.fetch_add(1);
    while ((now = ticket.load()) == seen) ticket.wait(seen);
    parked.fetch_sub(1);
    return now;
  }

  // Runs `job` to completion on all workers. The caller holds `turn`.
  void run_phase() {
    const int64_t count = static_cast<int64_t>(slots.size());
    constexpr int64_t kMaxUnits = int64_t{1} << 31;
    job.unit = job.chunks / kMaxUnits + 1;
    const int64_t units = job.units = job.chunks / job.unit + (job.chunks % job.unit != 0);
    if (units <= 1 || count == 1) {
      if (job.chunks > 0) job.call(job, 0, job.chunks, {slots[0].scratch.get(), job.shared});
      return;
    }
    for (int64_t w = 0; w < count; ++w) {
      const Range r{static_cast<uint32_t>(units * w / count), static_cast<uint32_t>(units * (w + 1) / count)};
      slots[static_cast<size_t>(w)].range.store(pack(r), std::memory_order_relaxed);
    }
    ticket.fetch_add(1);  // odd: open
    if (parked.load() != 0) ticket.notify_all();
    work(slots[0]);
    ticket.fetch_add(1);  // even: closed
    for (Slot& s : slots) {
      while (s.inside.load() != 0) pause();
    }
  }

  std::vector<Slot> slots;
  const std::chrono::steady_clock::duration spin;
  size_t scratch_bytes = 0;
  Job job;
  std::mutex turn;  // one run at a time
  std::atomic<uint64_t> runs{0};
  alignas(kApart) std::atomic<uint32_t> ticket{0};
  alignas(kApart) std::atomic<uint32_t> parked{0};
  std::atomic<bool> stopping{false};
  std::vector<std::thread> threads;  // last: they use everything above
};

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : impl_(std::make_unique<Impl>(options.threads > 0 ? options.threads : usable_processors(), options)) {}

ThreadPool::~ThreadPool() = default;

int ThreadPool::workers() const { return static_cast<int>(impl_->slots.size()); }

void ThreadPool::run(const Kernel& kernel, const void* args, const KernelPlan& plan, void* shared) {
  std::lock_guard lock(impl_->turn);
  impl_->runs.fetch_add(1, std::memory_order_relaxed);
  for (int phase = 0; phase < plan.phases; ++phase) {
    impl_->job = Job{&call_kernel, &kernel, args, phase, plan.chunks[phase], shared};
    impl_->run_phase();
  }
}

void ThreadPool::reserve_scratch(size_t bytes_per_worker) {
  std::lock_guard lock(impl_->turn);
  if (bytes_per_worker <= impl_->scratch_bytes) return;
  for (Slot& s : impl_->slots) s.scratch = allocate_aligned(bytes_per_worker);
  impl_->scratch_bytes = bytes_per_worker;
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, void (*fn)(void* ctx, int64_t begin, int64_t end),
                              void* ctx) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const RangeFn range_fn{fn, ctx, count, grain};
  std::lock_guard lock(impl_->turn);
  impl_->job = Job{&call_range_fn, &range_fn, nullptr, 0, (count - 1) / grain + 1, nullptr};
  impl_->run_phase();
}

ThreadPool::Counters ThreadPool::counters() const {
  Counters c{impl_->runs.load(std::memory_order_relaxed), 0, 0};
  for (const Slot& s : impl_->slots) {
    c.steals += s.steals.load(std::memory_order_relaxed);
    c.parks += s.parks.load(std::memory_order_relaxed);
  }
  return c;
}

}  // namespace oar
