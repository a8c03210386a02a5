// Language models: a checkpoint's config and tensors become a Graph. Each architecture is one short file that
// reads like the paper's equations, written over packed tokens and without a cache (the serve pass adds it).
//
// To add one: engine/models/<name>.cc with an Architecture: its keys of config.json and its equations, one
// line in CMakeLists.txt, configs/models/tiny-<name>.json with goldens. Build time only.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/builder.h"
#include "engine/loader/checkpoint.h"

namespace oar {

// How layers rotate queries and keys.
struct RopeConfig {
  double theta = 10000;
  double partial = 1;  // of a head that is rotated
  json::object scaling;
  int64_t head_dim = 0;  // of these layers; 0: the model's
};

// Keys and values of a layer.
struct HeadShape {
  int64_t kv_heads = 0, head_dim = 0;  // K, D
  bool operator==(const HeadShape&) const = default;
};

// Layers that keep a matrix of each head instead of keys and values: the op state_scan.
struct ScanConfig {
  int64_t key_heads = 0, heads = 0;  // Hk, Hv
  bool tiled = false;                // by the file alone: value head h reads key head h mod Hk, not h Hk / Hv
  int64_t key_dim = 0, value_dim = 0;  // Dk, Dv
};

// Layers of Mamba-2 (mamba.cc), beside their ScanConfig, whose key heads are groups.
struct MambaConfig {
  double least_step = 0, most_step = std::numeric_limits<double>::infinity();
  bool bias = false, output_bias = false;  // of the projection in front and of that behind
  bool normed = true, norm_first = false;  // a norm in each group; in front of the gate
  double input_scale = 1, output_scale = 1;
  std::array<double, 5> scales{1, 1, 1, 1, 1};  // of what the projection makes: z, x, B, C and steps
};

// Of attention over a latent (latent.cc): numbers of the latent and, 0 without one, of the queries' own; of a
// head's query and key what does not and what does rotate; of its value.
struct LatentShape {
  int64_t rank = 0, query_rank = 0, nope = 0, rope = 0, value = 0;
  // Whether rows of prompts expand it (engine/ops/expanded_attention.cc): where it is served so.
  bool expanded = false;
};

// What a layer is, where it is one thing: a scan, attention, an MLP or a mixture, behind a norm.
enum class LayerKind : uint8_t { kScan, kAttention, kMlp, kExperts };

// Which rows of queries and keys are normalized: those of a head, or all heads of a token as one.
enum class HeadNorms : uint8_t { kNone, kEach, kTogether };

// How a mixture's tokens find their experts: the op moe_route.
struct RouteConfig {
  std::string score = "softmax";
  bool normalize = true;
  double scale = 1;
  int64_t groups = 1, top_groups = 1, group_best = 2;
  bool before = false;    // an expert's weight is that of its input; of one expert a token
  bool corrected = true;  // whether there is a correction, where a config chooses
};

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
  double norm_offset = 0;  // added to the weights of RMS norms
  std::string activation = "silu";
  double gate_alpha = 1, gate_limit = 0, gate_offset = 0;  // of gates of silu: the op swiglu
  bool tied = false;                                       // the head shares the embedding table
  bool attention_bias = false, mlp_bias = false;  // whether linear layers have the biases that are there
  bool output_bias = false;                       // of attention's output projection
  bool head_bias = false;                         // of the vocabulary projection: lm_head.bias
  HeadNorms head_norms = HeadNorms::kNone;
  bool sinks = false;                               // attention's heads have them: <prefix>sinks
  double attention_scale = 0;                       // of scores; 0: 1 / sqrt D
  bool scale_by_layer = false;                      // and by 1 / (layer + 1)
  double attention_softcap = 0, logit_softcap = 0;  // c tanh(x / c); 0: none
  double embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  // Of keys, of what attention reads and makes, of a gate and of what an MLP makes.
  double key_scale = 1, attention_input_scale = 1, attention_output_scale = 1, gate_scale = 1, mlp_scale = 1;
  // ModelBuilder::position_scale
  double position_beta = 0, position_period = 1;
  int64_t position_offset = 0;
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of layers with a window, where theirs is another
  std::optional<HeadShape> full_heads;    // of layers without one, where theirs are others
  bool keys_are_values = false;           // in layers without a window v is what k_proj makes
  int64_t shared_kv_layers = 0;           // so many last layers read an earlier layer's keys and values
  int64_t double_mlp_layers = 0;          // so many last layers have an MLP of twice the width
  bool value_norms = false;               // values are normalized without weights, each head
  int64_t layer_input = 0;                // P: width of what each layer has of a token's own; 0: nothing
  int64_t layer_input_vocab = 0;          // rows of its table
  LatentShape latent;                     // rank 0: keys and values are kept; else kv_heads 1
  bool rope_interleaved = false;
  bool paired_rows =
      false;            // by the file alone: rows of q and k are not in the checkpoint's order (gguf_model.h)
  bool folded = false;  // by the file alone: matrices have their multipliers in them
  std::vector<bool> rotated;     // by layer; empty: all
  std::vector<int64_t> windows;  // by layer; 0: full attention
  std::vector<bool> recurrent;   // by layer; empty: none. Such layers have a recurrent state and no attention
  std::vector<LayerKind> kinds;  // by layer; empty: each has attention or a state, and an MLP or a mixture
  std::string recurrent_type;    // what `layer_types` calls them
  int64_t conv_kernel = 0;       // rows that their convolutions see
  bool conv_bias = false;        // whether what is in front of and behind one has the biases that are there
  ScanConfig scan;
  MambaConfig mamba;
  bool chunked = false;  // windows do not slide: a token sees its own of chunks so long
  int64_t experts = 0, experts_per_token = 0, expert_ffn = 0;
  int64_t shared_experts = 0;
  RouteConfig route;
  bool router_bias = false, expert_bias = false;
  // Where a file has stacks of experts, gate and up as one: whether their rows alternate, else gate comes
  // first; and whether matrices lie (in, out).
  bool experts_interleaved = false, experts_transposed = false;
  std::vector<bool> dense_layer;  // by layer, of a mixture: an ordinary MLP
  bool linear_out_in = false;     // by the file alone: matrices that checkpoints have (in, out) are turned
  std::string unknown_keys;       // of config.json, none of this architecture's; for the log

