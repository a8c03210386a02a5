// gpt-oss: biases everywhere, a window of 128 in every other layer, sinks in every head's softmax, and a
// mixture in every layer whose gates are clamped. https://arxiv.org/abs/2508.10925,
// https://huggingface.co/openai/gpt-oss-20b
//
//   x += attention(rms_norm(x));  x += experts(rms_norm(x))
//   expert(x) = down(g sigmoid(1.702 g) (u + 1)),  g = min(gate(x), 7),  u = up(x) within [-7, 7]
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kGptOss = {.ffn = 2880,
                                     .max_context = 131072,
                                     .kv_heads = 8,
                                     .head_dim = 64,
                                     .norm_eps = 1e-5,
                                     .rope_theta = 150000,
                                     .windows = Windows::kPattern,
                                     .window = 128,
                                     .window_pattern = 2,
                                     .attention_bias = true};

Status read_gpt_oss(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kGptOss, c));
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 128, .per_token = 4, .normalize = true}, c));
  c.router_bias = c.expert_bias = c.sinks = true;
  c.experts_interleaved = c.experts_transposed = true;
  OAR_ASSIGN(c.gate_alpha, positive(r, "swiglu_alpha", 1.702));
  OAR_ASSIGN(c.gate_limit, positive(r, "swiglu_limit", 7));
  c.gate_offset = 1;
  if (c.rope.scaling.empty())
    c.rope.scaling = {{"rope_type", "yarn"},
                      {"factor", 32.0},
                      {"truncate", false},
                      {"original_max_position_embeddings", 4096}};
  // What its files say twice: experts a token takes, and what YaRN begins from.
  r.without_effect("experts_per_token initial_context_length");
  return check_gate(c, "hidden_act");
}

Val gpt_oss_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, b.self_attention(b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x, b.experts(b.rms_norm(x, p + "post_attention_layernorm"), p + "mlp.router", p + "mlp.experts",
                           "gate_proj", "up_proj", "down_proj"));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_gpt_oss = {"gpt_oss", read_gpt_oss, gpt_oss_hidden};

}  // namespace oar
