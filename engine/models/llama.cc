// Llama 2 and 3, https://arxiv.org/abs/2302.13971, https://arxiv.org/abs/2407.21783; Mistral (the same with a
// window, https://arxiv.org/abs/2310.06825); Qwen 2 (biases on q, k, v come with the checkpoint,
// https://arxiv.org/abs/2407.10671); Qwen 3 (each query and key head normalized before its rotation,
// https://arxiv.org/abs/2505.09388); and their mixtures.
//
//   x += attention(rms_norm(x));  x += mlp(rms_norm(x))
#include <algorithm>

#include "engine/base/format.h"
#include "engine/models/config_reader.h"
#include "engine/models/model.h"

namespace oar {
namespace {

// Which layers look through the window of `sliding_window`.
enum class Windows {
  kNone,
  kAll,
  kSwitched,  // all, where `use_sliding_window` is true
  kUpper,     // where it is true: those of `layer_types`, else those from `max_window_layers` on
};

// What an absent key of config.json means: transformers' LlamaConfig, MistralConfig and so on.
struct Defaults {
  int64_t ffn, kv_heads, head_dim, max_context;
  double norm_eps, rope_theta;
  Windows windows = Windows::kNone;
  int64_t window = 4096;
  bool attention_bias = false;
  int64_t experts = 0, experts_per_token = 0, expert_ffn = 0;  // expert_ffn 0: as ffn
};
constexpr Defaults kLlama = {11008, 0, 0, 2048, 1e-6, 1e4};
constexpr Defaults kMistral = {14336, 8, 0, 131072, 1e-6, 1e4, Windows::kAll};
constexpr Defaults kQwen2 = {22016, 32, 0, 32768, 1e-6, 1e4, Windows::kUpper, 4096, true};
constexpr Defaults kQwen3 = {22016, 32, 128, 32768, 1e-6, 1e4, Windows::kUpper};
constexpr Defaults kQwen3Moe = {6144, 4, 0, 32768, 1e-6, 1e4, Windows::kSwitched, 4096, false, 128, 8, 768};
constexpr Defaults kMixtral = {14336, 8, 0, 131072, 1e-5, 1e6, Windows::kAll, 0, false, 8, 2, 0};

Status read_windows(ConfigReader& r, const Defaults& d, ModelConfig& c) {
  r.without_effect("max_window_layers");
  if (d.windows == Windows::kNone) return ok_status();
  OAR_ASSIGN(int64_t window, r.integer({"sliding_window"}, 0, INT32_MAX, d.window, 0));
  OAR_ASSIGN(const bool use, r.boolean("use_sliding_window", false));
  if (d.windows != Windows::kAll && !use) window = 0;
  c.windows.assign(static_cast<size_t>(c.layers), window);
  if (d.windows != Windows::kUpper) return ok_status();
  OAR_ASSIGN(const int64_t first, r.integer({"max_window_layers"}, 0, INT32_MAX, 28));
  std::fill_n(c.windows.begin(), std::min(first, c.layers), 0);
  const json::value* types = r.value("layer_types");  // checked for length and words by the caller
  if (types == nullptr || !types->is_array()) return ok_status();
  for (size_t k = 0; k < std::min(c.windows.size(), types->get_array().size()); ++k)
    c.windows[k] = types->get_array()[k] == json::value("sliding_attention") ? window : 0;
  return ok_status();
}

Status read_experts(ConfigReader& r, const Defaults& d, ModelConfig& c) {
  if (d.experts == 0) return ok_status();
  OAR_ASSIGN(c.experts, r.integer({"num_local_experts", "num_experts"}, 0, 4096, d.experts));
  OAR_ASSIGN(c.experts_per_token, r.integer({"num_experts_per_tok"}, 1, 4096, d.experts_per_token));
  OAR_ASSIGN(c.expert_ffn,
             r.integer({"moe_intermediate_size"}, 1, 1 << 20, d.expert_ffn == 0 ? c.ffn : d.expert_ffn));
  OAR_ASSIGN(const bool normalize, r.boolean("norm_topk_prob", false));
  c.normalize_experts = normalize || c.model_type == "mixtral";
  if (c.experts > 0 && c.experts_per_token > c.experts) {
    return invalid_argument(
        cat("config.json: 'num_experts_per_tok' is ", c.experts_per_token, " of ", c.experts, " experts"));
  }
  c.dense_layer.assign(static_cast<size_t>(c.layers), false);
  OAR_ASSIGN(const int64_t step, r.integer({"decoder_sparse_step"}, 1, INT32_MAX, 1));
  for (int64_t k = 0; k < c.layers; ++k) c.dense_layer[static_cast<size_t>(k)] = (k + 1) % step != 0;
  const json::value* list = r.value("mlp_only_layers");
  if (list == nullptr) return ok_status();
  if (!list->is_array()) return invalid_argument("config.json: 'mlp_only_layers' is not a list");
  for (const json::value& v : list->get_array()) {
    if (!v.is_int64()) return invalid_argument("config.json: 'mlp_only_layers' is not a list of integers");
    if (v.get_int64() >= 0 && v.get_int64() < c.layers)
      c.dense_layer[static_cast<size_t>(v.get_int64())] = true;
  }
  return ok_status();
}

Status read_llama(ConfigReader& r, const Defaults& d, ModelConfig& c) {
  OAR_ASSIGN(c.width, r.integer({"hidden_size"}, 1, 1 << 20, std::nullopt));
  OAR_ASSIGN(c.layers, r.integer({"num_hidden_layers"}, 1, 4096, std::nullopt));
  OAR_ASSIGN(c.heads, r.integer({"num_attention_heads"}, 1, 1 << 16, std::nullopt));
  OAR_ASSIGN(c.kv_heads, r.integer({"num_key_value_heads"}, 1, c.heads, d.kv_heads, 0));
  OAR_ASSIGN(c.head_dim, r.integer({"head_dim"}, 1, 1 << 14, d.head_dim, 0));
  OAR_ASSIGN(c.ffn, r.integer({"intermediate_size"}, 1, 1 << 22, d.ffn));
  OAR_ASSIGN(c.max_context, r.integer({"max_position_embeddings"}, 1, INT32_MAX, d.max_context));
  OAR_ASSIGN(c.norm_eps, r.number({"rms_norm_eps"}, d.norm_eps));
  OAR_ASSIGN(c.activation, r.text({"hidden_act"}, "silu"));
  if (c.activation != "silu" && c.activation != "swish")
    return unimplemented(cat("config.json: 'hidden_act' is '", c.activation, "'; gated MLPs here use silu"));
  OAR_ASSIGN(c.tied, r.boolean("tie_word_embeddings", false));
  OAR_ASSIGN(c.attention_bias, r.boolean("attention_bias", d.attention_bias));
  OAR_ASSIGN(c.mlp_bias, r.boolean("mlp_bias", false));
  OAR_ASSIGN(c.rope_interleaved, r.boolean("rope_interleaved", false));
  r.without_effect("is_decoder");
  OAR_RETURN_IF_ERROR(read_rope(r, d.rope_theta, c));
  OAR_RETURN_IF_ERROR(read_windows(r, d, c));
  return read_experts(r, d, c);
}

template <const Defaults& kDefaults>
Status read_llama(ConfigReader& r, ModelConfig& c) {
  return read_llama(r, kDefaults, c);
}

Val attention(ModelBuilder& b, Val x, const std::string& layer, int64_t n) {
  const std::string p = layer + "self_attn.";
  const bool biased = b.c.attention_bias;
  Val q = b.split_heads(b.linear(x, p + "q_proj", biased), b.c.heads);     // (T, H, D)
  Val k = b.split_heads(b.linear(x, p + "k_proj", biased), b.c.kv_heads);  // (T, K, D)
  Val v = b.split_heads(b.linear(x, p + "v_proj", biased), b.c.kv_heads);
  if (b.has(p + "q_norm.weight")) {
    q = b.rms_norm(q, p + "q_norm");
    k = b.rms_norm(k, p + "k_norm");
  }
  return b.linear(b.merge_heads(b.attention(b.rope(q), b.rope(k), v, n)), p + "o_proj", biased);
}

template <Val (*kMlp)(ModelBuilder&, Val, const std::string&, int64_t)>
Val hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat("model.layers.", n, ".");
    x = b.add(x, attention(b, b.rms_norm(x, layer + "input_layernorm"), layer, n));
    x = b.add(x, kMlp(b, b.rms_norm(x, layer + "post_attention_layernorm"), layer, n));
  }
  return b.rms_norm(x, "model.norm");
}

