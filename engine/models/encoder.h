// Text encoders: a checkpoint of the BERT family becomes an ordinary graph (graph/evaluate.h). Exports of the
// same model to ONNX or Paddle become the same, so that everything above treats them alike. Language models,
// which generate, are model.h's.
//
// To add one: a function that writes its graph and its line in encoder.cc. Build time only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/loader/checkpoint.h"

namespace oar {

// config.json in numbers; every value is checked for range.
struct EncoderConfig {
  std::string model_type;
  int64_t width = 0;  // E
  int64_t layers = 0;
  int64_t heads = 0;           // H
  int64_t ffn = 0;             // F
  int64_t vocab = 0;           // V
  int64_t positions = 0;       // rows of the position table
  int64_t first_position = 0;  // of them, the one of the first token
  int64_t types = 0;           // token types; 0: the model has none
  double norm_eps = 1e-12;
  std::string activation = "gelu";
  std::string unknown_keys;  // of config.json, none of this architecture's; for the log
  int64_t max_tokens() const { return positions - first_position; }
};

// Whether a config.json is one of an encoder, by its model_type.
bool is_encoder_config(const json::object& config);
std::vector<std::string> encoder_names();
// UNIMPLEMENTED names the model types there are.
Result<EncoderConfig> read_encoder_config(const json::object& config);

// Inputs input_ids, attention_mask and, with types, token_type_ids: i64 (batch, sequence); a mask of 0 hides
// a token from all others. Outputs last_hidden_state f32 (batch, sequence, E) and, when the checkpoint has a
// head that classifies sequences, logits f32 (batch, labels).
struct BuiltEncoder {
  std::shared_ptr<Graph> graph;
  std::vector<std::string> inputs, outputs;
  int64_t labels = 0;  // 0: no such head
};
Result<BuiltEncoder> build_encoder(const Checkpoint& checkpoint, const EncoderConfig& config);

}  // namespace oar
