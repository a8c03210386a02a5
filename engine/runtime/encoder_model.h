// EncoderModel: a text encoder run as a language model is: its weights in any storage format, one Program
// whose plan serves every length. Rows of texts run packed one behind the other, each a segment; nothing is
// padded. It comes from a checkpoint (safetensors), written with a ModelBuilder (models/encoder.h), or from a
// graph in a file, written again over packed rows (models/exported_encoder.h): the same Program either way.
//
// As a TensorRunner it has the tensors of an exported BERT: input_ids, attention_mask and, where the model
// has types, token_type_ids, i64 (batch, sequence); last_hidden_state f32 (batch, sequence, E) and, with a
// classifier, logits f32 (batch, labels); of a file those that it names. A token whose mask is 0 is no part
// of its row: it is left out of the packed rows, and its hidden state is 0. The classifier reads the first
// token that is left. Lengths need not agree for requests to share a run.
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
  // The same of an imported graph. UNIMPLEMENTED says what in it has no form over packed rows: a Predictor
  // runs such a file.
  static Result<std::unique_ptr<EncoderModel>> create(ImportedModel model, const PredictorOptions& options);
  ~EncoderModel() override;

  const EncoderConfig& config() const;
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
  // Passes, weights and a first Run over what was built.
  static Result<std::unique_ptr<EncoderModel>> finish(std::shared_ptr<Shared> shared, BuiltEncoder built,
                                                      const std::string& weights,
                                                      const PredictorOptions& options);
  explicit EncoderModel(std::shared_ptr<const Shared> shared);
  std::shared_ptr<const Shared> shared_;
  std::unique_ptr<Runs> runs_;
};

}  // namespace oar
