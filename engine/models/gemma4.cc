// Gemma 4, https://ai.google.dev/gemma/docs/core/model_card_4: Gemma's four norms, and in full layers wider
// heads, of which a quarter of the frequencies turns, and values that are the keys before their norm. In the
// small ones each layer adds what a second table has of the token, and the last layers read the keys and
// values of earlier ones; in one, a mixture stands beside the dense MLP.
//
//   x += rms_norm(attention(rms_norm(x)));  x += rms_norm(mlp(rms_norm(x)))
//   x += rms_norm(W (gelu(V x) * own));     x *= s
#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kGemma4 = {.ffn = 9216,
                                     .max_context = 131072,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .rope_theta = 1e6,
                                     .windows = Windows::kPattern,
                                     .window = 512,
                                     .window_pattern = 6,
                                     .tied = true,
                                     .activation = "gelu_pytorch_tanh",
                                     .vocab = 262144,
                                     .width = 2304,
                                     .layers = 30,
                                     .heads = 8,
                                     .activation_key = "hidden_activation",
                                     .window_theta = 1e4};

Status read_mixture(ConfigReader& r, ModelConfig& c) {
  OAR_ASSIGN(const bool mixture, r.boolean("enable_moe_block", false));
  if (!mixture) {
    r.without_effect("num_experts top_k_experts moe_intermediate_size");
    return ok_status();
  }
  OAR_RETURN_IF_ERROR(read_experts(r, {.normalize = true}, c));
  if (c.experts > 0) return ok_status();
  return invalid_argument("config.json: 'enable_moe_block' is true, but 'num_experts' names none");
}

Status read_gemma4(ConfigReader& r, ModelConfig& c) {
  const bool unified = c.model_type == "gemma4_unified_text";  // the 12B
  DecoderDefaults d = kGemma4;
  if (unified) d.max_context = 262144, d.window = 1024;
  OAR_ASSIGN(d.window_theta, positive(r, "rope_local_base_freq", *d.window_theta));  // GGUF's
  OAR_RETURN_IF_ERROR(read_decoder(r, d, c));
  r.without_effect("hidden_act query_pre_attn_scalar");
  c.windows.back() = 0;
  if (c.layers > 1 && r.value("layer_types") == nullptr && !c.has_window(0))
    return invalid_argument("config.json: 'sliding_window' gives no layer a window");
  OAR_ASSIGN(c.keys_are_values, r.boolean("attention_k_eq_v", false));
  OAR_RETURN_IF_ERROR(read_full_heads(r, 512, c.keys_are_values, c));
  if (c.rope.scaling.empty()) c.rope = {c.rope.theta, 0.25, {{"rope_type", "proportional"}}};
  c.rope.head_dim = c.full_heads->head_dim;
  OAR_RETURN_IF_ERROR(read_shared_kv(r, c));
  OAR_ASSIGN(const bool wide, r.boolean("use_double_wide_mlp", false));
  if (wide) c.double_mlp_layers = c.shared_kv_layers;
  OAR_ASSIGN(c.layer_input, r.integer({"hidden_size_per_layer_input"}, 0, 1 << 16, unified ? 0 : 256, 0));
  OAR_ASSIGN(c.layer_input_vocab, r.integer({"vocab_size_per_layer_input"}, 1, INT32_MAX, 262144));
  if (c.layer_input > 0 && c.layer_input_vocab < c.vocab)
    return invalid_argument(cat("config.json: 'vocab_size_per_layer_input' is ", c.layer_input_vocab,
                                ", less than 'vocab_size' ", c.vocab));
  OAR_ASSIGN(const std::string both, r.text({"use_bidirectional_attention"}, "vision"));
  if (both != "vision")
    return unimplemented(cat("config.json: 'use_bidirectional_attention' is '", both,
                             "'; text runs causal here: expected null or 'vision'"));
  OAR_ASSIGN(c.logit_softcap, r.number({"final_logit_softcapping"}, 0, 0));
  OAR_RETURN_IF_ERROR(read_mixture(r, c));
  c.attention_scale = 1;
  c.value_norms = true;
  c.embedding_scale = std::sqrt(static_cast<double>(c.width));
  return check_gate(c, "hidden_activation");
}

