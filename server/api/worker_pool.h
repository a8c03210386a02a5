// A few threads that run short jobs: parsing, templating and tokenizing requests away from the threads that
// answer health checks, and turning tokens into gRPC messages. Jobs are independent; whoever needs order
// keeps it (see Generation). The number of waiting jobs is bounded by the connections and streams that post
// them.
#pragma once

#include <functional>
#include <memory>
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
  // May be called when the pool is gone, and then drops the job: the engine's thread can be on its way here
  // with the last event of a request whose answer has long been sent.
  Executor executor() const;

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace oar::api
