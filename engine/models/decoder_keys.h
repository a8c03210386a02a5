// The keys of config.json that decoder-only models share, and what an absent one means: each architecture has
// its own defaults, those of its configuration class in Hugging Face transformers 5.
#pragma once

#include "engine/models/config_reader.h"
#include "engine/models/model.h"

namespace oar {

// Which layers look through the window of `sliding_window`.
enum class Windows {
  kNone,
  kAll,
  kSwitched,   // all, where `use_sliding_window` is true
  kUpper,      // where it is true: those of `layer_types`, else those from `max_window_layers` on
  kUnrotated,  // where it is true: those without rope
  kPattern,    // those of `layer_types`, else all but every sliding_window_pattern-th
};

struct DecoderDefaults {
  int64_t ffn = 0, max_context = 0;
  int64_t kv_heads = 0;  // as many as heads
  int64_t head_dim = 0;  // width / heads
  double norm_eps = 1e-6, rope_theta = 1e4;
  Windows windows = Windows::kNone;
  int64_t window = 4096, window_pattern = 0;
  int64_t unrotated_every = 0;  // of no_rope_layers: each such layer has no rope
  bool tied = false;
  bool attention_bias = false, output_bias = false;
  const char* activation = "silu";
  // Text models of larger ones leave out what their class says.
  std::optional<int64_t> vocab = {}, width = {}, layers = {}, heads = {};
  // Spellings.
  const char* norm_eps_key = "rms_norm_eps";
  const char* activation_key = "hidden_act";
  const char* bias_key = "attention_bias";
  std::optional<double> partial_rotary = {};
  bool picture_rope = false;                // the text part of a model that sees
  std::optional<double> window_theta = {};  // layers with a window have a rope of their own
};

// rope_theta, partial_rotary_factor and rope_scaling or rope_parameters, which may be by layer type where
// layers with a window have a rope of their own. Of what is absent: rope_theta, partial_rotary and
// window_theta of `d`.
Status read_rope(ConfigReader& r, const DecoderDefaults& d, ModelConfig& c);

// What an architecture calls first.
Status read_decoder(ConfigReader& r, const DecoderDefaults& d, ModelConfig& c);

// Mixtures: how many experts, how many a token takes, how wide they are (0: as a dense layer), and which
// layers are dense. `normalize`: whether the weights of those taken sum to 1 where no key says so.
struct ExpertDefaults {
  int64_t count = 0, per_token = 0, ffn = 0;
  bool normalize = false;
};
Status read_experts(ConfigReader& r, const ExpertDefaults& d, ModelConfig& c);
// A router whose scores are sigmoids, with a correction that decides the choice alone; files may say so.
Status read_corrected(ConfigReader& r, ModelConfig& c);

// Heads of layers without a window, where they are others: by 'global_head_dim' (`head_dim` where it is
// absent) and, with `own_kv_heads`, 'num_global_key_value_heads'; or layer by layer in 'per_layer_config'.
Status read_full_heads(ConfigReader& r, int64_t head_dim, bool own_kv_heads, ModelConfig& c);

// Attention over a latent, behind read_decoder(): its sizes, `absent` where no key says them; what is kept of
// a token, one key of rank + rope numbers; and the scale of scores. A value of 0: width / heads.
Status read_latent(ConfigReader& r, const LatentShape& absent, ModelConfig& c);

// How many last layers read the keys and values of earlier ones. Of each kind of them one must come before.
Status read_shared_kv(ConfigReader& r, ModelConfig& c);

// Whether `type`, of `layer_types`, is `runs`, by that word or by that of older files: "mamba" and
// "attention".
bool is_layer_type(const json::value& type, std::string_view runs);

// Which layers are scanned: those that `layer_types` calls `kind`, else all but every
// full_attention_interval-th (`interval` where no key says it).
Status read_scanned(ConfigReader& r, const char* kind, int64_t interval, ModelConfig& c);

// Layers of Mamba-2: the spellings of their keys, and what absent ones mean. Heads together are as wide as
// `expand` times the model, or as `width` says; without both keys as they themselves say.
struct MambaKeys {
  const char *heads, *head_dim, *state, *groups, *conv, *conv_bias, *bias;
  const char *expand = nullptr, *width = nullptr;
  int64_t absent_heads = 128, absent_head_dim = 0, absent_state = 128, absent_groups = 8;
  std::optional<int64_t> absent_width = {};
};
Status read_mamba(ConfigReader& r, const MambaKeys& keys, ModelConfig& c);

// A gated MLP's activation, silu or the tanh form of gelu; UNIMPLEMENTED names another.
Status check_gate(const ModelConfig& c, const char* key);

// Layers of Mamba-2 have silu behind their convolutions, whatever else has the same key's.
Status check_silu(const ModelConfig& c, const char* key);

// What norms add under the root.
Result<double> norm_epsilon(ConfigReader& r, const char* key, double absent);

// A number above 0.
Result<double> positive(ConfigReader& r, const char* key, double absent);

}  // namespace oar
