// TextEncoder: the text side of an encoder model. Text becomes the token tensors its graph takes. What the
// graph answers becomes one vector per text (pooled and normalized as the model's files say) or a score per
// pair. What computes is a TensorRunner: an EncoderModel over packed rows, of a checkpoint or of a graph
// (ONNX, Paddle) that has such a form, else a Predictor. It runs behind a BatchedPredictor like any other.
//
// A folder holds: config.json with safetensors, or model.onnx (also in onnx/), or a Paddle model;
// tokenizer.json or vocab.txt; and, as sentence-transformers writes them, modules.json,
// N_Pooling/config.json, sentence_bert_config.json. Without modules.json: mean over the tokens, normalized.
//
// Immutable after loading; any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/loader/tokenizer_files.h"
#include "engine/runtime/predictor.h"
#include "engine/text/tokenizer.h"

namespace oar {

enum class Pooling { kMean, kFirst, kLast, kMax, kMeanSqrt, kWeightedMean };

// What a vector is made of, where that differs from what the model's files say.
struct VectorOptions {
  std::optional<Pooling> pooling;
  std::optional<bool> normalize;
};

// One row of a batch: a text or a pair of texts, with the special tokens.
struct EncoderTokens {
  std::vector<int32_t> ids;
  std::vector<int32_t> types;  // as many; which of the two texts
  int64_t left_out = 0;        // tokens beyond what was allowed
};

class TextEncoder {
 public:
  struct Info {
    std::string name;                                 // of the architecture or format
    int64_t max_tokens = 512;                         // special tokens included
    int64_t dimensions = 0;                           // of a vector; 0: known only from an answer
    int64_t labels = 0;                               // of the classifier; 0: none
    std::vector<std::string> label_names;             // by label, as far as config.json's id2label has them
    bool labels_apart = false;                        // a text may have several: each its own probability
    std::vector<Pooling> pooling = {Pooling::kMean};  // several: their vectors one behind the other
    bool normalize = true;
    bool matryoshka = false;  // shortened vectors are meaningful too
    bool sigmoid = true;      // scores of a single label lie in [0, 1]
    int pair_separators = 1;  // between the texts of a pair
    int pair_type = 1;        // token type of the second text
    // Positions among the runner's inputs and outputs; -1: not there.
    int ids_input = -1, mask_input = -1, types_input = -1;
    int hidden_output = -1, vector_output = -1, logits_output = -1;
    DType integer = DType::kI64;  // of the inputs
    bool packs = false;           // rows of any lengths share a run: nothing is padded
    int32_t pad = 0;
  };
  TextEncoder(TokenizerPtr tokenizer, Info info);

  const Info& info() const { return info_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  bool embeds() const { return info_.hidden_output >= 0 || info_.vector_output >= 0; }
  bool classifies() const { return info_.logits_output >= 0 && info_.labels != 0; }

  // `truncate_to` 0: INVALID_ARGUMENT when the text has more tokens than the model takes. Otherwise the last
  // ones before the end are left out until there are so many, or as many as the model takes.
  Result<EncoderTokens> encode(std::string_view text, int64_t truncate_to) const;
  // Ids as a client gave them, checked against the vocabulary.
  Result<EncoderTokens> accept(std::vector<int32_t> ids, int64_t truncate_to) const;
  // Ids of a text without special tokens: those are put around it.
  Result<EncoderTokens> surround(std::vector<int32_t> ids, int64_t truncate_to) const;
  // How many that are before and behind.
  size_t before() const { return first_.size(); }
  size_t behind() const { return last_.size(); }
  // A query and a document; the document is shortened to what is left of max_tokens. Where nothing is left
  // OUT_OF_RANGE, or, with `cut_query`, the query is shortened too: half is then the document's, or what it
  // has.
  Result<EncoderTokens> encode_pair(std::string_view query, std::string_view document,
                                    bool cut_query = false) const;

  // The runner's inputs for one row. Where it does not pack, they are padded to a length shared with others,
  // so that rows of about the same length can share a run. Padding is masked and changes nothing.
  Result<std::vector<Datum>> inputs(const EncoderTokens& row) const;
  // How long a row of so many tokens is as an input.
  int64_t padded_length(int64_t tokens) const;
  // From the outputs of one row: its vector. `tokens` is its length, at least 1.
  Result<std::vector<float>> vector(const std::vector<Datum>& outputs, size_t tokens,
                                    const VectorOptions& options = {}) const;
  // Those of its tokens, one behind the other, as they leave the encoder.
  Result<std::vector<float>> token_vectors(const std::vector<Datum>& outputs, size_t tokens) const;
  // Its score: the only label's logit (through a sigmoid where the model says so), of two labels the second's
  // probability.
  Result<float> score(const std::vector<Datum>& outputs) const;
  // By label how likely it is: a softmax, of a single label and of labels apart a sigmoid.
  Result<std::vector<float>> probabilities(const std::vector<Datum>& outputs) const;
  // "LABEL_k" where it has none.
  std::string label_name(size_t label) const;

 private:
  Result<std::vector<double>> logits(const std::vector<Datum>& outputs) const;
  Result<std::vector<float>> pool(const Tensor& hidden, size_t tokens, std::span<const Pooling> modes) const;
  const TokenizerPtr tokenizer_;
  const Info info_;
  std::vector<int32_t> first_, last_;  // special tokens before and behind a text
};

// [0, length] rounded up to a length that is shared: at most an eighth more, and never more than `most`.
int64_t shared_length(int64_t length, int64_t most);

struct LoadedEncoder {
  std::unique_ptr<TensorRunner> runner;
  std::shared_ptr<const TextEncoder> encoder;
};
Result<LoadedEncoder> load_text_encoder(const std::string& folder, const PredictorOptions& options);
// The text side alone, of a checkpoint that is in memory and came from this folder; rows have at most
// `max_tokens`.
Result<std::shared_ptr<const TextEncoder>> make_text_encoder(const std::string& folder,
                                                             const TokenizerFiles& files,
                                                             const json::value& config, int64_t max_tokens);
// Whether a folder's config.json is an encoder's; false where there is none.
bool is_text_encoder(const std::string& folder);
// Whether the folder's encoder comes from a checkpoint in safetensors.
bool is_encoder_checkpoint(const std::string& folder);

}  // namespace oar
