// The pool: every chunk of every phase exactly once, phases in order, from any thread, however slow a worker
// is.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>
#include <vector>

#include "kernels/run_delay.h"
#include "kernels/thread_pool.h"
#include "tests/support/catch.h"

using namespace oar;

namespace {

// A kernel of several phases whose chunks count themselves. Phase p + 1 checks that phase p is complete.
struct CountArgs {
  int phases;
  int64_t chunks;
  std::vector<std::vector<int>>*
      counts;  // [phase][chunk], plain ints: the sanitizer sees a race if there is one
  std::atomic<int64_t>* early;
  int slow_chunk = -1;
};

void count_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const CountArgs*>(args);
  *out = KernelPlan{};
  out->phases = a.phases;
  for (int p = 0; p < a.phases; ++p) out->chunks[p] = a.chunks;
}

void count_run(const void* args, int phase, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const CountArgs*>(args);
  for (int64_t c = begin; c < end; ++c) {
    if (phase > 0) {
      // A chunk of another worker's range: the barrier between phases makes it visible.
      const auto& before = (*a.counts)[static_cast<size_t>(phase - 1)];
      if (before[static_cast<size_t>(a.chunks - 1 - c)] == 0) a.early->fetch_add(1);
    }
    if (c == a.slow_chunk) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ++(*a.counts)[static_cast<size_t>(phase)][static_cast<size_t>(c)];
  }
}

const Kernel kCount{KernelFamily::kUnary, Isa::kReference, "count", std::nullopt, &count_plan, &count_run};

// Each chunk of each phase once, and no phase before the one ahead of it has ended. From any thread.
bool runs_right(ThreadPool& pool, int phases, int64_t chunks, int slow_chunk = -1) {
  std::vector<std::vector<int>> counts(static_cast<size_t>(phases),
                                       std::vector<int>(static_cast<size_t>(chunks)));
  std::atomic<int64_t> early{0};
  const CountArgs args{phases, chunks, &counts, &early, slow_chunk};
  KernelPlan plan;
  kCount.plan(&args, pool.workers(), &plan);
  pool.run(kCount, &args, plan, nullptr);
  int64_t wrong = 0;
  for (const auto& phase : counts) {
    for (int n : phase) wrong += n != 1;
  }
  return wrong == 0 && early == 0;
}

void run_and_check(ThreadPool& pool, int phases, int64_t chunks, int slow_chunk = -1) {
  REQUIRE(runs_right(pool, phases, chunks, slow_chunk));
}

}  // namespace

TEST_CASE("thread pool: each chunk once, phases in order") {
  for (int threads : {1, 2, 3, 4, 7}) {
    ThreadPool pool({.threads = threads});
    CHECK(pool.workers() == threads);
    for (int64_t chunks : {0, 1, 2, 3, 10, 64, 1000}) {
      for (int phases = 1; phases <= kMaxPhases; ++phases) run_and_check(pool, phases, chunks);
    }
  }
}

TEST_CASE("thread pool: thousands of short runs, parked workers and not") {
  for (int spin_us : {0, 50}) {
    ThreadPool pool({.threads = 4, .spin_us = spin_us});
    for (int i = 0; i < 3000; ++i) {
      run_and_check(pool, 1 + i % 3, i % 17);
      if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const ThreadPool::Counters c = pool.counters();
    CHECK(c.runs == 3000);
  }
}

TEST_CASE("thread pool: a slow chunk does not hold the others' work") {
  ThreadPool pool({.threads = 4});
  // Chunk 0 sleeps 2 ms; its owner's remaining chunks are stolen meanwhile.
  run_and_check(pool, 1, 64, 0);
  run_and_check(pool, 2, 64, 5);
  CHECK(pool.counters().steals > 0);
}

TEST_CASE("thread pool: callers take turns") {
  ThreadPool pool({.threads = 3});
  std::vector<std::thread> callers;
  std::atomic<int64_t> total{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        int64_t sum = 0;
        std::vector<int64_t> parts(50);
        pool.parallel_for(50, 3, [&](int64_t b, int64_t e) {
          for (int64_t k = b; k < e; ++k) parts[static_cast<size_t>(k)] = k;
        });
        for (int64_t p : parts) sum += p;
        total += sum;
      }
    });
  }
  for (std::thread& t : callers) t.join();
  CHECK(total.load() == 4 * 200 * (49 * 50 / 2));
}

