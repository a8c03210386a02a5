// A model cut into stages at its residual stream: embedding, each layer, head. Calibration walks through them
// one at a time, so that only one layer's activations and statistics are in memory. It hands each linear
// layer's input to whoever gathers statistics.
//
// Cuts are found in the graph, not by architecture: a layer begins at the first node that takes a constant
// named "...<digits>..." of a new number, and one value must cross each cut.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/serving_plan.h"

namespace oar {

// Where a built graph may be cut: stage k is nodes [begin[k], begin[k + 1]); enters[k] is the value that
// crosses into it (kNoValue for the first).
struct StageCuts {
  std::vector<size_t> begin;
  std::vector<ValueId> enters;
  size_t stages() const { return enters.size(); }
};
// UNIMPLEMENTED when layers are joined by more than one value.
Result<StageCuts> find_stages(const Graph& graph);

// The linear layers that read one value.
struct LinearInput {
  std::vector<std::string> weights;  // names of their constants
  std::string norm;                  // the norm weight that alone makes this value, if any
  int64_t cols = 0;
};

class StageRunner {
 public:
  // `stage` of the model as `checkpoint` has it, for sequences of up to `max_tokens`. `weight` (may be empty)
  // is given each tensor that the stage reads and returns the one to compute with.
  static Result<std::unique_ptr<StageRunner>> make(
      const Checkpoint& checkpoint, const ModelConfig& config, size_t stage, std::shared_ptr<Backend> backend,
      int64_t max_tokens, const std::function<Result<Tensor>(const std::string& name, Tensor)>& weight = {});
  const std::vector<LinearInput>& inputs() const { return inputs_; }

  // One sequence from its beginning. `tokens` are its ids (used by the first stage alone); `hidden`
  // (tokens, width) is the residual stream, read and overwritten. `take` gets each input's rows (tokens,
  // cols), valid during the call.
  Status run(std::span<const int32_t> tokens, std::span<float> hidden,
             const std::function<void(size_t input, std::span<const float> rows)>& take);

 private:
  StageRunner() = default;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<Run> run_;
  ServeLayout layout_;
  std::vector<LinearInput> inputs_;
  std::vector<int32_t> numbers_;  // 0, 1, 2, ..: positions, slots, rows, tables
  bool has_next_ = false;         // output 0 is the next stage's hidden
  int64_t width_ = 0, page_tokens_ = 64;
};

// Stages of a model: what make() counts to.
Result<size_t> count_stages(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace oar
