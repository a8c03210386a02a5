// Text encoders: a checkpoint of the BERT family becomes a Graph, written with a ModelBuilder over packed
// tokens as language models are (model.h). Rows of texts lie one behind the other, each a segment, without
// padding.
//
// To add one: its line in encoder.cc, with its names. Build time only.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/model.h"

namespace oar {

// What config.json says of an encoder besides: max_context are the rows of the position table.
struct EncoderConfig : ModelConfig {
  int64_t first_position = 0;  // of the position table, the row of the first token
  int64_t types = 0;           // token types; 0: the model has none
  int64_t table_width = 0;     // of the tables of words, types and positions
  bool norm_bias = true;
  // ModernBERT's head that classifies: whether its first layer has a bias, and what it reads.
  bool pooled_bias = true, pooled_mean = false;
  std::string pooled_activation;
  int64_t max_tokens() const { return max_context - first_position; }
};

// Whether a config.json is one of an encoder, by its model_type.
bool is_encoder_config(const json::object& config);
std::vector<std::string> encoder_names();
// UNIMPLEMENTED names the model types there are.
Result<EncoderConfig> read_encoder_config(const json::object& config);

// What a head on an encoder labels.
enum class EncoderHead : uint8_t { kSequence, kTokens };
// What config.json calls the head; none where it names no such model.
std::optional<EncoderHead> named_head(const json::object& config);

// A head's tensors in a checkpoint.
struct EncoderHeadTensors {
  std::vector<std::pair<std::string, Shape>> before;  // of layers before the last, a layer's weight first
  std::string last;         // the layer that makes the labels: (labels, E), (labels)
  std::string model_class;  // of transformers: "BertForSequenceClassification"
};
EncoderHeadTensors head_tensors(const Checkpoint& checkpoint, const EncoderConfig& config, EncoderHead head);
// What the names of an encoder's own tensors begin with beside a head, "bert.", and whether they do here.
struct EncoderPrefix {
  std::string name;
  bool present = false;
};
EncoderPrefix encoder_prefix(const Checkpoint& checkpoint, const EncoderConfig& config);
// What the head's last layer reads, (T, E): of every row, as training wants it.
Result<Val> head_features(Graph& graph, const Checkpoint& checkpoint, const EncoderConfig& config,
                          EncoderHead head, ModelInputs inputs, Val types);

// Inputs i32: tokens, positions (rows of the position table), segments (T), with types types (T), with a
// classifier first_rows (B), the row of each segment's first token. Rows of a segment lie together. Outputs
// f32: last_hidden_state (T, E) and, when the checkpoint has a head that classifies sequences, logits (B,
// labels), or one over tokens, by config.json's `architectures`, token_logits (T, labels); of an exported
// encoder (exported_encoder.h) those of its file.
struct BuiltEncoder {
  struct Output {
    std::string name;
    bool per_token = true;  // or one row a text
    int64_t width = 0;
  };
  Graph graph;
  SymbolId T = 0, B = 0;
  std::vector<Output> outputs;
};
// `max_tokens` and `max_rows` bound T and B.
Result<BuiltEncoder> build_encoder(const Checkpoint& checkpoint, const EncoderConfig& config,
                                   int64_t max_tokens, int64_t max_rows);

}  // namespace oar