TEST_CASE("thread pool: parallel_for covers ranges of any size and grain") {
  ThreadPool pool({.threads = 4});
  for (int64_t count : {0, 1, 5, 100, 4097}) {
    for (int64_t grain : {0, 1, 7, 64, 100'000}) {
      std::vector<int> seen(static_cast<size_t>(count));
      std::atomic<bool> inside{true};
      pool.parallel_for(count, grain, [&](int64_t b, int64_t e) {
        if (b < 0 || e > count || b >= e) inside = false;
        for (int64_t k = b; k < e; ++k) ++seen[static_cast<size_t>(k)];
      });
      CHECK(inside);
      CHECK(std::count(seen.begin(), seen.end(), 1) == count);
    }
  }
  // A count near the limit of the type: handed out in large units without overflow.
  std::atomic<int64_t> sum{0};
  const int64_t huge = INT64_MAX - 5;
  pool.parallel_for(huge, int64_t{1} << 40, [&](int64_t b, int64_t e) { sum += e - b; });
  CHECK(sum.load() == huge);
}

TEST_CASE("thread pool: scratch is private, aligned and large enough") {
  ThreadPool pool({.threads = 4});
  pool.reserve_scratch(1000);
  pool.reserve_scratch(100);  // smaller: keeps what there is
  struct Args {
    std::atomic<int64_t> bad{0};
  } args;
  static const Kernel kernel{KernelFamily::kUnary,
                             Isa::kReference,
                             "scratch",
                             std::nullopt,
                             nullptr,
                             [](const void* a, int, int64_t begin, int64_t end, const KernelScratch& s) {
                               auto* bytes = static_cast<unsigned char*>(s.worker);
                               auto& bad = const_cast<Args*>(static_cast<const Args*>(a))->bad;
                               if (reinterpret_cast<uintptr_t>(bytes) % 64 != 0) ++bad;
                               for (int64_t c = begin; c < end; ++c) {
                                 for (int i = 0; i < 1000; ++i) bytes[i] = static_cast<unsigned char>(c);
                                 for (int i = 0; i < 1000; ++i)
                                   bad += bytes[i] != static_cast<unsigned char>(c);
                               }
                             }};
  KernelPlan plan;
  plan.chunks[0] = 500;
  plan.worker_scratch = 1000;
  pool.run(kernel, &args, plan, nullptr);
  CHECK(args.bad.load() == 0);
}

TEST_CASE("thread pool: who waits asks for its share of the next kernel's weights") {
  // Which chunks were asked for. The addresses it gets are nobody's: a hint may be stale.
  struct Asked {
    std::atomic<uint64_t> chunks{0};
  } asked;
  static constexpr int64_t kChunks = 40;
  Kernel next = kCount;
  next.weights = [](const void* a, int64_t chunk) {
    const_cast<Asked*>(static_cast<const Asked*>(a))->chunks.fetch_or(uint64_t{1} << chunk);
    return WeightSpan{reinterpret_cast<const void*>(uintptr_t{4096}), int64_t{1} << 40};
  };
  ThreadPool pool({.threads = 4, .spin_us = 100000});
  for (int turn = 0; turn < 20; ++turn) {
    // Its slow chunk gives the others time to finish and ask.
    std::vector<std::vector<int>> counts(1, std::vector<int>(64));
    std::atomic<int64_t> early{0};
    const CountArgs args{1, 64, &counts, &early, 5};
    KernelPlan plan;
    kCount.plan(&args, pool.workers(), &plan);
    pool.run(kCount, &args, plan, nullptr, {&next, &asked, kChunks});
    REQUIRE(std::ranges::all_of(counts[0], [](int n) { return n == 1; }));
  }
  const uint64_t chunks = asked.chunks.load();
  CHECK(chunks != 0);
  // With one of four at rest, shares begin at thirds.
  uint64_t shares = 0;
  for (const int64_t count : {3, 4}) {
    for (int64_t w = 0; w < count; ++w) shares |= uint64_t{1} << kChunks * w / count;
  }
  CHECK((chunks & ~shares) == 0);
}

TEST_CASE("thread pool: pinned workers run too") {
  ThreadPool pool({.threads = 3, .pin = true});
  run_and_check(pool, 2, 100);
}

namespace {

// What this thread pretends to have waited for a processor, in ns.
thread_local uint64_t pretended_delay = 0;

}  // namespace

TEST_CASE("thread pool: a worker that waited for a processor inside a phase is left out for a while") {
  using namespace std::chrono_literals;
  using Clock = std::chrono::steady_clock;
  for (int threads : {2, 4}) {
    ThreadPool pool({.threads = threads, .run_delay_ns = [] { return pretended_delay; }});
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<std::thread::id> victim{};
    // One phase of 64 chunks, each once. Says whether the victim took part; when asked, it is held up.
    const auto phase = [&](bool hold_up) {
      std::atomic<int> done{0};
      std::atomic<bool> seen{false};
      pool.parallel_for(64, 1, [&](int64_t begin, int64_t end) {
        const std::thread::id self = std::this_thread::get_id();
        std::thread::id none{};
        if (self != caller && hold_up) victim.compare_exchange_strong(none, self);
        if (self == victim.load()) {
          if (hold_up && !seen) {
            std::this_thread::sleep_for(3ms);
            pretended_delay += 3'000'000;
          }
          seen = true;
        } else {
          std::this_thread::sleep_for(20us);  // so that nobody does it all
        }
        done += static_cast<int>(end - begin);
      });
      REQUIRE(done == 64);
      return seen.load();
    };
    const auto give_up = Clock::now() + 20s;
    // The first time a thread asks it only learns how long it has waited so far, the second may be chance.
    auto last = Clock::now();
    while (pool.counters().rests == 0 && Clock::now() < give_up) {
      last = Clock::now();
      phase(true);
    }
    REQUIRE(pool.counters().rests == 1);
    while (true) {
      const bool seen = phase(false);
      if (Clock::now() - last > 50ms) break;
      CHECK_FALSE(seen);
    }
    bool back = false;
    while (!back && Clock::now() < give_up) back = phase(false);
    CHECK(back);
    CHECK(pool.counters().rests == 1);
  }
}

TEST_CASE("thread pool: a long phase is no reason to rest") {
  ThreadPool pool({.threads = 3, .run_delay_ns = [] { return pretended_delay; }});
  for (int i = 0; i < 5; ++i) run_and_check(pool, 2, 8, 3);  // a chunk of it sleeps for 2 ms
  CHECK(pool.counters().rests == 0);
}

TEST_CASE("thread pool: a caller that was held up lets the last worker rest") {
  ThreadPool pool({.threads = 4, .run_delay_ns = [] { return pretended_delay; }});
  const std::thread::id caller = std::this_thread::get_id();
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (pool.counters().rests == 0 && std::chrono::steady_clock::now() < give_up) {
    std::atomic<bool> slept{false};
    pool.parallel_for(64, 1, [&](int64_t, int64_t) {
      if (std::this_thread::get_id() != caller || slept.exchange(true)) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      pretended_delay += 3'000'000;
    });
  }
  run_and_check(pool, 2, 64);
  CHECK(pool.counters().rests == 1);  // a quarter of the threads at most
}

TEST_CASE("thread pool: callers that wait for each other let nobody rest") {
  ThreadPool pool({.threads = 2, .run_delay_ns = [] { return pretended_delay; }});
  const auto other = pool.share();
  // Every phase of every thread says that it was kept from its processor, as woken callers keep workers from
  // theirs.
  std::atomic<bool> all_done{true};
  const auto run = [&](ThreadPool& share, int phases) {
    for (int i = 0; i < phases; ++i) {
      std::atomic<int> done{0};
      share.parallel_for(2, 1, [&](int64_t begin, int64_t end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        pretended_delay += 2'000'000;
        done += static_cast<int>(end - begin);
      });
      if (done != 2) all_done = false;
    }
  };
  for (ThreadPool* second : {&pool, other.get()}) {
    // Several, so that one waits whenever it is looked.
    std::atomic<int> begun{0};
    std::atomic<bool> enough{false};
    std::vector<std::thread> beside;
    for (int t = 0; t < 4; ++t) {
      beside.emplace_back([&] {
        run(*second, 1);
        for (++begun; !enough;) run(*second, 1);
      });
    }
    while (begun < 4) run(pool, 1);
    const uint64_t before = pool.counters().rests;
    run(pool, 20);
    CHECK(pool.counters().rests == before);
    enough = true;
    for (std::thread& t : beside) t.join();
  }
  // Alone, the same is a reason.
  run(pool, 20);
  CHECK(pool.counters().rests > 0);
  CHECK(all_done);
}

TEST_CASE("thread pool: threads that were just woken let nobody rest") {
  // Its workers sleep as soon as they have no work.
  ThreadPool pool({.threads = 2, .spin_us = 0, .run_delay_ns = [] { return pretended_delay; }});
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(8));
    pool.parallel_for(2, 1, [](int64_t, int64_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      pretended_delay += 2'000'000;
    });
  }
  CHECK(pool.counters().rests == 0);
}

