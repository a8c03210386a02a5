#include "server/api/worker_pool.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>

namespace oar::api {

struct WorkerPool::Queue {
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<Job> jobs;   // guarded by mutex
  bool stopping = false;  // guarded by mutex

  void post(Job job) {
    {
      std::lock_guard lock(mutex);
      if (stopping) return;
      jobs.push_back(std::move(job));
    }
    ready.notify_one();
  }

  void work() {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex);
        ready.wait(lock, [this] { return stopping || !jobs.empty(); });
        if (jobs.empty()) return;
        job = std::move(jobs.front());
        jobs.pop_front();
      }
      try {
        job();
      } catch (const std::exception&) {
        // Out of memory in one request: what the job held is released, and a dropped writer answers 500.
      }
    }
  }
};

WorkerPool::WorkerPool(int threads) : queue_(std::make_shared<Queue>()) {
  for (int i = 0; i < std::max(1, threads); ++i)
    threads_.emplace_back([queue = queue_.get()] { queue->work(); });
}

void WorkerPool::post(Job job) { queue_->post(std::move(job)); }

void WorkerPool::stop() {
  {
    std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
  }
  queue_->ready.notify_all();
  for (std::thread& t : threads_)
    if (t.joinable()) t.join();
}

Executor WorkerPool::executor() const {
  return [queue = queue_](Job job) { queue->post(std::move(job)); };
}

}  // namespace oar::api
