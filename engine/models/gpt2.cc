// GPT-2: learned positions, LayerNorm before each block, GELU, biases everywhere.
//
//   x += attention(layer_norm(x));  x += mlp(layer_norm(x))
//
// Hugging Face stores the linear layers as (in, out); the transpose below is folded at load.
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"
#include "engine/models/model.h"

namespace oar {
namespace {

// transformers' GPT2Config.
Status read_gpt2(ConfigReader& r, ModelConfig& c) {
  OAR_ASSIGN(c.vocab, r.integer({"vocab_size"}, 1, INT32_MAX, std::nullopt));
  OAR_ASSIGN(c.width, r.integer({"n_embd", "hidden_size"}, 1, 1 << 20, std::nullopt));
  OAR_ASSIGN(c.layers, r.integer({"n_layer", "num_hidden_layers"}, 1, 4096, std::nullopt));
  OAR_ASSIGN(c.heads, r.integer({"n_head", "num_attention_heads"}, 1, 1 << 16, std::nullopt));
  OAR_ASSIGN(c.ffn, r.integer({"n_inner"}, 1, 1 << 22, 4 * c.width));
  OAR_ASSIGN(c.max_context, r.integer({"n_positions", "max_position_embeddings"}, 1, INT32_MAX, 1024));
  OAR_ASSIGN(c.norm_eps, norm_epsilon(r, "layer_norm_epsilon", 1e-5));
  OAR_ASSIGN(c.activation, r.text({"activation_function"}, "gelu_new"));
  OAR_ASSIGN(c.tied, r.boolean("tie_word_embeddings", true));
  OAR_ASSIGN(const bool scaled, r.boolean("scale_attn_weights", true));
  if (!scaled) c.attention_scale = 1;
  OAR_ASSIGN(c.scale_by_layer, r.boolean("scale_attn_by_inverse_layer_idx", false));
  OAR_ASSIGN(c.linear_out_in, r.boolean("linear_out_in", false));
  // Cross-attention is a part for an encoder's states, of which a lone model has none. The second line is
  // what GGUF's form of the config has besides.
  r.without_effect("add_cross_attention is_decoder");
  r.without_effect(
      "intermediate_size hidden_act num_key_value_heads head_dim rope_theta attention_bias mlp_bias");
  return ok_status();
}

Val linear(ModelBuilder& b, Val x, const std::string& name) {
  Val w = b.weight(name + ".weight");
  if (!b.c.linear_out_in) w = b.op("transpose", {w}, {{"perm", std::vector<int64_t>{1, 0}}});
  return b.op("linear", {x, Val{}, w, b.weight(name + ".bias")});
}

Val hidden(ModelBuilder& b) {
  const int64_t E = b.c.width;
  Val x = b.add(b.embedding("transformer.wte.weight", b.in.tokens, b.c.vocab),
                b.embedding("transformer.wpe.weight", b.in.positions, b.c.max_context));
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat("transformer.h.", n, ".");
    const Val qkv = linear(b, b.layer_norm(x, layer + "ln_1"), layer + "attn.c_attn");  // (T, 3 E)
    const Val q = b.split_heads(b.slice(qkv, 0, E), b.c.heads);
    const Val k = b.split_heads(b.slice(qkv, E, 2 * E), b.c.heads);
    const Val v = b.split_heads(b.slice(qkv, 2 * E, 3 * E), b.c.heads);
    x = b.add(x, linear(b, b.merge_heads(b.attention(q, k, v, n)), layer + "attn.c_proj"));
    const Val h = b.activation(linear(b, b.layer_norm(x, layer + "ln_2"), layer + "mlp.c_fc"));
    x = b.add(x, linear(b, h, layer + "mlp.c_proj"));
  }
  return b.layer_norm(x, "transformer.ln_f");
}

}  // namespace

extern const Architecture architecture_gpt2 = {"gpt2", read_gpt2, hidden, "lm_head.weight",
                                               "transformer.wte.weight"};

}  // namespace oar
