// The CPU pool (contract: thread_pool.h). How a phase runs:
//
// - The caller divides the chunks into one contiguous range per worker and tells each of a new phase on the
//   cache line that its range is on: a transfer between cores takes 100 ns and more, and a short phase is
//   little else. The caller's own first piece needs no word at all.
// - A range is one word, (begin, end). Its owner takes from the front, a sixteenth of what is left at a time;
//   thieves take from the tail.
// - Each worker counts the units that it has finished; the phase is over when the counts have grown by all of
//   its units. Until then whoever has taken a piece may look at the job, and nobody else may: taking is a
//   compare-and-swap on a range, which is empty between phases, so a worker that slept through a phase takes
//   from the one under way or nothing. Nobody waits for a worker that has taken nothing.
// - A worker or caller that was in a phase for longer than a millisecond asks the system how much of that it
//   waited for a processor (run_delay.h). If that was a millisecond, the pool has one thread more than
//   there are processors for it: before the next phase the caller lets a worker rest, that one or, if it
//   was the caller itself, the last. It is told of no phase and sleeps; after kRest it is let in again, and
//   if that was too early the next rest is twice as long.
// - Who has nothing to do, while a phase ends, one thread computes alone or no phase has begun, fetches the
//   weights that it will read first in the next kernel that has some (Soon): memory need not stand still.
// - Between phases nobody sleeps. A worker parks in the kernel only after spin_us without work; its range is
//   then simply stolen, so waking up is never waited for.
#include "kernels/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "kernels/fair_turns.h"
#include "kernels/numa.h"
#include "kernels/run_delay.h"

namespace oar {
namespace {

using Clock = std::chrono::steady_clock;

// Schedulers give a thread away for 3 to 5 ms. A shorter wait is no reason to lose a worker for much longer,
// nor is a single one: resting costs a share of the arithmetic, which is worth it from one such wait in
// kOften on.
constexpr std::chrono::milliseconds kHeldUp{1}, kOften{50};
// Threads that wake at once may share a processor until the system moves one, some 4 ms later.
constexpr std::chrono::milliseconds kPause{5}, kSettled{20};
// How long a worker rests at first and at most. A trial that fails costs one wait: a tenth of the time at
// first, then less and less.
constexpr std::chrono::milliseconds kRest{50}, kMostRest{1600};

constexpr int kPausesPerClockLook = 64;

// What a waiting worker fetches at most, a part of its second-level cache (512 KB and more), and how much of
// it between two looks at whether the wait is over.
constexpr int64_t kSoonBytes = 256 << 10, kSoonStep = 4 * 64;

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

// The weights that a worker will read first in the next kernel that has some, on their way to its caches.
// Addresses only: they may be gone when they are asked for, which a prefetch does not mind.
class Soon {
 public:
  // Share `rank` of `count` of the next kernel's chunks. While it stays the next one, what has been fetched
  // stays fetched.
  void expect(const NextKernel& next, int64_t rank, int64_t count) {
    if (next.args == args_) return;
    args_ = next.args;
    const WeightSpan span = next.kernel->weights(next.args, next.chunks * rank / count);
    at_ = reinterpret_cast<uintptr_t>(span.at);
    end_ = at_ + static_cast<uintptr_t>(std::min(span.bytes, kSoonBytes));
  }
  // Passes a moment.
  void wait() {
    const uintptr_t stop = std::min<uintptr_t>(at_ + kSoonStep, end_);
    for (; at_ < stop; at_ += 64) __builtin_prefetch(reinterpret_cast<const void*>(at_), 0, 2);
    pause();
  }

