// From a checkpoint to a plan that can serve it: graph, passes, paged attention, weights in the asked-for
// format, kernels chosen. LanguageModel and model_report share it.
#pragma once

#include <functional>

#include "engine/graph/pass.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/model.h"
#include "engine/runtime/language_model.h"
#include "engine/runtime/plan_runner.h"

namespace oar {

struct ServingGraph {
  BuiltModel model;
  ServeLayout layout;
  std::vector<Pass> pass_list;
  std::vector<PassReport> passes;  // one for each of pass_list
  DType kv_type = DType::kBF16;
  std::string weights;  // what the linear layers compute with, for people
  int64_t max_context = 0;
};

// `observer` (may be empty) sees the graph around each pass.
Result<ServingGraph> build_serving_graph(
    const Checkpoint& checkpoint, const ModelConfig& config, const LanguageModelOptions& options,
    std::function<void(const Pass&, const Graph&, bool after)> observer = {});

// Bytes the weights will take beyond the mapped file, foreseen from the graph's attributes.
uint64_t foreseen_weight_copies(const Graph& graph);

Result<ServingPlan> compile_serving_plan(ServingGraph graph, const ModelConfig& config,
                                         const LanguageModelOptions& options,
                                         std::shared_ptr<Backend> backend, const Progress& progress);

std::shared_ptr<Backend> make_backend(const LanguageModelOptions& options);

// How many blocks of every group a budget holds; each group gets blocks in proportion to what a full context
// needs.
std::vector<int32_t> blocks_for(const ServeLayout& layout, uint64_t bytes, int64_t max_tokens,
                                int32_t page_tokens);

}  // namespace oar
