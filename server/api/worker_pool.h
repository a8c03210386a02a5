// A few threads that run short jobs: parsing, templating and tokenizing requests away from the threads that
// answer health checks, and turning tokens into gRPC messages. Jobs are independent; whoever needs order
// keeps it (see Generation). The number of waiting jobs is bounded by the connections and streams that post
// them. A long job gives way between its slices, so that short ones do not wait for its end.
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
  // In a job: lets what is queued go first, on another thread, and returns when it is this job's turn again.
  // As many threads as the pool was made with run at a time; at most kMaxResting jobs rest, a further one
  // goes on. Elsewhere it does nothing.
  static void give_way();
  static constexpr int kMaxResting = 64;
  void stop();
  // May be called when the pool is gone, and then drops the job: the engine's thread can be on its way here
  // with the last event of a request whose answer has long been sent.
  Executor executor() const;

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
};

}  // namespace oar::api
