// DeepSeek V2 (https://arxiv.org/abs/2405.04434), V3 and R1 (https://arxiv.org/abs/2412.19437), Kimi K2 (V3
// with other sizes, https://arxiv.org/abs/2507.20534), Mistral 4 and GLM-4.7-Flash: attention over a latent,
// and behind the first dense layers a mixture with experts that all share. The router of V2 and of Mistral 4,
// whose queries sharpen by their position, is a softmax, and V2's large models choose groups of experts by
// the best expert of each. That of the others is a sigmoid with a correction that decides the choice alone;
// groups are chosen by their two best.
//
//   x += attention(rms_norm(x));  x += experts(rms_norm(x)) + shared(rms_norm(x))
#include <algorithm>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kV2 = {.ffn = 11008, .max_context = 2048};
constexpr DecoderDefaults kV3 = {.ffn = 18432, .max_context = 4096};
constexpr DecoderDefaults kGlmLite = {.ffn = 10240, .max_context = 202752, .norm_eps = 1e-5};
constexpr DecoderDefaults kMistral4 = {
    .ffn = 12288, .max_context = 1 << 20, .vocab = 131072, .width = 4096, .layers = 36, .heads = 32};
constexpr LatentShape kDeepSeekLatent = {
    .rank = 512, .query_rank = 1536, .nope = 128, .rope = 64, .value = 128};
constexpr LatentShape kGlmLatent = {.rank = 512, .query_rank = 768, .nope = 192, .rope = 64, .value = 256};
constexpr LatentShape kMistral4Latent = {
    .rank = 256, .query_rank = 1024, .nope = 64, .rope = 64, .value = 128};

// `dense`: how many first layers are.
Status read_deepseek_experts(ConfigReader& r, const ExpertDefaults& d, int64_t dense, double scale,
                             ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_experts(r, d, c));
  OAR_ASSIGN(c.route.scale, positive(r, "routed_scaling_factor", scale));
  OAR_ASSIGN(c.route.groups, r.integer({"n_group"}, 1, 4096, 1, 1));
  OAR_ASSIGN(c.route.top_groups, r.integer({"topk_group"}, 1, c.route.groups, 1, 1));
  OAR_ASSIGN(const int64_t first, r.integer({"first_k_dense_replace"}, 0, INT32_MAX, dense));
  OAR_ASSIGN(const int64_t every, r.integer({"moe_layer_freq"}, 1, INT32_MAX, 1));
  for (int64_t n = 0; n < c.layers; ++n) c.dense_layer[static_cast<size_t>(n)] = n < first || n % every != 0;
  r.without_effect("n_shared_experts");  // how wide the shared one is, as its matrices say
  // Layers behind the last, for drafts; and what a trainer does.
  r.without_effect("num_nextn_predict_layers num_mtp_layers aux_loss_alpha seq_aux ep_size");
  return check_gate(c, "hidden_act");
}

Status read_v2(ConfigReader& r, ModelConfig& c) {
  c.rope_interleaved = true;
  OAR_RETURN_IF_ERROR(read_decoder(r, kV2, c));
  OAR_ASSIGN(c.mlp_bias, r.boolean("mlp_bias", false));
  OAR_RETURN_IF_ERROR(read_latent(r, kDeepSeekLatent, c));
  OAR_RETURN_IF_ERROR(read_deepseek_experts(r, {.count = 64, .per_token = 6, .ffn = 1407}, 0, 1, c));
  OAR_RETURN_IF_ERROR(r.expect("scoring_func", "softmax"));
  // DeepSeek's own code and transformers do not agree on what it scales then.
  if (c.route.normalize)
    return unimplemented("config.json: 'norm_topk_prob' is true, expected false as V2 was released");
  OAR_ASSIGN(const std::string method, r.text({"topk_method"}, "greedy"));
  if (method == "group_limited_greedy") {
    c.route.group_best = 1;
    return ok_status();
  }
  if (method != "greedy")
    return unimplemented(cat("config.json: 'topk_method' is '", method,
                             "', expected 'greedy' or 'group_limited_greedy' as V2 was released"));
  c.route.groups = c.route.top_groups = 1;
  return ok_status();
}

