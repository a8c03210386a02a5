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
#include <memory>
#include <thread>
#include <vector>

#include "engine/base/log.h"
#include "engine/runtime/core/batcher.h"
#include "engine/runtime/job_runner.h"

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

class BatchedPredictor final : public JobRunner {
 public:
  BatchedPredictor(std::unique_ptr<TensorRunner> model, BatchedPredictorOptions options);
  // Answers what still waits with UNAVAILABLE and returns when the instances have stopped; may be called by
  // one of them, from `done`.
  ~BatchedPredictor() override;
  BatchedPredictor(const BatchedPredictor&) = delete;
  BatchedPredictor& operator=(const BatchedPredictor&) = delete;

  const TensorRunner& model() const;
  const BatchedPredictorOptions& options() const;

  // RESOURCE_EXHAUSTED when the queue is full.
  Result<uint64_t> submit(InferJob job) override;
  void cancel(uint64_t ticket) override;
  InferStats stats() const override;
  void observe(std::shared_ptr<InferObserver> observer) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

}  // namespace oar
