// An ensemble: models of the catalog as one model. Each step is asked when its tensors are there, through its
// own queue, where it shares runs with whoever else asks it. Steps that do not read each other's tensors run
// at the same time. Tensors go from step to step as they are, without a copy, and end with their last reader.
//
//   A built-in step may make a list of tensors. A step that takes single tensors is then asked once for each,
//   and its own outputs are lists; lists of one step belong together item by item.
//
//   A request holds the models that it began with, so a step that is unloaded answers it yet. The next
//   request is UNAVAILABLE until the step is there again.
//
// Threads: as JobRunner. Answers are given when no step of the request runs any more: its tensors may view
// the caller's memory.
#pragma once

#include <functional>
#include <memory>

#include "server/api/tensor_model.h"

namespace oar::api {

class Ensemble final : public JobRunner {
 public:
  // The model that a step is at the moment.
  using FindStep = std::function<Result<TensorModelPtr>(const EnsembleStep& step)>;
  // `config` was checked: each tensor has one writer, and no step reads what a later one writes.
  Ensemble(const TensorModelConfig& config, FindStep find);
  ~Ensemble() override;

  Result<uint64_t> submit(InferJob job) override;
  void cancel(uint64_t ticket) override;
  // `times` are sums over the steps; those that ran at the same time count each.
  InferStats stats() const override;
  void observe(std::shared_ptr<InferObserver> observer) override;
  // UNAVAILABLE with the name of the first step that is not there.
  Status ready() const override;

 private:
  struct State;
  class Run;
  const std::shared_ptr<State> state_;
};

}  // namespace oar::api