Val dense(ModelBuilder& b, Val x, const std::string& layer, int64_t) {
  return b.gated_mlp(x, layer + "mlp.");
}

Val qwen_experts(ModelBuilder& b, Val x, const std::string& layer, int64_t n) {
  if (b.c.experts == 0 || b.c.dense_layer[static_cast<size_t>(n)]) return dense(b, x, layer, n);
  return b.experts(x, layer + "mlp.gate", layer + "mlp.experts", "gate_proj", "up_proj", "down_proj");
}

Val mixtral_experts(ModelBuilder& b, Val x, const std::string& layer, int64_t n) {
  if (!b.has(layer + "block_sparse_moe.gate.weight")) return qwen_experts(b, x, layer, n);  // GGUF's names
  return b.experts(x, layer + "block_sparse_moe.gate", layer + "block_sparse_moe.experts", "w1", "w3", "w2");
}

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbedding = "model.embed_tokens.weight";

}  // namespace

extern const Architecture architecture_llama = {"llama", read_llama<kLlama>, hidden<dense>, kHead,
                                                kEmbedding};
extern const Architecture architecture_mistral = {"mistral", read_llama<kMistral>, hidden<dense>, kHead,
                                                  kEmbedding};
extern const Architecture architecture_qwen2 = {"qwen2", read_llama<kQwen2>, hidden<dense>, kHead,
                                                kEmbedding};
extern const Architecture architecture_qwen3 = {"qwen3", read_llama<kQwen3>, hidden<dense>, kHead,
                                                kEmbedding};
extern const Architecture architecture_qwen3_moe = {"qwen3_moe", read_llama<kQwen3Moe>, hidden<qwen_experts>,
                                                    kHead, kEmbedding};
extern const Architecture architecture_mixtral = {"mixtral", read_llama<kMixtral>, hidden<mixtral_experts>,
                                                  kHead, kEmbedding};

}  // namespace oar
