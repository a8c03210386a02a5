// A model lowered for measuring: one sequence whose every row yields logits, driven chunk by chunk without an
// Engine. The graph, passes, kernels and KV cache are those that serve (serving_plan.h); what is left out is
// scheduling and sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/loader/checkpoint.h"
#include "engine/models/model.h"
#include "engine/runtime/serving_plan.h"
#include "engine/tune/measure/divergence.h"

namespace oar {

struct PeftAdapter;

// What a model's numbers cost, by room.
struct ModelBits {
  double bits_per_weight = 0;       // over the matrices of linear layers, the head among them
  double body_bits_per_weight = 0;  // the same without the head
  uint64_t weights = 0;             // elements of those matrices
  uint64_t linear_bytes = 0;        // their stored size
  uint64_t other_bytes = 0;         // every other constant: embedding table, norms, biases
  double kv_bytes_per_token = 0;    // over all layers; 16-bit pages beside a quantized cache apart
  uint64_t kv_elements = 0;         // keys and values of a token, over all layers
  // Of these two, what quantized layers have.
  double quantized_kv_bytes_per_token = 0;
  uint64_t quantized_kv_elements = 0;
  // Per element where a part of what queries see, `open_share`, lies in 16 bits beside quantized pages.
  double kv_bits(double open_share = 0) const {
    const double open = 16 * static_cast<double>(quantized_kv_elements) - 8 * quantized_kv_bytes_per_token;
    return kv_elements > 0 ? (8 * kv_bytes_per_token + open_share * open) / static_cast<double>(kv_elements)
                           : 0;
  }
};

// Of all the tokens that the queries of these windows see, the part in 16 bits beside quantized pages:
// kernels/kv_quant.h has the rule. Every token before a query counts, also those that an attention with a
// window does not look at.
double open_share(const std::vector<std::vector<int32_t>>& windows, int32_t page_tokens);

// From the graph as planned: formats asked for at load count as what they become.
ModelBits model_bits(const ServingGraph& graph, int32_t page_tokens);

class EvalModel {
 public:
  // `options.max_context` tokens of KV cache for one sequence (0: the model's). `rows` is the largest chunk.
  // `edit` (may be empty): see build_serving_graph().
  static Result<std::unique_ptr<EvalModel>> open(const Checkpoint& checkpoint, LanguageModelOptions options,
                                                 std::shared_ptr<Backend> backend, int64_t rows = 256,
                                                 const Progress& progress = {},
                                                 const std::function<Status(Graph&)>& edit = {});

  // Forgets the sequence.
  void reset() { length_ = 0; }
  // Appends `tokens` (at most rows()); logits (tokens, vocab) row-major, valid until the next call.
  Result<std::span<const float>> append(std::span<const int32_t> tokens);
  // Of a sequence that begins here: by token, ln p of it behind those before it, as an engine tells it; 0 of
  // the first, which nothing predicts. INTERNAL where logits are no numbers.
  Result<std::vector<float>> log_probabilities(std::span<const int32_t> tokens);
  // In the place of the one before it: of a model that was opened with one slot (max_loras). From here on all
  // rows have it.
  Status use_adapter(const PeftAdapter& adapter);

  int64_t length() const { return length_; }
  // Beside what the checkpoint has: weights in other layouts, the slot, cache and scratch.
  uint64_t bytes() const { return bytes_; }
  int64_t vocab() const { return runner_->limits().vocab_size; }
  int64_t rows() const { return rows_; }
  int64_t max_context() const { return max_context_; }
  const ModelBits& bits() const { return bits_; }
  const std::string& weights() const { return weights_; }
  const std::string& kv() const { return kv_; }
  const std::string& rotation() const { return rotation_; }
  Backend& backend() { return *backend_; }

 private:
  EvalModel() = default;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<HostRunner> runner_;
  std::shared_ptr<Adapters> adapters_;  // null: no slots
  std::shared_ptr<const AdapterLease> adapter_;
  uint64_t bytes_ = 0;
  ModelBits bits_;
  std::string weights_, kv_, rotation_;
  int64_t rows_ = 0, max_context_ = 0, length_ = 0;
  std::vector<int32_t> positions_, logit_rows_, table_, adapter_rows_;
};

// One window (of at least two tokens) through both models, chunk by chunk; the rows of positions from `first`
// to the last but one are added to `out`.
Status measure_window(EvalModel& reference, EvalModel& candidate, std::span<const int32_t> window,
                      Divergence& out, int64_t first = 0);

}  // namespace oar