  bool has_window(int64_t layer) const { return windows[static_cast<size_t>(layer)] > 0; }
  bool is_recurrent(int64_t layer) const {
    return !recurrent.empty() && recurrent[static_cast<size_t>(layer)];
  }
  // The longest context that is served where no other is asked for. Queries that sharpen by their position
  // have a table of a number each, which a config alone makes no larger than 4 MiB.
  int64_t served_context() const {
    return position_beta == 0 ? max_context : std::min(max_context, int64_t{1} << 20);
  }
  HeadShape head_shape(int64_t layer) const {
    return full_heads && !has_window(layer) ? *full_heads : HeadShape{kv_heads, head_dim};
  }
  // The layer whose keys and values this one reads: itself, or the last of its kind that has its own.
  int64_t kv_layer(int64_t layer) const;
  // Layers with keys and values of their own, where all have attention.
  int64_t kv_layers() const { return layers - shared_kv_layers; }
  int64_t attention_layers() const {
    if (!kinds.empty()) return std::count(kinds.begin(), kinds.end(), LayerKind::kAttention);
    return layers - std::count(recurrent.begin(), recurrent.end(), true);
  }
};
Result<ModelConfig> read_model_config(const json::object& config);

// What a layer keeps of a sequence, as the graph of build_model() has it (engine/graph/passes/serve.h makes
// pages and blocks of it).
struct CachedLayer {
  int64_t layer = 0;
  HeadShape heads;          // whose keys and values it keeps; kv_heads 0: none
  int64_t latent = 0;       // numbers of a key that are its value too; 0: values lie beside
  int64_t window = 0;       // 0: all of the context
  int64_t convolution = 0;  // channels of its convolution; 0: it has no state
  bool scan = false;        // it keeps the matrices of ModelConfig::scan

