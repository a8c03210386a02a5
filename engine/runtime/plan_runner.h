// PlanRunner: the ModelRunner that computes. A Batch becomes the symbols and inputs of one Plan run; the KV
// pools are the Plan's states. Owned and called by the engine thread.
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

// Allocates the pools: `num_blocks` for each group.
Result<std::unique_ptr<HostRunner>> make_plan_runner(ServingPlan serving, std::vector<int32_t> num_blocks);

}  // namespace oar
