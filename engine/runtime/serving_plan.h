// From a checkpoint to a plan that can serve it: graph, passes, paged attention, weights in the asked-for
// format, kernels chosen. LanguageModel and model_report share it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/graph/pass.h"
#include "engine/graph/passes/adapters.h"
#include "engine/graph/passes/rotate.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/model.h"
#include "engine/runtime/language_model.h"
#include "engine/runtime/plan_runner.h"
#include "engine/runtime/quantize_weights.h"

namespace oar {

struct ServingGraph {
  BuiltModel model;
  ServeLayout layout;
  std::vector<Pass> pass_list;
  std::vector<PassReport> passes;    // one for each of pass_list
  std::string kv;                    // how keys and values are kept, for people
  std::string weights;               // what the linear layers compute with, for people
  std::string rotation;              // rotation_names() of what is in the weights or online
  std::vector<UnevenMatrix> uneven;  // what --weights could not store in its format
  int64_t max_context = 0;
  AdapterLayout adapters;  // no slots: the graph has no place for any
};

// Has the linear layers compute in what `weights` (a name of weight_scheme()) leaves to the kernels, and says
// what they compute with, for people. Matrices that stay plain for their width are named in a warning.
struct LinearWeights {
  std::string name;
  std::vector<UnevenMatrix> uneven;
};
Result<LinearWeights> compute_linears_in(Graph& graph, const std::string& weights, const Logger& log);

// Every weight matrix of a linear layer, of expert mixtures too, with the node that reads it and the format
// it is computed in: once for each reader.
void for_each_matrix(const Graph& graph,
                     const std::function<void(size_t node, ValueId weight, Format)>& take);

// What --rotate asks for over such a cache: "auto" rotates queries, keys and values online where any layer's
// cache is quantized, and nothing where none is.
Result<RotationOptions> wanted_rotation(const std::string& rotate, const std::vector<KvFormat>& kv);

// With `kv` settled where it is auto: the preferred tier, what is no narrower than the file, f32, f16, bf16;
// the first that the backend attends in. Without kernels for its cache all attention would leave a device.
Result<LanguageModelOptions> with_kv_of(const Backend& backend, const Checkpoint& checkpoint,
                                        const ModelConfig& config, LanguageModelOptions options);

// `observer` (may be empty) sees the graph around each pass. `edit` (may be empty) may change it between the
// passes and the paged cache, while attention still reads plain keys and values: for measuring.
Result<ServingGraph> build_serving_graph(
    const Checkpoint& checkpoint, const ModelConfig& config, const LanguageModelOptions& options,
    std::function<void(const Pass&, const Graph&, bool after)> observer = {},
    const std::function<Status(Graph&)>& edit = {});

// Bytes that the weights will take on this backend, foreseen from the layouts that its kernels want
// (Backend::weight_layout) before any is made.
struct ForeseenWeights {
  uint64_t in_place = 0;  // read where they lie, each once
  uint64_t mapped = 0;    // of these, pages of the file
  uint64_t made = 0;      // packed, converted or computed
  uint64_t total() const { return in_place + made; }
};
ForeseenWeights foresee_weights(const Graph& graph, const Backend& backend);

Result<ServingPlan> compile_serving_plan(ServingGraph graph, const ModelConfig& config,
                                         const LanguageModelOptions& options,
                                         std::shared_ptr<Backend> backend, const Progress& progress);

// options.device, or the CPU.
Result<std::shared_ptr<Backend>> make_backend(const LanguageModelOptions& options);

// Bytes of KV cache a token takes for good, over all layers; the 16-bit pages beside a quantized cache apart.
uint64_t kv_bytes_per_token(const ServeLayout& layout, int32_t page_tokens);
// Bytes of recurrent state that a step reads of a sequence, over all layers: the state at its last border
// and, in the mean, half of the rows of a page.
uint64_t state_bytes_per_step(const ServeLayout& layout);
// The least that one sequence needs, in bytes: a block of every group, three of 16-bit pages and four of
// recurrent state.
uint64_t least_kv_bytes(const ServeLayout& layout);

// How many blocks of every group a budget holds. Groups of whole contexts get equal numbers of blocks, those
// with a window no more, and no more than their sequences' windows, as many idle ones and a prefill chunk
// need. Beside a quantized cache there are 16-bit pages for what a step can write (every sequence may cross
// into a new page). There are first pages for all running sequences and for some cached ones. Together they
// have at most a quarter of the budget, as far as one sequence allows. Recurrent state is charged in front of
// all: blocks for max_sequences, and for snapshots as many as state_snapshots bytes hold, or an eighth of the
// budget. More than the budget where it is below least_kv_bytes(), or state_snapshots is beyond it.
struct PoolLimits {
  int64_t max_tokens, max_batch_tokens, max_sequences;
  int32_t page_tokens;
  std::optional<uint64_t> state_snapshots = {};
};
std::vector<int32_t> blocks_for(const ServeLayout& layout, uint64_t bytes, const PoolLimits& limits);
// Of `wanted` sequences, as many as may run at once when half of the budget holds their recurrent state.
int64_t sequences_for(const ServeLayout& layout, uint64_t bytes, int64_t wanted);
// Of a whole allocation.
uint64_t pool_bytes(const ServeLayout& layout, const std::vector<int32_t>& blocks);

}  // namespace oar
