#include "server/api/worker_pool.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>

#include "server/api/short_turns.h"

namespace oar::api {

// A thread runs a job, waits for one, rests in the middle of one (give_way), or is spare: it has let a
// resting one go on in its place. Those that run or wait are always as many as the pool was made with.
struct WorkerPool::Queue {
  struct Turn {  // of a job that rests
    std::condition_variable come;
    bool here = false;
  };
  struct Entry {
    Job job;
    Turn* turn = nullptr;  // instead of a job
  };
  std::mutex mutex;  // guards all below
  std::condition_variable ready, wanted;
  std::deque<Entry> entries;
  std::vector<std::thread> threads;
  int resting = 0, spare = 0, called = 0;  // `called`: spare threads that are to work again
  bool stopping = false;

  static thread_local Queue* mine;  // of the pool whose thread this is

  void post(Job job) {
    {
      std::lock_guard lock(mutex);
      if (stopping) return;
      entries.push_back({std::move(job)});
    }
    ready.notify_one();
  }

  void start_thread() {
    threads.emplace_back([this] {
      mine = this;
      prefer_short_turns();
      work();
    });
  }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      ready.wait(lock, [this] { return stopping || !entries.empty(); });
      if (entries.empty()) return;
      Entry entry = std::move(entries.front());
      entries.pop_front();
      if (entry.turn != nullptr) {
        entry.turn->here = true;
        entry.turn->come.notify_one();
        if (!wait_until_called(lock)) return;
        continue;
      }
      lock.unlock();
      try {
        entry.job();
      } catch (const std::exception&) {
        // Out of memory in one request: what the job held is released, and a dropped writer answers 500.
      }
      entry.job = nullptr;
      lock.lock();
    }
  }

  // False: the pool stops.
  bool wait_until_called(std::unique_lock<std::mutex>& lock) {
    ++spare;
    wanted.wait(lock, [this] { return stopping || called > 0; });
    --spare;
    if (called == 0) return false;
    --called;
    return true;
  }

  void give_way() {
    std::unique_lock lock(mutex);
    if (stopping || entries.empty() || resting == kMaxResting) return;
    if (called < spare) {
      ++called;
      wanted.notify_one();
    } else {
      try {
        start_thread();
      } catch (const std::exception&) { return; }  // none to be had
    }
    Turn turn;
    entries.push_back({{}, &turn});
    ++resting;
    turn.come.wait(lock, [&turn] { return turn.here; });
    --resting;
  }
};

thread_local WorkerPool::Queue* WorkerPool::Queue::mine = nullptr;

WorkerPool::WorkerPool(int threads) : queue_(std::make_shared<Queue>()) {
  const std::lock_guard lock(queue_->mutex);
  for (int i = 0; i < std::max(1, threads); ++i) queue_->start_thread();
}

void WorkerPool::give_way() {
  if (Queue::mine != nullptr) Queue::mine->give_way();
}

void WorkerPool::post(Job job) { queue_->post(std::move(job)); }

void WorkerPool::stop() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;  // nobody starts another thread from here on
    threads.swap(queue_->threads);
  }
  queue_->ready.notify_all();
  queue_->wanted.notify_all();
  for (std::thread& t : threads) t.join();
}

Executor WorkerPool::executor() const {
  return [queue = queue_](Job job) { queue->post(std::move(job)); };
}

}  // namespace oar::api
