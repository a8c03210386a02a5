// Language models: a checkpoint's config and tensors become a Graph. Each architecture is one short file that
// reads like the paper's equations, written over packed tokens and without a cache (the serve pass adds it).
//
// To add one: engine/models/<name>.cc with an Architecture: its keys of config.json and its equations, one
// line in CMakeLists.txt, configs/models/tiny-<name>.json with goldens. Build time only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/graph/builder.h"
#include "engine/loader/checkpoint.h"

namespace oar {

// config.json in numbers. An absent key has the default of its architecture; every value is checked for
// range.
struct ModelConfig {
  std::string model_type;
  int64_t width = 0;  // E
  int64_t layers = 0;
  int64_t heads = 0;     // H
  int64_t kv_heads = 0;  // K
  int64_t head_dim = 0;  // D
  int64_t ffn = 0;       // F
  int64_t vocab = 0;     // V
  int64_t max_context = 0;
  double norm_eps = 1e-5;
  std::string activation = "silu";
  bool tied = false;                              // the head shares the embedding table
  bool attention_bias = false, mlp_bias = false;  // whether linear layers have the biases that are there
  bool scale_attention = true;                    // by 1 / sqrt D
  bool scale_by_layer = false;                    // and by 1 / (layer + 1)
  double rope_theta = 10000;
  bool rope_interleaved = false;
  double partial_rotary = 1;
  json::object rope_scaling;
  std::vector<int64_t> windows;  // by layer; 0: full attention
  int64_t experts = 0, experts_per_token = 0, expert_ffn = 0;
  bool normalize_experts = true;
  std::vector<bool> dense_layer;  // by layer, of a mixture: an ordinary MLP
  bool linear_out_in = false;     // GPT-2 from GGUF
  std::string unknown_keys;       // of config.json, none of this architecture's; for the log
};
Result<ModelConfig> read_model_config(const json::object& config);

class ConfigReader;
// rope_theta, partial_rotary_factor and rope_scaling or rope_parameters; `theta` where there is none.
Status read_rope(ConfigReader& r, double theta, ModelConfig& c);

// Inverse frequencies (R/2) and the factor on cos and sin for the config's rope_scaling: default, linear,
// llama3, yarn or freq_factors. https://arxiv.org/abs/2309.00071 for YaRN.
struct RopeTable {
  std::vector<float> inv_freq;
  double mscale = 1;
};
Result<RopeTable> rope_table(const ModelConfig& c);

struct ModelInputs {
  Val tokens, positions, segments;  // i32 (T)
};

// What an architecture file writes with: a Builder that knows the checkpoint.
class ModelBuilder : public Builder {
 public:
  ModelBuilder(Graph& graph, const Checkpoint& checkpoint, const ModelConfig& config, ModelInputs inputs);

  const ModelConfig& c;
  const ModelInputs in;

  bool has(const std::string& name) const;
  // A tensor of the checkpoint; a missing one is the builder's error, by name.
  Val weight(const std::string& name);
  // x . W^T + b with <name>.weight and, if `biased` and present, <name>.bias. One that is present without
  // being asked for must be zero: some quantizers write those.
  Val linear(Val x, const std::string& name, bool biased);
  Val rms_norm(Val x, const std::string& name);
  Val layer_norm(Val x, const std::string& name);
  // Rows of a table that must have at least `rows` of them (the ids' bound).
  Val embedding(const std::string& table, Val ids, int64_t rows);
  Val add(Val a, Val b) { return op("add", {a, b}); }
  Val slice(Val x, int64_t begin, int64_t end);
  // (T, n * D) -> (T, n, D) and back.
  Val split_heads(Val x, int64_t heads);
  Val merge_heads(Val x);
  Val rope(Val x);
  // softmax(scale q k^T) v over the layer's window.
  Val attention(Val q, Val k, Val v, int64_t layer);
  // down(silu(gate(x)) * up(x))
  Val gated_mlp(Val x, const std::string& prefix);
  // Mixture of experts: `router` and expert tensors `experts`.<e>.<gate|up|down>.
  Val experts(Val x, const std::string& router, const std::string& experts, const char* gate, const char* up,
              const char* down);

 private:
  Val expert_weight(const std::string& experts, const char* part, int64_t e);
  const Checkpoint& checkpoint_;
  RopeTable rope_;
  Val inv_freq_;
  std::map<std::string, Val> constants_;
};

struct Architecture {
  const char* model_type;
  // Its keys of config.json (but vocab_size). kv_heads 0: as many as heads; head_dim 0: width / heads.
  Status (*read)(ConfigReader& r, ModelConfig& c);
  // Hidden states of all rows after the final norm, (T, E).
  Val (*hidden)(ModelBuilder& b);
  const char* head;       // tensor of the vocabulary projection
  const char* embedding;  // the table it shares when tied
};

// Null when there is none; all of them for messages.
const Architecture* find_architecture(std::string_view model_type);
std::vector<std::string> architecture_names();

struct BuildOptions {
  int64_t max_batch_tokens = 512;  // bound of T
  int64_t max_logit_rows = 64;     // bound of R
};

// The whole model: inputs tokens, positions, segments (T) and logit_rows (R), output "logits" (R, V). Symbols
// T, R.
struct BuiltModel {
  Graph graph;
  SymbolId T = 0, R = 0;
};
Result<BuiltModel> build_model(const Checkpoint& checkpoint, const ModelConfig& config,
                               const BuildOptions& options);

}  // namespace oar
