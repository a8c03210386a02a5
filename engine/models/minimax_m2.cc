// MiniMax M2: queries and keys normalized over all heads together, a rope over part of each head, and a
// mixture in every layer whose router is a sigmoid with a correction that decides the choice alone.
// https://huggingface.co/MiniMaxAI/MiniMax-M2
//
//   x += attention(rms_norm(x));  x += experts(rms_norm(x))
#include <algorithm>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kMiniMax = {
    .ffn = 1536, .max_context = 196608, .kv_heads = 8, .head_dim = 128, .rope_theta = 5e6};

Status read_minimax(ConfigReader& r, ModelConfig& c) {
  DecoderDefaults d = kMiniMax;
  OAR_ASSIGN(const int64_t head, r.integer({"head_dim"}, 1, 1 << 14, d.head_dim, 0));
  OAR_ASSIGN(const int64_t turned, r.integer({"rotary_dim"}, 1, 1 << 14, head));
  if (turned < head) d.partial_rotary = static_cast<double>(turned) / static_cast<double>(head);
  OAR_RETURN_IF_ERROR(read_decoder(r, d, c));
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 256, .per_token = 8, .normalize = true}, c));
  c.head_norms = HeadNorms::kTogether;
  c.route.score = "sigmoid";
  // Every layer attends in full, and no expert is shared.
  const json::value* types = r.value("attn_type_list");
  const size_t listed = types != nullptr && types->is_array() ? types->get_array().size() : 0;
  const size_t layers = std::max(listed, static_cast<size_t>(c.layers));
  OAR_RETURN_IF_ERROR(r.expect("attn_type_list", json::array(layers, 1)));
  OAR_RETURN_IF_ERROR(r.expect("shared_intermediate_size", 0));
  OAR_RETURN_IF_ERROR(r.expect("use_qk_norm", true));
  OAR_RETURN_IF_ERROR(r.expect("qk_norm_type", "per_layer"));
  OAR_RETURN_IF_ERROR(r.expect("scoring_func", "sigmoid"));
  OAR_RETURN_IF_ERROR(r.expect("use_routing_bias", true));
  r.without_effect("use_mtp num_mtp_modules mtp_transformer_layers");  // layers for drafts
  return check_gate(c, "hidden_act");
}

Val minimax_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, "."), moe = p + "block_sparse_moe.";
    x = b.add(x, b.self_attention(b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x, b.experts(b.rms_norm(x, p + "post_attention_layernorm"), moe + "gate", moe + "experts", "w1",
                           "w3", "w2", moe + "e_score_correction_bias"));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_minimax_m2 = {"minimax_m2", read_minimax, minimax_hidden};

}  // namespace oar