 private:
  const void* args_ = nullptr;
  uintptr_t at_ = 0, end_ = 0;
};

// One worker's place; each on lines of its own.
struct alignas(kApart) Slot {
  // What the caller says of a phase.
  std::atomic<uint64_t> range{0};
  // The worker's place among those who take part. Who steals before being told has that of the last phase,
  // which for a hint of what to fetch will do.
  std::atomic<int32_t> rank{0}, count{1};
  std::atomic<uint32_t> phase{0};  // its number, written last
  // What the worker says.
  alignas(kApart) std::atomic<uint64_t> finished{0};  // units of all phases
  std::atomic<uint64_t> steals{0};
  std::atomic<uint64_t> parks{0};
  std::atomic<bool> held_up{false};  // since the caller looked last
  std::atomic<uint32_t> resting{0};  // written by the caller between phases, waited on by the worker
  AlignedBytes scratch;
  alignas(kApart) Soon soon;  // the worker's own, looked at in every wait
};

// What the calling thread knew of its delays when it looked last.
uint64_t read_run_delay() {
  thread_local RunDelay delay;
  delay.open();
  return delay.total_ns();
}
bool was_held_up(uint64_t (*run_delay_ns)()) {
  thread_local bool known = false;
  thread_local uint64_t last = 0;
  const uint64_t now = run_delay_ns != nullptr ? run_delay_ns() : read_run_delay();
  const bool held_up = known && std::chrono::nanoseconds(now - last) >= kHeldUp;
  known = true;
  last = now;
  return held_up;
}

// One phase: call(self, begin, end, scratch) for chunks [0, chunks), handed out in units of `unit` chunks.
// One cache line: each worker fetches it with its first piece of each phase.
struct alignas(64) Job {
  void (*call)(const Job& job, int64_t begin, int64_t end, const KernelScratch& scratch) = nullptr;
  const void* fn = nullptr;  // the Kernel or a RangeFn
  const void* args = nullptr;
  void* shared = nullptr;
  const NextKernel* next = nullptr;  // null: none known
  int64_t chunks = 0;
  int32_t phase = 0;
  uint32_t units = 0;  // set by run_phase(), as is
  int64_t unit = 1;
};
static_assert(sizeof(Job) == 64);

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

// What all shares of a pool have in common. `turns` says whose run it is.
struct ThreadPool::Workers {
  Workers(int count, const ThreadPoolOptions& options)
      : slots(static_cast<size_t>(count)),
        spin(std::chrono::microseconds(std::max(0, options.spin_us))),
        pin(options.pin),
        run_delay_ns(options.run_delay_ns),
        nodes(numa_nodes(allowed_processors())),
        places(place_workers(nodes, count)) {}

  // Threads for a share of so many workers. Between runs.
  void start(int count) {
    for (int w = started.load(); w < count; ++w) {
      threads.emplace_back([this, w] { worker_main(w); });
      started.store(w + 1);
      Slot& slot = slots[static_cast<size_t>(w)];
      if (scratch_bytes > 0) slot.scratch = allocate_aligned(scratch_bytes);
      if (places.empty() || !(pin || nodes.size() > 1)) continue;
      const WorkerPlace& place = places[static_cast<size_t>(w)];
      cpu_set_t set;
      CPU_ZERO(&set);
      if (pin) {
        CPU_SET(place.processor, &set);
      } else {
        for (const int p : nodes[place.node].processors) CPU_SET(p, &set);
      }
      pthread_setaffinity_np(threads.back().native_handle(), sizeof set, &set);
    }
  }

  std::span<Slot> live() {
    return {slots.data(), static_cast<size_t>(started.load(std::memory_order_relaxed))};
  }
  std::span<const Slot> live() const {
    return {slots.data(), static_cast<size_t>(started.load(std::memory_order_relaxed))};
  }

  ~Workers() {
    stopping.store(true);
    for (Slot& s : live()) s.phase.fetch_add(1);
    unpark();
    for (Slot& s : live()) wake(s);
    for (std::thread& t : threads) t.join();
  }

  // A sixteenth of what is left, at least one unit: what a worker has taken nobody can take over when its
  // processor goes to somebody else for milliseconds.
  static uint32_t own_piece(Range left) { return std::max(1u, left.size() / 16); }

  // The next piece of the owner's range. Who has taken one sees the job: the caller wrote it before the
  // ranges.
  Range take_own(Slot& slot) {
    uint64_t word = slot.range.load(std::memory_order_relaxed);
    while (true) {
      const Range r = unpack(word);
      if (r.empty()) return {};
      const uint32_t n = own_piece(r);
      if (slot.range.compare_exchange_weak(word, pack({r.begin + n, r.end}), std::memory_order_acquire,
                                           std::memory_order_relaxed)) {
        return {r.begin, r.begin + n};
      }
    }
  }

  // A piece from the tail of the fullest range: an eighth of it, at least one unit.
  Range steal(Slot& thief) {
    Slot* victim = nullptr;
    uint32_t most = 0;
    for (Slot& s : live()) {
      const uint32_t n = unpack(s.range.load(std::memory_order_relaxed)).size();
      if (n > most) most = n, victim = &s;
    }
    if (victim == nullptr) return {};
    uint64_t word = victim->range.load(std::memory_order_relaxed);
    while (true) {
      const Range r = unpack(word);
      if (r.empty()) return {};
      const uint32_t n = std::max(1u, r.size() / 8);
      if (victim->range.compare_exchange_weak(word, pack({r.begin, r.end - n}), std::memory_order_acquire,
                                              std::memory_order_relaxed)) {
        thief.steals.fetch_add(1, std::memory_order_relaxed);
        return {r.end - n, r.end};
      }
    }
  }