TEST_CASE("thread pool: what the system says about a thread's delays does not shrink") {
  RunDelay delay;
  CHECK(delay.total_ns() == 0);
  delay.open();
  const uint64_t before = delay.total_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(delay.total_ns() >= before);
}

TEST_CASE("thread pool: what a held-up worker has taken is a small part of its share") {
  for (int threads : {2, 4}) {
    ThreadPool pool({.threads = threads});
    constexpr int64_t kShare = 64;
    std::atomic<int64_t> largest{0};
    pool.parallel_for(kShare * threads, 1, [&](int64_t begin, int64_t end) {
      int64_t most = largest.load();
      while (end - begin > most && !largest.compare_exchange_weak(most, end - begin)) {}
    });
    CHECK(largest.load() <= kShare / 8);
  }
}

namespace {
size_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}
}  // namespace

TEST_CASE("thread pool: shares have one set of threads, begun when they are wanted") {
  const size_t before = threads_of_process();
  ThreadPool pool({.threads = 1, .capacity = 4});
  CHECK(threads_of_process() == before);
  const auto two = pool.share(2), all = pool.share(), again = all->share(3), more = pool.share(9);
  CHECK(two->workers() == 2);
  CHECK(all->workers() == 4);
  CHECK(again->workers() == 3);
  CHECK(more->workers() == 4);
  CHECK(threads_of_process() == before + 3);
  std::vector<std::thread> callers;
  std::atomic<bool> right{true};
  for (ThreadPool* share : {&pool, two.get(), all.get(), again.get(), all.get()}) {
    callers.emplace_back([share, &right] {
      for (int i = 0; i < 20; ++i)
        if (!runs_right(*share, 3, 64)) right = false;
    });
  }
  for (std::thread& t : callers) t.join();
  CHECK(right);
  // Nobody but the caller computes for a share of one.
  std::atomic<bool> elsewhere{false};
  pool.parallel_for(64, 1, [&, caller = std::this_thread::get_id()](int64_t, int64_t) {
    if (std::this_thread::get_id() != caller) elsewhere = true;
  });
  CHECK_FALSE(elsewhere);
}

