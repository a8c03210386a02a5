// JobRunner: what a server's protocols put a request of tensors into. A BatchedPredictor runs one model, an
// ensemble of a server several; both are asked, stopped and counted in the same way.
//
// Threads: all methods from any thread. An accepted job's `done` is called exactly once, by whatever thread
// has its results; it must not block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/runtime/core/request.h"
#include "engine/runtime/tensor_runner.h"

namespace oar {

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
  std::string_view trace = {};  // InferJob::trace
  std::string_view span = {};   // its own traceparent, where one was needed already; empty: none
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
  std::string trace;                          // and its traceparent; empty: none
  // Where the time of a job without an error went: written before `done` is called. May be null.
  std::shared_ptr<InferTimes> times;
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

class JobRunner {
 public:
  virtual ~JobRunner() = default;
  // A ticket for cancel(). With an error `done` is not called: RESOURCE_EXHAUSTED when the queue is full,
  // UNAVAILABLE when what is needed is not there.
  virtual Result<uint64_t> submit(InferJob job) = 0;
  // A job that still waits ends with CANCELLED before this returns. One that runs ends so between two steps
  // of its run, unless others share the run that want its results.
  virtual void cancel(uint64_t ticket) = 0;
  virtual InferStats stats() const = 0;
  // Who is told from now on; null: nobody.
  virtual void observe(std::shared_ptr<InferObserver> observer) = 0;
  // Why a job would be refused now, as far as that is known before there is one.
  virtual Status ready() const { return ok_status(); }
};

}  // namespace oar