  bool all_empty() const {
    for (const Slot& s : live()) {
      if (!unpack(s.range.load(std::memory_order_relaxed)).empty()) return false;
    }
    return true;
  }

  // Computes pieces, `first` and what follows it in the worker's range and then others', until there are
  // none.
  void work(Slot& slot, Range first) {
    const Clock::time_point start = Clock::now();
    uint32_t units = 0;
    for (Range r = first; !r.empty(); r = take_own(slot)) compute(slot, r), units += r.size();
    if (units > 0) finish(slot, units, start);
    // At once: the others began a microsecond later, as long as it takes them to hear of the phase.
    while (!all_empty()) {
      if (const Range r = steal(slot); !r.empty()) compute(slot, r), finish(slot, r.size(), start);
    }
  }

  void compute(const Slot& slot, Range r) const {
    job.call(job, r.begin * job.unit, r.end == job.units ? job.chunks : r.end * job.unit,
             {slot.scratch.get(), job.shared});
  }

  // Counts units that the worker has computed since `start`: its last look at the job.
  void finish(Slot& slot, uint32_t units, Clock::time_point start) {
    if (Clock::now() - start >= kHeldUp && was_held_up(run_delay_ns)) {
      slot.held_up.store(true, std::memory_order_relaxed);
      someone_held_up.store(true, std::memory_order_relaxed);
    }
    if (job.next != nullptr) {
      slot.soon.expect(*job.next, slot.rank.load(std::memory_order_relaxed),
                       slot.count.load(std::memory_order_relaxed));
    }
    slot.finished.store(slot.finished.load(std::memory_order_relaxed) + units, std::memory_order_release);
  }

  uint64_t all_finished() const {
    uint64_t units = 0;
    for (const Slot& s : live()) units += s.finished.load(std::memory_order_acquire);
    return units;
  }

  void worker_main(int w) {
    Slot& slot = slots[static_cast<size_t>(w)];
    uint32_t seen = 0;
    while (true) {
      seen = wait_for_phase(slot, seen);
      if (stopping.load(std::memory_order_relaxed)) return;
      __builtin_prefetch(&job);
      work(slot, take_own(slot));
    }
  }

  // Returns the worker's phase once it differs from `seen`, or when it has rested: spins, then parks.
  uint32_t wait_for_phase(Slot& slot, uint32_t seen) {
    uint32_t now = slot.phase.load(std::memory_order_acquire);
    if (now != seen) return now;
    const auto deadline = Clock::now() + spin;
    do {
      for (int i = 0; i < kPausesPerClockLook; ++i) {
        slot.soon.wait();
        now = slot.phase.load(std::memory_order_acquire);
        if (now != seen) return now;
      }
    } while (Clock::now() < deadline);
    slot.parks.fetch_add(1, std::memory_order_relaxed);
    // Either the caller sees that somebody is parked, or the worker sees the phase that the caller wrote
    // before it looked: both change `parked`.
    parked.fetch_add(1);
    while (true) {
      const uint32_t before = unparked.load();
      now = slot.phase.load();
      if (now != seen || slot.resting.load() != 0) break;
      unparked.wait(before);
    }
    parked.fetch_sub(1);
    slot.resting.wait(1);
    return now;
  }

  void unpark() {
    unparked.fetch_add(1);
    unparked.notify_all();
  }

  static void wake(Slot& slot) {
    slot.resting.store(0);
    slot.resting.notify_one();
  }

  // Between phases, when a thread was held up or a worker rests: who takes part in the next one.
  void choose_workers(size_t among) {
    const Clock::time_point now = Clock::now();
    if (resting > 0 && now >= rest_ends) {
      for (Slot& s : live()) {
        if (s.resting.load(std::memory_order_relaxed) != 0) wake(s);
      }
      resting = 0;
    }
    if (!someone_held_up.exchange(false, std::memory_order_relaxed)) return;
    // Who lost its processor lost it to one of ours: a caller that has waited for its turn wakes beside all
    // workers, and threads that have just been woken may lie on one processor.
    const bool callers = waiting.load(std::memory_order_relaxed) > 0 || turns.wanted() || callers_met;
    if (callers || now - begun_at < kSettled) {
      callers_met = false;
      for (Slot& s : live()) s.held_up.store(false, std::memory_order_relaxed);
      return;
    }
    bool often = now - held_up_at < kOften || now - rest_ends < kOften;
    held_up_at = now;
    const auto most_resting =
        static_cast<int64_t>(among == 1 ? 0 : (among + 3) / 4);  // fewer would be giving up
    for (size_t w = 0; w < live().size(); ++w) {
      if (!slots[w].held_up.exchange(false, std::memory_order_relaxed)) continue;
      if (often && resting < most_resting) let_rest(w, among, now);
      often = true;  // two of them at once
    }
  }

