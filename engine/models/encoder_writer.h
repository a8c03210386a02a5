// What an encoder's equations are written with: a ModelBuilder with what these models have beside language
// models.
#pragma once

#include <string>

#include "engine/models/config_reader.h"
#include "engine/models/encoder.h"

namespace oar {

class EncoderWriter : public ModelBuilder {
 public:
  EncoderWriter(Graph& graph, const Checkpoint& checkpoint, const EncoderConfig& config, ModelInputs inputs,
                Val types)
      : ModelBuilder(graph, checkpoint, config, inputs, config.max_context), e(config), types(types) {}
  const EncoderConfig& e;
  const Val types;         // i32 (T), where the model has token types
  Val first_rows;          // i32 (B), what a head that classifies reads; without it, it reads all rows
  bool of_tokens = false;  // the head labels tokens
  std::string prefix;      // of the encoder's tensors

  // x . W^T + b, W (out, in); b where `biased`.
  Val layer(Val x, const std::string& name, int64_t out, int64_t in, bool biased = true);
  Val norm(Val x, const std::string& name, bool biased = true);
  // The rows of a table (rows, width) that `ids` name.
  Val table(const std::string& name, Val ids, int64_t rows, int64_t width);
  Val activate(Val x, const std::string& function);
  // softmax(q k^T / sqrt D) v, a token of a segment seeing all of it, or those less than `window` away.
  Val attend(Val q, Val k, Val v, int64_t window = 0);
};

// A family of encoders: its keys of config.json and its equations.
struct EncoderFamily {
  const char* model_type;
  const char* prefix;  // of a checkpoint with a head; the bare model has none
  const char* words;   // the table that tells which
  Status (*read)(ConfigReader& r, EncoderConfig& c);
  // Hidden states (T, E) of all rows.
  Val (*hidden)(EncoderWriter& b);
  // The head that classifies sequences: `dense`, of the encoder itself where that begins with '.', what is
  // done with its results, and `last`, which makes the labels.
  const char* dense;
  Val (*pooled)(EncoderWriter& b, Val x, const std::string& dense);
  const char* last;
  // Whether a head that labels tokens has `dense` too. Its last layer is "classifier" in every family.
  bool dense_of_tokens = false;
  // Tensors of the head besides (width): the norm that `pooled` ends with.
  const char* norm = nullptr;
  const char* model_class = "";  // of transformers, as its heads' begin: "Bert"
};

// Rows that the head reads.
Val head_rows(EncoderWriter& b, Val x);

// ModernBERT (modernbert.cc).
Status read_modernbert(ConfigReader& r, EncoderConfig& c);
Val modernbert_hidden(EncoderWriter& b);
Val modernbert_pooled(EncoderWriter& b, Val x, const std::string& dense);
// nomic_bert and gte (rotary_bert.cc).
Status read_nomic_bert(ConfigReader& r, EncoderConfig& c);
Status read_gte(ConfigReader& r, EncoderConfig& c);
Val rotary_bert_hidden(EncoderWriter& b);

}  // namespace oar