// What each layer has of every token, (T, L P): rows of a table, and of the embedding's projection.
Val layer_inputs(ModelBuilder& b, Val x) {
  const int64_t L = b.c.layers, P = b.c.layer_input;
  const Val table = b.weight("model.embed_tokens_per_layer.weight", {b.c.layer_input_vocab, L * P});
  const Val own = b.op("embedding", {table, b.in.tokens}, {{"scale", std::sqrt(static_cast<double>(P))}});
  const Val seen = b.scale(b.linear(x, "model.per_layer_model_projection", false), 1 / b.c.embedding_scale);
  const Val normed = b.rms_norm(b.split_heads(seen, L, P), "model.per_layer_projection_norm");
  return b.scale(b.add(own, b.merge_heads(normed)), std::sqrt(0.5));
}

// `kept`: keys and values of the layers before.
Val attention(ModelBuilder& b, Val x, const std::string& p, int64_t n,
              std::vector<std::pair<Val, Val>>& kept) {
  const HeadShape shape = b.c.head_shape(n);
  const auto heads = [&](const char* name, int64_t count) {
    return b.split_heads(b.linear(x, p + name, b.c.attention_bias), count, shape.head_dim);
  };
  const Val q = b.rope(b.rms_norm(heads("q_proj", b.c.heads), p + "q_norm"), n);
  if (b.c.kv_layer(n) == n) {
    const Val k = heads("k_proj", shape.kv_heads);
    const Val v = b.c.keys_are_values && !b.c.has_window(n) ? k : heads("v_proj", shape.kv_heads);
    kept.emplace_back(b.rope(b.rms_norm(k, p + "k_norm"), n), b.c.value_norms ? b.rms_norm(v) : v);
  }
  const auto& [k, v] = kept[static_cast<size_t>(b.c.kv_layer(n))];
  return b.attend({q, k, v}, p, n);
}

Val mlp(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  const int64_t wide = n >= b.c.layers - b.c.double_mlp_layers ? 2 : 1;
  b.weight(p + "mlp.gate_proj.weight", {wide * b.c.ffn, b.c.width});
  const Val dense = b.gated_mlp(b.rms_norm(x, p + "pre_feedforward_layernorm"), p + "mlp.");
  if (b.c.experts == 0) return dense;
  const Val gain = b.op("mul", {b.scalar(1 / b.c.embedding_scale), b.weight(p + "router.scale")});
  const Val logits = b.linear(b.rms_norm(x, gain), p + "router.proj", false);
  const Val routed = b.routed_experts(b.rms_norm(x, p + "pre_feedforward_layernorm_2"),
                                      {logits, {}, b.weight(p + "router.per_expert_scale")}, p + "experts",
                                      "gate_proj", "up_proj", "down_proj");
  return b.add(b.rms_norm(dense, p + "post_feedforward_layernorm_1"),
               b.rms_norm(routed, p + "post_feedforward_layernorm_2"));
}

Val gemma4_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  const int64_t P = b.c.layer_input;
  const Val own = P > 0 ? layer_inputs(b, x) : Val{};
  std::vector<std::pair<Val, Val>> kept;
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    const Val mixed = attention(b, b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n, kept);
    x = b.add(x, b.rms_norm(mixed, p + "post_attention_layernorm"));
    x = b.add(x, b.rms_norm(mlp(b, x, p, n), p + "post_feedforward_layernorm"));
    if (P > 0) {
      const Val gate = b.linear(x, p + "per_layer_input_gate", false);
      const Val mine =
          b.linear(b.gated(gate, b.slice(own, n * P, (n + 1) * P)), p + "per_layer_projection", false);
      x = b.add(x, b.rms_norm(mine, p + "post_per_layer_input_norm"));
    }
    x = b.op("mul", {x, b.weight(p + "layer_scalar", {1})});
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_gemma4_text = {"gemma4_text", read_gemma4, gemma4_hidden};
extern const Architecture architecture_gemma4_unified_text = {"gemma4_unified_text", read_gemma4,
                                                              gemma4_hidden};

}  // namespace oar