  // Worker w, or the last one instead of the caller.
  void let_rest(size_t w, size_t among, Clock::time_point now) {
    if (w == 0 || w >= among) w = among - 1;
    while (w > 0 && slots[w].resting.load(std::memory_order_relaxed) != 0) --w;
    if (w == 0) return;
    slots[w].resting.store(1);
    ++resting;
    rests.fetch_add(1, std::memory_order_relaxed);
    rest = now - rest_ends < kOften ? std::min<Clock::duration>(2 * rest, kMostRest) : kRest;
    rest_ends = now + rest;
  }

  // Runs `job` to completion on the first `among` workers. It is the caller's turn.
  void run_phase(size_t among) {
    if (parked.load(std::memory_order_relaxed) != 0) {
      // Workers also sleep while they wait for one that was held up; that is no pause.
      const Clock::time_point now = Clock::now();
      if (now - phase_ended > kPause) begun_at = now;
    }
    run_phase_of(among);
    phase_ended = Clock::now();
  }

  void run_phase_of(size_t among) {
    if (resting > 0 || someone_held_up.load(std::memory_order_relaxed)) choose_workers(among);
    auto count = static_cast<int64_t>(among);
    for (size_t w = 1; resting > 0 && w < among; ++w)
      count -= slots[w].resting.load(std::memory_order_relaxed);
    constexpr int64_t kMaxUnits = int64_t{1} << 31;
    job.unit = job.chunks / kMaxUnits + 1;
    const int64_t units = job.chunks / job.unit + (job.chunks % job.unit != 0);
    job.units = static_cast<uint32_t>(units);
    if (units <= 1 || count == 1) {
      if (job.chunks > 0) job.call(job, 0, job.chunks, {slots[0].scratch.get(), job.shared});
      return;
    }
    handed_out += static_cast<uint64_t>(units);
    ++phases;
    const auto begin_of = [&](int64_t rank) { return static_cast<uint32_t>(units * rank / count); };
    const auto tell = [&](Slot& s, int64_t rank, uint32_t taken) {
      s.rank.store(static_cast<int32_t>(rank), std::memory_order_relaxed);
      s.count.store(static_cast<int32_t>(count), std::memory_order_relaxed);
      s.range.store(pack({begin_of(rank) + taken, begin_of(rank + 1)}), std::memory_order_release);
      s.phase.store(phases, std::memory_order_release);
    };
    int64_t rank = 1;
    for (size_t w = 1; w < among; ++w) {
      if (resting > 0 && slots[w].resting.load(std::memory_order_relaxed) != 0) continue;
      tell(slots[w], rank++, 0);
    }
    const Range first{0, std::min(begin_of(1), own_piece({0, begin_of(1)}))};  // empty where units are few
    tell(slots[0], 0, first.end);
    const bool seen = parked.load(std::memory_order_relaxed) != 0;
    if (seen) unpark();
    work(slots[0], first);
    // Who parked just when the phase began may still help, and must hear of it.
    if (parked.fetch_add(0) != 0 && !seen) unpark();
    while (all_finished() != handed_out) slots[0].soon.wait();
  }

