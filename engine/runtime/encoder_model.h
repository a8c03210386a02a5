// EncoderModel: a text encoder from a checkpoint (safetensors), as a language model is: written with a
// ModelBuilder (models/encoder.h), its weights in any storage format, one Program whose plan serves every
// length. Rows of texts run packed one behind the other, each a segment; nothing is padded.
//
// As a TensorRunner it has the tensors of an exported BERT: input_ids, attention_mask and, where the model
// has types, token_type_ids, i64 (batch, sequence); last_hidden_state f32 (batch, sequence, E) and, with a
// classifier, logits f32 (batch, labels). A token whose mask is 0 is no part of its row: it is left out of
// the packed rows, and its hidden state is 0. The classifier reads the first token that is left. Lengths
// need not agree for requests to share a run.
//
// Threads: any; each run takes one of the handle's idle Runs, or makes one. On a device runs follow each
// other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/models/encoder.h"
#include "engine/runtime/predictor.h"

namespace oar {

class EncoderModel final : public TensorRunner {
 public:
  // Tokens of one run: enough to keep the products of matrices busy, few enough that what lies between them
  // stays in the megabytes. A longer row than this runs alone.
  static constexpr int64_t kRunTokens = 1024;

  // Reads the folder's checkpoint. Of the options, `calibration` and `import.parameters` are of ordinary
  // models; `precision` is another word for weights.
  static Result<std::unique_ptr<EncoderModel>> load(const std::string& folder,
                                                    const PredictorOptions& options);
  ~EncoderModel() override;

  const EncoderConfig& config() const;
  int64_t labels() const;  // 0: no classifier
  // What the linear layers compute with ("int8"), and the bytes of all weights.
  const std::string& weights() const;
  uint64_t weight_bytes() const;
  // The graph after its passes.
  const Graph& graph() const;

  std::unique_ptr<TensorRunner> another() const override;
  const std::string& format() const override;
  const std::vector<IoSpec>& inputs() const override;
  const std::vector<IoSpec>& outputs() const override;
  bool rows_are_independent() const override { return true; }
  Result<std::vector<Datum>> run(std::vector<Datum> inputs) const override;
  std::string batch_key(std::span<const Datum>) const override { return {}; }
  Result<std::vector<std::vector<Datum>>> run_together(std::span<const std::vector<Datum>> requests,
                                                       RunTimes* times) const override;

 private:
  struct Shared;
  struct Runs;
  explicit EncoderModel(std::shared_ptr<const Shared> shared);
  std::shared_ptr<const Shared> shared_;
  std::unique_ptr<Runs> runs_;
};

}  // namespace oar