TEST_CASE("thread pool: shares that both have work get the same time, whatever the length of their kernels") {
  using namespace std::chrono;
  const ThreadPool pool({.threads = 2});
  const auto a = pool.share(), b = pool.share();
  std::atomic<int64_t> long_us{0}, short_us{0};
  std::atomic<bool> stop{false};
  // Runs kernels of two chunks that take so many microseconds each.
  const auto keep_busy = [&](ThreadPool& share, int64_t us, std::atomic<int64_t>& sum) {
    while (!stop) {
      share.parallel_for(2, 1, [us](int64_t begin, int64_t end) {
        const auto until = steady_clock::now() + microseconds(us * (end - begin));
        while (steady_clock::now() < until) {}
      });
      sum += us;
    }
  };
  std::thread one([&] { keep_busy(*a, 5000, long_us); }), other([&] { keep_busy(*b, 50, short_us); });
  const auto give_up = steady_clock::now() + seconds(30);
  while (long_us + short_us < 400'000 && steady_clock::now() < give_up)
    std::this_thread::sleep_for(milliseconds(1));
  stop = true;
  one.join(), other.join();
  // Turn by turn the short ones would have 0.01, and a mutex gives one of them nearly all. Half each, less
  // what one long kernel, the changes of turn and a machine busy with other things take.
  const double part = static_cast<double>(short_us) / static_cast<double>(long_us + short_us);
  INFO("short kernels got " << part << " of the time");
  CHECK(part > 0.15);
  CHECK(part < 0.85);
}
