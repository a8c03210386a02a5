// Trainer: a model of language, or an encoder with a head, its data and an optimizer: the Learner (learner.h)
// of texts. A micro-batch is `tokens` rows into which samples are packed.
#pragma once

#include <optional>

#include "engine/base/log.h"
#include "engine/text/tokenizer.h"
#include "engine/tune/measure/eval_model.h"
#include "train/data.h"
#include "train/images.h"
#include "train/learner.h"
#include "train/packing.h"

namespace oar::train {

struct TrainerOptions : LearnerOptions {
  std::string model;                        // as resolve_model() takes it
  std::string weights = "auto";             // the base's, quantized at load as a server does it
  std::vector<std::string> data, held_out;  // without data, memory() is all that a trainer is for
  int64_t sample_tokens = 24;       // of a language model's continuation beside held-out losses; 0: none
  std::vector<std::string> labels;  // of an encoder's new head; empty: the model's, or those of the data
  DataOptions samples;
  GraphOptions graph;   // graph.tokens 0: as long as the longest sample
  ImageOptions images;  // of a network over images, whose data they are
};

class Trainer : public Learner {
 public:
  // `rate` 0: 1e-4 for LoRA, 1e-5 for all parameters. RESOURCE_EXHAUSTED before anything large is allocated
  // when memory is short: says what would fit.
  static Result<std::unique_ptr<Trainer>> create(const TrainerOptions& options, const Logger& log);

  const TrainerOptions& options() const override { return options_; }
  bool has_held_out() const override { return evaluates_; }
  const char* unit() const override { return "tokens"; }
  std::vector<std::string> notes() const override;
  std::string size() const override;
  Result<HeldOutReport> evaluate() override;
  const std::vector<FileSamples>& data() const { return data_; }
  const std::vector<FileSamples>& held_out() const { return held_out_; }
  // The model as it serves, with the adapter that evaluate() gave it; null: held-out data go through a graph.
  EvalModel* served() const { return served_.get(); }
  // Of an encoder, else empty.
  const std::vector<std::string>& classes() const { return classes_; }
  bool new_head() const { return new_head_; }

  // Writes a folder that serves: PEFT's for LoRA of a language model, else Hugging Face's, into which an
  // encoder's adapters are added.
  Status write_result(const std::string& folder) const override;

 private:
  Trainer() = default;
  Status load(const Logger& log);
  Status load_text(const std::string& path, const Logger& log);
  Status load_labels(const std::string& path, const Logger& log);
  Status hold_out();
  Status size_up();  // graphs, and what they take
  Status serve();    // the model for held-out data of adapters
  Result<HeldOutReport> evaluate_served();
  Result<HeldOutReport> evaluate_by_graph();
  Status go_on(HeldOutReport& report);  // a held-out sample's beginning
  Result<int32_t> likeliest(const Sample& before);
  Status plan();
  std::string what_fits() const;
  Result<std::vector<Datum>> inputs(const PackedRows& rows, float weight, uint64_t draw = 0) const;
  int64_t batches(int64_t epoch) override { return packer_->batches(epoch); }
  Counts counts(Position at) override;
  Result<std::vector<Datum>> inputs(Position at, float weight) override;
  std::string samples(Position at) override { return packer_->describe(at.epoch, at.batch); }
  json::object described() const override;

  TrainerOptions options_;
  Checkpoint checkpoint_, stored_;  // `stored_`: before kernels' formats, which who serves makes of it
  ModelConfig config_;
  std::optional<EncoderConfig> encoder_;  // config_ of one
  EncoderHead head_ = EncoderHead::kSequence;
  std::vector<std::string> classes_;
  bool new_head_ = false;
  std::string base_name_;
  TokenizerPtr tokenizer_;
  bool chats_in_default_ = false;  // conversations, and no chat template
  std::vector<FileSamples> data_, held_out_;
  // Of each file its path and what its samples are; and of the model before it is trained.
  json::array data_hash_, held_out_hash_;
  std::string model_hash_;
  bool evaluates_ = false;  // there is held-out data
  std::unique_ptr<Packer> packer_, held_out_packer_;
  std::unique_ptr<EvalModel> served_;
  std::unique_ptr<Runner> sample_runner_;  // null: no sample is asked for, or it is served_'s
  int64_t sample_rows_ = 0;                // tokens of a sample with its continuation; 0: none is asked for
  passes::AmpReport precision_;
  bool balanced_ = false;
  int64_t scans_ = 0;  // layers whose state a step computes
};

}  // namespace oar::train
