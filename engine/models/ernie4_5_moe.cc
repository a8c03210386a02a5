// ERNIE 4.5, the mixtures: a rope that turns neighbouring channels; a router of softmax with a correction
// that decides the choice alone; experts that all tokens share.
// https://ernie.baidu.com/blog/publication/ERNIE_Technical_Report.pdf
//
//   x += attention(rms_norm(x));  x += experts(rms_norm(x)) + shared(rms_norm(x))
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kErnieMoe = {.ffn = 12288,
                                       .max_context = 131072,
                                       .kv_heads = 4,
                                       .norm_eps = 1e-5,
                                       .rope_theta = 5e5,
                                       .tied = true,
                                       .bias_key = "use_bias"};

Status read_ernie_moe(ConfigReader& r, ModelConfig& c) {
  c.rope_interleaved = true;
  OAR_RETURN_IF_ERROR(read_decoder(r, kErnieMoe, c));
  c.mlp_bias = c.head_bias = c.attention_bias;
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 64, .per_token = 6, .ffn = 1536, .normalize = true}, c));
  OAR_ASSIGN(c.shared_experts, r.integer({"moe_num_shared_experts"}, 0, 64, 2));
  OAR_ASSIGN(const int64_t first, r.integer({"moe_layer_start_index"}, 0, INT32_MAX, 1));
  OAR_ASSIGN(const int64_t last, r.integer({"moe_layer_end_index"}, -1, INT32_MAX, -1));
  OAR_ASSIGN(const int64_t every, r.integer({"moe_layer_interval"}, 1, INT32_MAX, 1));
  for (int64_t n = 0; n < c.layers; ++n)
    c.dense_layer[static_cast<size_t>(n)] = (n + 1) % every != 0 || n < first || (last >= 0 && n > last);
  // The least that the chosen probabilities are divided by, which they cannot fall below.
  OAR_ASSIGN(const double least, r.number({"moe_norm_min"}, 1e-12));
  if (least * static_cast<double>(c.experts) > 1)
    return unimplemented(
        cat("config.json: 'moe_norm_min' is ", least, ", expected at most 1 / 'moe_num_experts'"));
  // Of training.
  r.without_effect("moe_capacity moe_gate moe_use_aux_free");
  return check_gate(c, "hidden_act");
}

Val ernie_moe_mlp(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  if (b.c.dense_layer[static_cast<size_t>(n)]) return b.gated_mlp(x, p);
  const Val routed = b.experts(x, p + "gate", p + "experts", "gate_proj", "up_proj", "down_proj",
                               p + "moe_statics.e_score_correction_bias");
  return b.c.shared_experts > 0 ? b.add(routed, b.gated_mlp(x, p + "shared_experts.")) : routed;
}

Val ernie_moe_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, b.self_attention(b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x, ernie_moe_mlp(b, b.rms_norm(x, p + "post_attention_layernorm"), p + "mlp.", n));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_ernie4_5_moe = {"ernie4_5_moe", read_ernie_moe, ernie_moe_hidden};

}  // namespace oar
