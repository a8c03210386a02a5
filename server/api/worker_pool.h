// A few threads that run short jobs: parsing, templating and tokenizing requests away from the threads that
// answer health checks, and turning tokens into gRPC messages. Jobs are independent; whoever needs order
// keeps it (see Generation). The number of waiting jobs is bounded by the connections and streams that post
// them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace oar::api {

using Job = std::function<void()>;
// Runs a job later, on a thread of its own choosing, never inside the call.
using Executor = std::function<void(Job)>;

class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  ~WorkerPool() { stop(); }  // runs what is queued, then joins
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void post(Job job);  // dropped after stop()
  void stop();
  Executor executor() {
    return [this](Job job) { post(std::move(job)); };
  }

 private:
  void work();
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> jobs_;  // guarded by mutex_
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace oar::api
