// Runners that compute. A Batch becomes the symbols and inputs of one Plan run; the KV pools are the Plan's
// states (PlanStep). PlanRunner has the host draw from the logits; DeviceRunner (device_runner.h) leaves that
// to the device. Owned and called by the engine thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/graph/passes/serve.h"
#include "engine/graph/run.h"
#include "engine/runtime/core/host_runner.h"

namespace oar {

class Adapters;

// A model lowered for serving, before its KV pool exists.
struct ServingPlan {
  std::shared_ptr<Backend> backend;
  std::unique_ptr<Run> run;
  ServeLayout layout;
  SymbolId T = 0, R = 0;
  std::optional<SymbolId> prompts;  // RowPhases::prompts, where rows of prompts are computed apart
  int64_t max_batch_tokens = 0, max_sequences = 0, max_logit_rows = 0, max_context = 0, vocab_size = 0;
  int32_t page_tokens = 0;
  std::shared_ptr<Adapters> adapters;  // null: it was loaded without slots for any
};

// What both runners are made of: the run, its limits, its pools.
class PlanStep {
 public:
  // Allocates the pools: `num_blocks` for each group.
  static Result<PlanStep> make(ServingPlan serving, std::vector<int32_t> num_blocks);

  RunnerLimits& limits() { return limits_; }
  const RunnerLimits& limits() const { return limits_; }
  Backend& backend() const { return *s_.backend; }
  Run& run() const { return *s_.run; }
  Status copy_blocks(std::span<const BlockCopy> copies);
  // The batch's inputs where the run reads them, and `beside` in the same copy (Run::load); spans are needed
  // until this returns.
  Status load(const Batch& batch, std::span<const std::byte> beside = {});
  Operand tokens() const { return s_.run->input(tokens_); }
  Operand logits() const { return s_.run->output(0); }

 private:
  PlanStep(ServingPlan serving, RunnerLimits limits, std::vector<std::vector<Buffer>> pools);
  Batch padded(const Batch& batch);

  ServingPlan s_;
  RunnerLimits limits_;
  std::vector<std::vector<Buffer>> pools_;  // by group and layer
  std::vector<int64_t> symbols_;
  std::vector<const void*> inputs_;
  size_t tokens_ = 0, positions_ = 0, logit_rows_ = 0;
  std::optional<size_t> adapters_;  // the input, where the model has slots
  std::vector<int32_t> none_;       // a row without an adapter, as often as a step has rows
  // Of padded().
  struct Padded {
    std::vector<int32_t> tokens, positions, seq_start, context_len, logit_rows, adapters;
    std::vector<std::vector<int32_t>> slots, tables;
    std::vector<Batch::Group> groups;
  };
  Padded padded_;
};

Result<std::unique_ptr<HostRunner>> make_plan_runner(ServingPlan serving, std::vector<int32_t> num_blocks);

}  // namespace oar
