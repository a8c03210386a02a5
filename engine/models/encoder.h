// Text encoders: a checkpoint of the BERT family becomes a Graph, written with a ModelBuilder over packed
// tokens as language models are (model.h). Rows of texts lie one behind the other, each a segment, without
// padding.
//
// To add one: its line in encoder.cc, with its names. Build time only.
#pragma once

#include <string>
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

// Inputs i32: tokens, positions (rows of the position table), segments (T), with types types (T), with a
// classifier first_rows (B), the row of each segment's first token. Rows of a segment lie together. Outputs
// f32: last_hidden_state (T, E) and, when the checkpoint has a head that classifies sequences, logits (B,
// labels); of an exported encoder (exported_encoder.h) those of its file.
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