  std::vector<Slot> slots;
  const Clock::duration spin;
  const bool pin;
  uint64_t (*const run_delay_ns)();
  const std::vector<NumaNode> nodes;
  const std::vector<WorkerPlace> places;
  std::atomic<int> started{1};  // slots with a thread, the caller's included
  // The caller's, in its turn.
  int64_t resting = 0;
  bool callers_met = false;  // somebody had waited for its turn, since a thread was held up
  Clock::duration rest = kRest;
  Clock::time_point rest_ends{};    // of the rest under way, or of the last one
  Clock::time_point held_up_at{};   // when it was last seen
  Clock::time_point phase_ended{};  // the last one
  Clock::time_point begun_at{};     // when workers were last woken after a pause
  size_t scratch_bytes = 0;
  uint32_t phases = 0;
  uint64_t handed_out = 0;  // units of all phases
  Job job;
  FairTurns turns;              // one run at a time
  std::atomic<int> waiting{0};  // threads that wait for others of their share
  std::atomic<uint64_t> runs{0}, rests{0};
  std::atomic<bool> someone_held_up{false};
  alignas(kApart) std::atomic<uint32_t> parked{0};
  std::atomic<uint32_t> unparked{0};  // how often all were woken
  std::atomic<bool> stopping{false};
  std::vector<std::thread> threads;  // last: they use everything above
};

// What one owner has of the workers.
struct ThreadPool::Share {
  Share(std::shared_ptr<Workers> of, int count)
      : workers(std::move(of)), count(static_cast<size_t>(count)), party(workers->turns) {
    const FairTurns::Turn turn(party);
    workers->start(count);
  }
  const std::shared_ptr<Workers> workers;
  const size_t count;
  std::mutex mutex;  // of threads that share it
  FairTurns::Party party;
};

// The share's turn at the workers.
struct ThreadPool::Turn {
  explicit Turn(Share& share) : lock(share.mutex, std::try_to_lock) {
    Workers& workers = *share.workers;
    const bool waits = !lock.owns_lock();
    if (waits) {
      ++workers.waiting;
      lock.lock();
      --workers.waiting;
    }
    turn.emplace(share.party);
    if (waits || turn->slept()) workers.callers_met = true;
  }
  std::unique_lock<std::mutex> lock;
  std::optional<FairTurns::Turn> turn;
};

ThreadPool::ThreadPool(const ThreadPoolOptions& options) {
  const int count = options.threads > 0 ? options.threads : usable_processors();
  share_ =
      std::make_unique<Share>(std::make_shared<Workers>(std::max(count, options.capacity), options), count);
}
ThreadPool::ThreadPool(std::unique_ptr<Share> share) : share_(std::move(share)) {}

ThreadPool::~ThreadPool() = default;

std::shared_ptr<ThreadPool> ThreadPool::share(int threads) const {
  const int count = threads > 0 ? std::min(threads, capacity()) : capacity();
  return std::shared_ptr<ThreadPool>(new ThreadPool(std::make_unique<Share>(share_->workers, count)));
}

int ThreadPool::workers() const { return static_cast<int>(share_->count); }
int ThreadPool::capacity() const { return static_cast<int>(share_->workers->slots.size()); }

void ThreadPool::run(const Kernel& kernel, const void* args, const KernelPlan& plan, void* shared,
                     const NextKernel& next) {
  const Turn turn(*share_);
  Workers& workers = *share_->workers;
  workers.runs.fetch_add(1, std::memory_order_relaxed);
  // While x is packed, what comes next is this kernel's own weights.
  const NextKernel own{&kernel, args, plan.chunks[plan.phases - 1]};
  for (int phase = 0; phase < plan.phases; ++phase) {
    const bool last = phase + 1 == plan.phases;
    const NextKernel* soon = next.kernel == nullptr              ? nullptr
                             : last || kernel.weights == nullptr ? &next
                                                                 : &own;
    workers.job = {.call = &call_kernel,
                   .fn = &kernel,
                   .args = args,
                   .shared = shared,
                   .next = soon,
                   .chunks = plan.chunks[phase],
                   .phase = phase};
    workers.run_phase(share_->count);
  }
}

void ThreadPool::reserve_scratch(size_t bytes_per_worker) {
  const Turn turn(*share_);
  Workers& workers = *share_->workers;
  if (bytes_per_worker <= workers.scratch_bytes) return;
  for (Slot& s : workers.live()) s.scratch = allocate_aligned(bytes_per_worker);
  workers.scratch_bytes = bytes_per_worker;
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, void (*fn)(void* ctx, int64_t begin, int64_t end),
                              void* ctx) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  const RangeFn range_fn{fn, ctx, count, grain};
  const Turn turn(*share_);
  share_->workers->job = {.call = &call_range_fn, .fn = &range_fn, .chunks = (count - 1) / grain + 1};
  share_->workers->run_phase(share_->count);
}

ThreadPool::Counters ThreadPool::counters() const {
  const Workers& workers = *share_->workers;
  Counters c{workers.runs.load(std::memory_order_relaxed), 0, 0,
             workers.rests.load(std::memory_order_relaxed)};
  for (const Slot& s : workers.live()) {
    c.steals += s.steals.load(std::memory_order_relaxed);
    c.parks += s.parks.load(std::memory_order_relaxed);
  }
  return c;
}

}  // namespace oar