  // Of its state, in f32: what lies behind a page that is full, and the rows of an open one.
  uint64_t border_bytes(const ModelConfig& c) const;
  uint64_t open_bytes(const ModelConfig& c, int64_t page_tokens) const;
};
// Layers that keep nothing, as one that reads an earlier layer's keys and values does, are not among them.
std::vector<CachedLayer> cached_layers(const ModelConfig& c);

// Inverse frequencies (R/2) and the factor on cos and sin for the scaling of `rope`: default, linear,
// dynamic, llama3, yarn, longrope, proportional or freq_factors. https://arxiv.org/abs/2309.00071 for YaRN,
// 2402.13753 for LongRoPE. Those that depend on a length take the longest context that is served, so that a
// key is rotated alike whatever comes behind it. 0: the model's own.
struct RopeTable {
  std::vector<float> inv_freq;
  double mscale = 1;
};
Result<RopeTable> rope_table(const ModelConfig& c, const RopeConfig& rope, int64_t served_context);

struct ModelInputs {
  Val tokens, positions, segments;  // i32 (T)
};

// What an architecture file writes with: a Builder that knows the checkpoint.
class ModelBuilder : public Builder {
 public:
  ModelBuilder(Graph& graph, const Checkpoint& checkpoint, const ModelConfig& config, ModelInputs inputs,
               int64_t served_context);

  const ModelConfig& c;
  const ModelInputs in;

  bool has(const std::string& name) const;
  // A tensor of the checkpoint; a missing one is the builder's error, by name.
  Val weight(const std::string& name);
  // The same, which must have these extents.
  Val weight(const std::string& name, const std::vector<int64_t>& dims);
  // x . W^T + b with <name>.weight and, if `biased` and present, <name>.bias. One that is present without
  // being asked for must be zero: some quantizers write those.
  Val linear(Val x, const std::string& name, bool biased);
  Val rms_norm(Val x, const std::string& name);
  // By `w`, or without weights.
  Val rms_norm(Val x, Val w);
  Val rms_norm(Val x);
  // (n), each the same.
  Val filled(int64_t n, double value);
  // `biased`: with <name>.bias.
  Val layer_norm(Val x, const std::string& name, bool biased = true);
  // Rows of a table that must have at least `rows` of them (the ids' bound), times embedding_scale.
  Val embedding(const std::string& table, Val ids, int64_t rows);
  Val add(Val a, Val b) { return op("add", {a, b}); }
  Val scale(Val x, double factor) { return factor == 1 ? x : op("mul", {x, scalar(factor)}); }
  // cap * tanh(x / cap)
  Val softcap(Val x, double cap);
  Val slice(Val x, int64_t begin, int64_t end);
  // (T, n * D) -> (T, n, D), D the model's unless told, and back.
  Val split_heads(Val x, int64_t heads, int64_t head_dim = 0);
  Val merge_heads(Val x);
  // x itself in a layer that does not rotate.
  Val rope(Val x, int64_t layer);
  // 1 + beta log(1 + floor((position + offset) / period)), (T, 1, 1): queries that see further sharpen by it.
  Val position_scale();
  // softmax(scale q k^T) v over the layer's window; `sinks` (H) or none. Without v a latent is the first part
  // of k.
  Val attention(Val q, Val k, Val v, int64_t layer, Val sinks = {});
  // What q_proj, k_proj and v_proj make of x; the first two normalized where the config says so.
  struct Heads {
    Val q, k, v;  // (T, H, D) (T, K, D) (T, K, D)
  };
  Heads heads(Val x, const std::string& prefix);
  // o_proj of attention over these.
  Val attend(const Heads& h, const std::string& prefix, int64_t layer);
  // Both, queries and keys rotated between.
  Val self_attention(Val x, const std::string& prefix, int64_t layer);
  // `name`.weight (C, 1, L), or (C, L), over the last L rows of x (T, C); `biased`: with `name`.bias.
  Val causal_conv(Val x, const std::string& name, int64_t channels, int64_t kernel, bool biased);
  // How a state decays, a number a head: -exp of <prefix>A_log, or <prefix>A, which is that. (Hv)
  Val decay_rate(const std::string& prefix);
  // A layer of Mamba-2: its rows as the config's `scan` and `mamba` say.
  Val mamba(Val x, const std::string& prefix);
  // A layer of a gated delta rule: its rows as the config's `scan` says.
  Val delta_rule(Val x, const std::string& prefix);
  // Attention over a latent.
  Val latent_attention(Val x, const std::string& prefix, int64_t layer);
  // The config's activation.
  Val activation(Val x);
  // activation(gate) * up
  Val gated(Val gate, Val up);
  // down(gated(gate(x), up(x)))
  Val gated_mlp(Val x, const std::string& prefix);
  // The same where one matrix makes both, gate first.
  Val fused_gated_mlp(Val x, const std::string& prefix);
  // Mixture of experts: `router` and expert tensors `experts`.<e>.<gate|up|down>, or as files have them
  // otherwise (expert_weight()). `correction`: the tensor of numbers that are added to the experts' scores
  // where they are chosen.
  Val experts(Val x, const std::string& router, const std::string& experts, const char* gate, const char* up,
              const char* down, const std::string& correction = "");
  // Experts `prefix`experts, and beside them one that all tokens share, behind a gate of its own.
  Val experts_and_shared(Val x, const std::string& prefix);
  // By logits (T, X) that are there; without `gate` experts are down(activation(up(x))). `correction` and
  // `scale`, of the weights of each expert: (X) or none.
  struct Router {
    Val logits, correction, scale;
  };
  Val routed_experts(Val x, const Router& router, const std::string& experts, const char* gate,
                     const char* up, const char* down);

