// Trainer: a model, its data and an optimizer, step by step. A step is `accumulate` micro-batches; each one's
// gradient is finished before it is added to the sum, and the optimizer then updates every parameter in
// place. The loss is the mean over all tokens of the step that are learned.
//
// The same seed, data, options and instruction set give the same bits for any number of threads, and a
// trainer that was restored goes on as if it had never stopped.
//
// One thread at a time; owns all states.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/graph/evaluate.h"
#include "engine/text/tokenizer.h"
#include "train/data.h"
#include "train/model_graph.h"
#include "train/packing.h"
#include "train/schedule.h"

namespace oar::train {

struct TrainerOptions {
  std::string model;                        // as resolve_model() takes it
  std::string weights = "auto";             // the base's, quantized at load as a server does it
  std::vector<std::string> data, held_out;  // without data, memory() is all that a trainer is for
  std::vector<std::string> labels;  // of an encoder's new head; empty: the model's, or those of the data
  DataOptions samples;
  GraphOptions graph;  // graph.tokens 0: as long as the longest sample
  OptimizerOptions optimizer;
  double rate = 0;    // 0: 1e-4 for LoRA, 1e-5 for all parameters
  Schedule schedule;  // its steps are found from `epochs` where 0
  double epochs = 1;
  double clip = 1;  // the largest norm of the gradients; 0: any
  int64_t accumulate = 1;
  uint64_t seed = 0;
  int threads = 0;
  std::string tokenizer, chat_template;  // files instead of the model's own; empty: its own
};

struct MemoryUse {
  uint64_t frozen = 0;                                  // the base's weights, those only mapped included
  uint64_t parameters = 0, moments = 0, gradients = 0;  // of all that is trained
  uint64_t activations = 0;                             // what lives within a step, at its peak
  uint64_t logits = 0;                                  // of that the block that the loss goes through
  uint64_t states() const { return parameters + moments + gradients; }
  uint64_t total() const { return frozen + states() + activations; }
};

struct StepReport {
  int64_t step = 0;
  double loss = 0;  // nats a token
  double norm = 0;  // of the gradients, before clipping
  double rate = 0;
  int64_t tokens = 0;   // rows that were no padding
  int64_t learned = 0;  // of them, predicted
};

struct HeldOutReport {
  double loss = 0;       // mean over what is learned
  double accuracy = -1;  // of a classifier: the share of labels that are likeliest; below 0: none
};

class Trainer {
 public:
  // RESOURCE_EXHAUSTED before anything large is allocated when memory is short: says what would fit.
  static Result<std::unique_ptr<Trainer>> create(const TrainerOptions& options, const Logger& log);
  ~Trainer();

  const TrainerOptions& options() const { return options_; }
  const MemoryUse& memory() const { return memory_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<FileSamples>& data() const { return data_; }
  int64_t trained() const;  // numbers that are trained
  int64_t steps() const { return options_.schedule.steps; }
  int64_t done() const { return step_; }
  bool has_held_out() const { return !held_out_.empty(); }

  // FAILED_PRECONDITION when the loss or a gradient is no number: names step, samples and the first op.
  Result<StepReport> step();
  // Over the held-out data; FAILED_PRECONDITION where there is none.
  Result<HeldOutReport> evaluate();
  // Of an encoder, else empty.
  const std::vector<std::string>& classes() const { return classes_; }
  bool new_head() const { return new_head_; }

  // What lies in a checkpoint beside the position: everything the next step depends on.
  Status save(const std::string& path, const json::object& extra) const;
  // Returns `extra`. FAILED_PRECONDITION names the option or file that differs from those it was made with.
  Result<json::object> restore(const std::string& path);
  // The parameters alone, to a file and back: for the best ones so far.
  Status save_parameters(const std::string& path) const;
  Status restore_parameters(const std::string& path);

  // Writes a folder that serves: PEFT's for LoRA of a language model, else Hugging Face's, into which an
  // encoder's adapters are added. It must not exist, or be empty.
  Status write_result(const std::string& folder) const;

  // By name; views of the states. For tests.
  const Tensor& value(size_t parameter) const { return values_[parameter]; }

 private:
  struct Runner;
  Trainer() = default;
  Status load(const Logger& log);
  Status load_text(const std::string& path, const Logger& log);
  Status load_labels(const std::string& path, const Logger& log);
  Status plan(const Logger& log);
  Result<std::vector<Datum>> inputs(const PackedRows& rows, float weight) const;
  // The graph's results, the loss first.
  Result<std::vector<Datum>> run_micro_batch(Runner& runner, const PackedRows& rows, float weight,
                                             const EvalOptions* more);
  json::object fingerprint() const;
  struct Position {
    int64_t epoch = 0, batch = 0;
  };
  Status not_finite(Position at, const PackedRows& rows, float weight, bool certain);

  TrainerOptions options_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  std::optional<EncoderConfig> encoder_;  // config_ of one
  EncoderHead head_ = EncoderHead::kSequence;
  std::vector<std::string> classes_;
  bool new_head_ = false;
  std::string base_name_;
  TokenizerPtr tokenizer_;
  std::shared_ptr<Backend> backend_;
  std::vector<FileSamples> data_, held_out_;
  std::string data_hash_;
  std::vector<Parameter> parameters_;
  std::vector<Tensor> values_, sums_;
  std::vector<std::vector<Tensor>> moments_;  // by moment, by parameter
  std::unique_ptr<Runner> step_runner_, loss_runner_, update_runner_;
  std::unique_ptr<Packer> packer_, held_out_packer_;
  MemoryUse memory_;
  Position position_;
  int64_t step_ = 0;
};

}  // namespace oar::train
