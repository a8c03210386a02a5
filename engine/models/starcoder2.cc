// StarCoder 2: LayerNorm, biases everywhere, an MLP of two layers with gelu between.
// https://arxiv.org/abs/2402.19173
//
//   x += attention(layer_norm(x));  x += mlp(layer_norm(x))
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kStarCoder2 = {.ffn = 12288,
                                         .max_context = 4096,
                                         .kv_heads = 2,
                                         .norm_eps = 1e-5,
                                         .windows = Windows::kAll,
                                         .window = 0,
                                         .tied = true,
                                         .attention_bias = true,
                                         .activation = "gelu_pytorch_tanh",
                                         .norm_eps_key = "norm_epsilon",
                                         .bias_key = "use_bias"};

Status read_starcoder2(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kStarCoder2, c));
  c.mlp_bias = c.attention_bias;
  OAR_RETURN_IF_ERROR(r.expect("mlp_type", "default"));
  OAR_RETURN_IF_ERROR(r.expect("norm_type", "layer_norm"));
  // What the code of its first release called the same things.
  r.without_effect(
      "activation_function layer_norm_epsilon attention_softmax_in_fp32 scale_attention_softmax_in_fp32");
  return ok_status();
}

Val starcoder2_mlp(ModelBuilder& b, Val x, const std::string& p) {
  const Val h = b.activation(b.linear(x, p + "c_fc", b.c.mlp_bias));
  return b.linear(h, p + "c_proj", b.c.mlp_bias);
}

Val starcoder2_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, b.self_attention(b.layer_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x, starcoder2_mlp(b, b.layer_norm(x, p + "post_attention_layernorm"), p + "mlp."));
  }
  return b.layer_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_starcoder2 = {"starcoder2", read_starcoder2, starcoder2_hidden};

}  // namespace oar
