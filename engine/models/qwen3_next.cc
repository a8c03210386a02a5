// Qwen3-Next, https://qwen.ai/blog?id=qwen3-next, and Qwen 3.5: in three of four layers a gated delta rule
// (https://arxiv.org/abs/2412.06464) instead of attention, which in the others has a gate behind it; norms
// whose weights are stored less 1; a quarter of each head rotated. Mixtures as Qwen 2's, or a dense MLP.
//
//   x += mix(rms_norm(x));  x += mlp(rms_norm(x))
//   attention: o (sigmoid(gate) attention(q, k, v)), q and gate from one matrix
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kQwen3Next = {
    .ffn = 5632, .max_context = 32768, .kv_heads = 2, .head_dim = 256, .partial_rotary = 0.25};
constexpr DecoderDefaults kQwen35 = {.ffn = 12288,
                                     .max_context = 32768,
                                     .kv_heads = 4,
                                     .head_dim = 256,
                                     .vocab = 248320,
                                     .width = 4096,
                                     .layers = 32,
                                     .heads = 16,
                                     .partial_rotary = 0.25,
                                     .picture_rope = true};
constexpr DecoderDefaults kQwen35Moe = {.ffn = 512,
                                        .max_context = 32768,
                                        .kv_heads = 2,
                                        .head_dim = 256,
                                        .vocab = 248320,
                                        .width = 2048,
                                        .layers = 40,
                                        .heads = 16,
                                        .partial_rotary = 0.25,
                                        .picture_rope = true};

Status read_hybrid(ConfigReader& r, const DecoderDefaults& d, ModelConfig& c) {
  c.head_norms = HeadNorms::kEach;
  OAR_RETURN_IF_ERROR(read_decoder(r, d, c));
  OAR_ASSIGN(const bool added, r.boolean("norm_weights_are_whole", false));  // GGUF's are
  c.norm_offset = added ? 0 : 1;
  OAR_ASSIGN(c.scan.tiled, r.boolean("linear_value_heads_tiled", false));
  OAR_RETURN_IF_ERROR(read_scanned(r, "linear_attention", 4, c));
  OAR_ASSIGN(c.conv_kernel, r.integer({"linear_conv_kernel_dim"}, 1, 64, 4));
  OAR_ASSIGN(c.scan.key_dim, r.integer({"linear_key_head_dim"}, 1, 1 << 12, 128));
  OAR_ASSIGN(c.scan.value_dim, r.integer({"linear_value_head_dim"}, 1, 1 << 12, 128));
  OAR_ASSIGN(c.scan.key_heads, r.integer({"linear_num_key_heads"}, 1, 1 << 12, 16));
  OAR_ASSIGN(c.scan.heads, r.integer({"linear_num_value_heads"}, 1, 1 << 12, 32));
  if (c.scan.heads % c.scan.key_heads != 0)
    return invalid_argument(cat("config.json: 'linear_num_value_heads' ", c.scan.heads,
                                " is no multiple of 'linear_num_key_heads' ", c.scan.key_heads));
  return check_gate(c, "hidden_act");
}

Status read_qwen3_next(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_hybrid(r, kQwen3Next, c));
  r.without_effect("shared_expert_intermediate_size");  // as its matrices say
  return read_experts(r, {.count = 512, .per_token = 10, .ffn = 512, .normalize = true}, c);
}

// Released configurations say more than the class reads: what drafts need, and how a scan keeps its state.
Status read_released(ConfigReader& r) {
  r.without_effect("mtp_num_hidden_layers mtp_use_dedicated_embeddings mamba_ssm_dtype");
  return r.expect("attn_output_gate", true);
}

Status read_qwen3_5(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_hybrid(r, kQwen35, c));
  return read_released(r);
}

Status read_qwen3_5_moe(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_hybrid(r, kQwen35Moe, c));
  r.without_effect("shared_expert_intermediate_size");
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 256, .per_token = 8, .ffn = 512, .normalize = true}, c));
  return read_released(r);
}

Val gated_attention(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  const int64_t D = b.c.head_dim;
  const Val both = b.split_heads(b.linear(x, p + "q_proj", b.c.attention_bias), b.c.heads, 2 * D);
  const auto heads = [&](const char* name) {
    return b.split_heads(b.linear(x, p + name, b.c.attention_bias), b.c.kv_heads);
  };
  const Val q = b.rope(b.rms_norm(b.slice(both, 0, D), p + "q_norm"), n);
  const Val k = b.rope(b.rms_norm(heads("k_proj"), p + "k_norm"), n);
  const Val seen = b.merge_heads(b.attention(q, k, heads("v_proj"), n));
  const Val gate = b.op("sigmoid", {b.merge_heads(b.slice(both, D, 2 * D))});
  return b.linear(b.op("mul", {seen, gate}), p + "o_proj", b.c.output_bias);
}

Val hybrid_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const auto layer = static_cast<size_t>(n);
    const std::string p = cat("model.layers.", n, ".");
    const Val normed = b.rms_norm(x, p + "input_layernorm");
    x = b.add(x, b.c.is_recurrent(n) ? b.delta_rule(normed, p + "linear_attn.")
                                     : gated_attention(b, normed, p + "self_attn.", n));
    const Val next = b.rms_norm(x, p + "post_attention_layernorm");
    const bool dense = b.c.experts == 0 || b.c.dense_layer[layer];
    x = b.add(x, dense ? b.gated_mlp(next, p + "mlp.") : b.experts_and_shared(next, p + "mlp."));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_qwen3_next = {"qwen3_next", read_qwen3_next, hybrid_hidden};
extern const Architecture architecture_qwen3_5_text = {"qwen3_5_text", read_qwen3_5, hybrid_hidden};
extern const Architecture architecture_qwen3_5_moe_text = {"qwen3_5_moe_text", read_qwen3_5_moe,
                                                           hybrid_hidden};

}  // namespace oar