 private:
  // Which of an expert's three matrices.
  enum class Part { kGate, kUp, kDown };
  // Expert e's matrix (N, K): `experts`.<e>.<name>.weight, or of all experts `experts`.<name>.weight (X, N,
  // K), or as Hugging Face has them in memory, gate and up in one: `experts`.gate_up_proj (X, 2 N, K) and
  // `experts`.down_proj (X, N, K), or (X, K, 2 N) and (X, K, N), or in mxfp4 `experts`.gate_up_proj_blocks
  // (X, 2 N, K / 32, 16) and _scales.
  Val expert_weight(const std::string& experts, const char* name, Part part, int64_t e, int64_t width);
  // Slice e of a stack of `count` tensors, without its first axis.
  Val expert_slice(const std::string& name, int64_t e, const std::string& as, int64_t count);
  // A head's part of kv_b_proj: from queries to latents (rank, nope), from latents to keys (nope, rank), or
  // to values (value, rank).
  enum class LatentPart { kQueries, kKeys, kValues };
  Val latent_weight(const std::string& prefix, LatentPart part, int64_t head);
  // Each head of x (T, H, ..) by its own.
  Val latent_heads(Val x, const std::string& prefix, LatentPart part);
  // Biases of all experts, (X, 2 F) of gates and then ups as in `experts`.gate_up_proj.bias, and (X, E); none
  // where the model has none.
  Val gate_up_bias(const std::string& experts, const char* gate, const char* up);
  Val down_bias(const std::string& experts, const char* down);
  const Checkpoint& checkpoint_;
  const int64_t served_context_;
  std::map<const RopeConfig*, Val> inv_freq_;
  std::map<const RopeConfig*, double> mscale_;
  Val position_scale_;
  std::map<std::string, Val> constants_;
};

class ConfigReader;
struct Architecture {
  const char* model_type;
  // Its keys of config.json. kv_heads 0: as many as heads; head_dim 0: width / heads.
  Status (*read)(ConfigReader& r, ModelConfig& c);
  // Hidden states of all rows after the final norm, (T, E).
  Val (*hidden)(ModelBuilder& b);
  const char* head = "lm_head.weight";                  // tensor of the vocabulary projection
  const char* embedding = "model.embed_tokens.weight";  // the table it shares when tied
  // Model types of its kin that are not run, separated by spaces, and what of them is not.
  const char* not_run = "";
  const char* reason = "";
};

// Null when there is none; all of them for messages.
const Architecture* find_architecture(std::string_view model_type);
std::vector<std::string> architecture_names();

struct BuildOptions {
  int64_t max_batch_tokens = 512;  // bound of T
  int64_t max_logit_rows = 64;     // bound of R
  int64_t max_context = 0;         // the longest that is served; 0: ModelConfig::served_context()
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
