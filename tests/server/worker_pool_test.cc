// The pool's one trick: a long job gives way to short ones, and threads come back to it.
#include "server/api/worker_pool.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "tests/support/catch.h"

using oar::api::WorkerPool;

namespace {

class Count {
 public:
  void add() {
    std::lock_guard lock(mutex_);
    ++value_;
    changed_.notify_all();
  }
  bool wait_for(int value) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return value_ >= value; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int value_ = 0;
};

}  // namespace

TEST_CASE("short jobs do not wait for long ones that give way") {
  for (const int threads : {1, 2}) {
    constexpr int jobs = 20;  // under way at once
    Count begun, short_done, long_done;
    std::atomic<bool> enough{false};
    std::atomic<int> running{0}, most{0};
    WorkerPool pool(threads);
    for (int i = 0; i < jobs; ++i)
      pool.post([&] {
        begun.add();
        do {
          const int now = ++running;
          for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
          --running;
          WorkerPool::give_way();
        } while (!enough);
        long_done.add();
      });
    REQUIRE(begun.wait_for(jobs));
    for (int i = 0; i < 100; ++i) pool.post([&] { short_done.add(); });
    CHECK(short_done.wait_for(100));
    enough = true;
    CHECK(long_done.wait_for(jobs));
    CHECK(most <= threads);
  }
}

TEST_CASE("more long jobs than may rest are all done") {
  Count done;
  WorkerPool pool(2);
  for (int i = 0; i < 4 * WorkerPool::kMaxResting; ++i)
    pool.post([&] {
      for (int slice = 0; slice < 200; ++slice) WorkerPool::give_way();
      done.add();
    });
  CHECK(done.wait_for(4 * WorkerPool::kMaxResting));
}

TEST_CASE("a long job goes on when everything queued before its rest is done, also while the pool stops") {
  Count begun, done;
  std::atomic<bool> stop{false};
  std::atomic<int> order{0}, short_at{0}, long_at{0};
  {
    WorkerPool pool(1);
    pool.post([&] {
      begun.add();
      while (!stop) WorkerPool::give_way();
      long_at = ++order;
      done.add();
    });
    REQUIRE(begun.wait_for(1));
    Count ran;
    for (int i = 0; i < 1000; ++i) {  // one after the other, each while the long one is under way
      pool.post([&] { ran.add(); });
      REQUIRE(ran.wait_for(i + 1));
    }
    pool.post([&] {
      short_at = ++order;
      stop = true;
    });
    REQUIRE(done.wait_for(1));
    pool.post([&] {  // the pool stops while this one rests or runs
      for (int slice = 0; slice < 1000; ++slice) WorkerPool::give_way();
      ++order;
    });
    pool.post([&] { ++order; });
    pool.stop();
  }
  CHECK(order == 4);
  CHECK(done.wait_for(1));
  CHECK(short_at == 1);
  CHECK(long_at == 2);
  WorkerPool::give_way();  // outside of a pool it is nothing
}

TEST_CASE("workers ask the system for short turns") {
#ifdef SYS_sched_getattr
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t turn, deadline, period;
  } now{};
  long result = -1;
  Count done;
  WorkerPool pool(1);
  pool.post([&] {
    result = syscall(SYS_sched_getattr, 0, &now, sizeof now, 0);
    done.add();
  });
  REQUIRE(done.wait_for(1));
  if (result != 0 || now.policy != SCHED_OTHER || now.turn == 0)
    OAR_SKIP("the system has no turns of its own length");
  CHECK(now.turn == 100'000);
#endif
}
