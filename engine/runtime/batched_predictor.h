// BatchedPredictor: a TensorRunner behind a bounded queue. Requests that fit together run together (dynamic
// batching), on one or several instances (clones: threads of their own, the same weights). What a server puts
// between its protocols and a model.
//
//   A request's result does not depend on its company: rows are independent in a model that declares a batch
//   axis. A run that fails, or whose outputs are not one row per row of input, is repeated request by
//   request. So only the one at fault gets the error. Every accepted job's `done` is called exactly
//   once.
//
// Threads: all methods from any thread. `done` runs on an instance's thread, or inside cancel(); it must not
// block.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/log.h"
#include "engine/runtime/core/batcher.h"
#include "engine/runtime/tensor_runner.h"

namespace oar {

struct BatchedPredictorOptions {
  // 0: the model's tensors have no batch axis and each request runs alone, whatever its shapes. Otherwise the
  // first axis of every input and output counts rows, and at most so many run together.
  int64_t max_batch = 0;
  bool merge = true;                       // false: the axis is there, but requests do not share runs
  std::vector<int64_t> preferred_batches;  // any order; row counts at which a batch need not wait for more
  std::chrono::microseconds max_queue_delay{0};
  size_t max_queue = 1024;  // requests
  int instances = 1;
  Logger log;
};

// Where a request's time went, in nanoseconds.
struct InferTimes {
  uint64_t queue = 0;    // waiting
  uint64_t input = 0;    // joining inputs to one batch
  uint64_t compute = 0;  // the model
  uint64_t output = 0;   // splitting outputs
};

// A run of the model that gave answers, as it was.
struct InferRun {
  int instance = 0;
  int64_t rows = 0;
  size_t requests = 0;
  Clock::time_point began;
  RunTimes times;
};

// A job that has been answered.
struct InferAnswer {
  std::string_view id;  // InferJob::id
  int64_t rows = 0;
  Clock::time_point arrived, started, ended;  // `started` is zero when no run took it
  StatusCode status = StatusCode::kOk;
};

// For traces. Called on whatever thread ran or answered; must not block. An answer comes behind its run.
class InferObserver {
 public:
  virtual ~InferObserver() = default;
  virtual void on_run(const InferRun& run) = 0;
  virtual void on_answer(const InferAnswer& answer) = 0;
};

struct InferJob {
  std::vector<Datum>
      inputs;        // in the model's order, valid for it; with a batch axis of `rows` each when batching
  int64_t rows = 1;  // [1, max_batch] when batching
  std::optional<Clock::time_point> deadline;  // of being started
  std::optional<Clock::time_point> end_by;    // of being answered: a run is ended there between two steps
  std::string id;                             // the caller's, for traces
  std::function<void(Result<std::vector<Datum>>)> done;
};

// Sums since creation.
struct InferStats {
  struct Batch {  // of the runs with so many rows
    int64_t rows = 0;
    uint64_t count = 0, input_ns = 0, compute_ns = 0, output_ns = 0;
  };
  uint64_t success = 0, failure = 0;  // requests
  uint64_t success_ns = 0, failure_ns = 0;
  InferTimes times;                                  // over successful requests
  uint64_t inferences = 0;                           // rows of successful requests
  uint64_t executions = 0;                           // runs of the model
  uint64_t cancelled = 0, expired = 0, refused = 0;  // of `failure`, but for refused
  uint64_t last_ms = 0;             // since the epoch, of the last request answered; 0: none yet
  size_t waiting = 0, running = 0;  // requests, now
  std::vector<Batch> batches;       // ascending
};

class BatchedPredictor {
 public:
  BatchedPredictor(std::unique_ptr<TensorRunner> model, BatchedPredictorOptions options);
  // Answers what still waits with UNAVAILABLE and returns when the instances have stopped; may be called by
  // one of them, from `done`.
  ~BatchedPredictor();
  BatchedPredictor(const BatchedPredictor&) = delete;
  BatchedPredictor& operator=(const BatchedPredictor&) = delete;

  const TensorRunner& model() const;
  const BatchedPredictorOptions& options() const;

  // A ticket for cancel(). RESOURCE_EXHAUSTED when the queue is full: then `done` is not called.
  Result<uint64_t> submit(InferJob job);
  // A job that still waits ends with CANCELLED before this returns. One that runs ends so between two steps
  // of its run, unless others share the run that want its results.
  void cancel(uint64_t ticket);
  InferStats stats() const;
  // Who is told from now on; null: nobody.
  void observe(std::shared_ptr<InferObserver> observer);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

}  // namespace oar
