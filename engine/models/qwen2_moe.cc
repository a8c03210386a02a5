// Qwen 1.5 and 2 MoE: Qwen 2 whose MLP is a mixture and beside it an expert that all tokens share, behind a
// gate of its own. https://arxiv.org/abs/2407.10671
//
//   x += attention(rms_norm(x));  n = rms_norm(x);  x += experts(n) + sigmoid(g n) shared(n)
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kQwen2Moe = {
    .ffn = 5632, .max_context = 32768, .kv_heads = 16, .attention_bias = true, .bias_key = "qkv_bias"};

Status read_qwen2_moe(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kQwen2Moe, c));
  c.output_bias = false;
  OAR_RETURN_IF_ERROR(r.expect("use_sliding_window", false));
  r.without_effect("sliding_window shared_expert_intermediate_size");  // the latter as its matrices say
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 60, .per_token = 4, .ffn = 1408}, c));
  return check_gate(c, "hidden_act");
}

Val qwen2_moe_mlp(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  if (b.c.experts == 0 || b.c.dense_layer[static_cast<size_t>(n)]) return b.gated_mlp(x, p);
  return b.experts_and_shared(x, p);
}

Val qwen2_moe_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, b.self_attention(b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x, qwen2_moe_mlp(b, b.rms_norm(x, p + "post_attention_layernorm"), p + "mlp.", n));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_qwen2_moe = {"qwen2_moe", read_qwen2_moe, qwen2_moe_hidden};

}  // namespace oar
