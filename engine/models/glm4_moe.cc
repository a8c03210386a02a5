// GLM-4.5 and 4.6: Llama with a rope over half of each head, and behind the first dense layers a mixture
// whose router is a sigmoid with a correction that decides the choice alone; an expert that all share is
// added. https://arxiv.org/abs/2508.06471
//
//   x += attention(rms_norm(x));  x += experts(rms_norm(x)) + shared(rms_norm(x))
#include <algorithm>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kGlm4Moe = {
    .ffn = 10944, .max_context = 131072, .kv_heads = 8, .norm_eps = 1e-5, .partial_rotary = 0.5};

Status read_glm4_moe(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kGlm4Moe, c));
  c.output_bias = false;
  OAR_ASSIGN(const bool normed, r.boolean("use_qk_norm", false));
  if (normed) c.head_norms = HeadNorms::kEach;
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 128, .per_token = 8, .ffn = 1408, .normalize = true}, c));
  OAR_RETURN_IF_ERROR(read_corrected(r, c));
  OAR_ASSIGN(c.route.scale, positive(r, "routed_scaling_factor", 1));
  OAR_ASSIGN(c.route.groups, r.integer({"n_group"}, 1, 4096, 1));
  OAR_ASSIGN(c.route.top_groups, r.integer({"topk_group"}, 1, c.route.groups, 1));
  r.without_effect("n_shared_experts");  // how wide the shared one is, as its matrices say
  OAR_ASSIGN(const int64_t dense, r.integer({"first_k_dense_replace"}, 0, INT32_MAX, 1));
  for (int64_t n = 0; n < std::min(dense, c.layers); ++n) c.dense_layer[static_cast<size_t>(n)] = true;
  r.without_effect("num_nextn_predict_layers num_mtp_layers");  // layers behind the last, for drafts
  return check_gate(c, "hidden_act");
}

Val glm4_moe_mlp(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  if (b.c.dense_layer[static_cast<size_t>(n)]) return b.gated_mlp(x, p);
  const Val routed = b.experts(x, p + "gate", p + "experts", "gate_proj", "up_proj", "down_proj",
                               p + "gate.e_score_correction_bias");
  return b.add(routed, b.gated_mlp(x, p + "shared_experts."));
}

Val glm4_moe_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, b.self_attention(b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x, glm4_moe_mlp(b, b.rms_norm(x, p + "post_attention_layernorm"), p + "mlp.", n));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_glm4_moe = {"glm4_moe", read_glm4_moe, glm4_moe_hidden};

}  // namespace oar