Status read_v3(ConfigReader& r, ModelConfig& c) {
  c.rope_interleaved = true;
  OAR_RETURN_IF_ERROR(read_decoder(r, kV3, c));
  OAR_RETURN_IF_ERROR(read_latent(r, kDeepSeekLatent, c));
  OAR_RETURN_IF_ERROR(
      read_deepseek_experts(r, {.count = 256, .per_token = 8, .ffn = 2048, .normalize = true}, 3, 2.5, c));
  return read_corrected(r, c);
}

Status read_glm4_moe_lite(ConfigReader& r, ModelConfig& c) {
  c.rope_interleaved = true;
  OAR_RETURN_IF_ERROR(read_decoder(r, kGlmLite, c));
  OAR_RETURN_IF_ERROR(read_latent(r, kGlmLatent, c));
  OAR_RETURN_IF_ERROR(
      read_deepseek_experts(r, {.count = 64, .per_token = 4, .ffn = 1536, .normalize = true}, 1, 1.8, c));
  OAR_RETURN_IF_ERROR(read_corrected(r, c));
  const json::value* types = r.value("mlp_layer_types");
  if (types == nullptr) return ok_status();
  if (!types->is_array() || types->get_array().size() != c.dense_layer.size())
    return invalid_argument(cat("config.json: 'mlp_layer_types' is not a list of ", c.layers,
                                " entries, as 'num_hidden_layers' wants"));
  for (size_t n = 0; n < c.dense_layer.size(); ++n) {
    const json::value& type = types->get_array()[n];
    c.dense_layer[n] = type == json::value("dense");
    if (!c.dense_layer[n] && type != json::value("sparse"))
      return invalid_argument(cat("config.json: 'mlp_layer_types' has ", json::serialize(type).substr(0, 80),
                                  " for layer ", n, ", expected \"dense\" or \"sparse\""));
  }
  return ok_status();
}

Status read_mistral4(ConfigReader& r, ModelConfig& c) {
  c.rope_interleaved = true;
  OAR_RETURN_IF_ERROR(read_decoder(r, kMistral4, c));
  if (c.rope.scaling.empty())
    return invalid_argument("config.json has no 'rope_parameters', which mistral4 needs");
  ConfigReader rope(c.rope.scaling);
  OAR_ASSIGN(c.position_beta, rope.number({"llama_4_scaling_beta"}, 0));
  OAR_ASSIGN(c.position_period, positive(rope, "original_max_position_embeddings", 8192));
  OAR_RETURN_IF_ERROR(read_latent(r, kMistral4Latent, c));
  return read_deepseek_experts(r, {.count = 128, .per_token = 4, .ffn = 2048, .normalize = true}, 0, 1, c);
}

Val deepseek_mlp(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  if (b.c.dense_layer[static_cast<size_t>(n)]) return b.gated_mlp(x, p);
  const bool corrected = b.c.route.score == "sigmoid";
  const Val routed = b.experts(x, p + "gate", p + "experts", "gate_proj", "up_proj", "down_proj",
                               corrected ? p + "gate.e_score_correction_bias" : "");
  return b.add(routed, b.gated_mlp(x, p + "shared_experts."));
}

Val deepseek_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, b.latent_attention(b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x, deepseek_mlp(b, b.rms_norm(x, p + "post_attention_layernorm"), p + "mlp.", n));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_deepseek_v2 = {"deepseek_v2", read_v2, deepseek_hidden};
extern const Architecture architecture_deepseek_v3 = {
    .model_type = "deepseek_v3",
    .read = read_v3,
    .hidden = deepseek_hidden,
    .not_run = "deepseek_v32 deepseek_v3_2 deepseek_v4 glm_moe_dsa deepseek32 deepseek4 glm-dsa",
    .reason =
        "attends to keys that an indexer chooses, which is not run here; deepseek_v3 and glm4_moe_lite, "
        "which attend to all, are"};
extern const Architecture architecture_kimi_k2 = {"kimi_k2", read_v3, deepseek_hidden};
extern const Architecture architecture_mistral4 = {"mistral4", read_mistral4, deepseek_hidden};
extern const Architecture architecture_glm4_moe_lite = {"glm4_moe_lite", read_glm4_moe_lite, deepseek_hidden};

}  // namespace oar
