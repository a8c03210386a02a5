// Nemotron H, https://arxiv.org/abs/2504.03624, and Nemotron 3: each layer is one thing, of Mamba-2,
// attention that rotates nothing, an MLP without a gate whose activation is relu(x)^2, or a mixture of such,
// whose experts may read and write a narrower stream than the layers do.
//
//   x += mix(rms_norm(x));  mlp(x) = W' relu(W x)^2;  mixture(x) = out(experts(in(x))) + shared(x)
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kNemotronH = {.ffn = 21504,
                                        .max_context = 4096,
                                        .kv_heads = 8,
                                        .head_dim = 128,
                                        .norm_eps = 1e-5,
                                        .activation = "relu2",
                                        .vocab = 131072,
                                        .width = 4096,
                                        .layers = 4,
                                        .heads = 32,
                                        .norm_eps_key = "layer_norm_epsilon",
                                        .activation_key = "mlp_hidden_act"};
constexpr MambaKeys kNemotronMamba = {.heads = "mamba_num_heads",
                                      .head_dim = "mamba_head_dim",
                                      .state = "ssm_state_size",
                                      .groups = "n_groups",
                                      .conv = "conv_kernel",
                                      .conv_bias = "use_conv_bias",
                                      .bias = "use_bias",
                                      .absent_head_dim = 64};

// Of `layers_block_type` or `layer_types`, words, or `hybrid_override_pattern`, letters; as many as layers.
Status read_kinds(ConfigReader& r, ModelConfig& c) {
  static constexpr struct {
    std::string_view letter, word, older;
    LayerKind kind;
  } kKinds[] = {{"M", "linear_attention", "mamba", LayerKind::kScan},
                {"*", "full_attention", "attention", LayerKind::kAttention},
                {"-", "mlp", "mlp", LayerKind::kMlp},
                {"E", "moe", "moe", LayerKind::kExperts}};
  std::vector<std::string> says{"linear_attention", "moe", "full_attention", "mlp"};
  const char* key = "hybrid_override_pattern";
  OAR_ASSIGN(const std::string pattern, r.text({key}, ""));
  if (!pattern.empty()) says.clear();
  for (const char letter : pattern) says.emplace_back(1, letter);
  for (const char* list : {"layer_types", "layers_block_type"}) {
    const json::value* v = r.value(list);
    if (v == nullptr) continue;
    if (!v->is_array()) return invalid_argument(cat("config.json: '", list, "' is not a list"));
    key = list;
    says.clear();
    for (const json::value& one : v->get_array())
      says.push_back(one.is_string() ? std::string(one.get_string()) : json::serialize(one));
  }
  if (says.empty()) return invalid_argument(cat("config.json: '", key, "' has no layers"));
  c.layers = static_cast<int64_t>(says.size());  // the class asks no other key
  for (size_t n = 0; n < says.size(); ++n) {
    for (const auto& k : kKinds)
      if (says[n] == k.letter || says[n] == k.word || says[n] == k.older) c.kinds.push_back(k.kind);
    if (c.kinds.size() == n)
      return unimplemented(cat("config.json: '", key, "' has '", says[n].substr(0, 80), "' for layer ", n,
                               ", expected M, *, - or E, or the words for these"));
    c.recurrent.push_back(c.kinds.back() == LayerKind::kScan);
  }
  return ok_status();
}

Status read_nemotron_h(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kNemotronH, c));
  OAR_RETURN_IF_ERROR(read_kinds(r, c));
  OAR_RETURN_IF_ERROR(read_mamba(r, kNemotronMamba, c));
  c.rotated.assign(static_cast<size_t>(c.layers), false);
  c.output_bias = c.attention_bias = false;  // the class has none, whatever the key says
  if (c.tied)
    return unimplemented("config.json: 'tie_word_embeddings' is true, but nemotron_h has a head of its own");
  OAR_ASSIGN(c.mlp_bias, r.boolean("mlp_bias", false));
  // The class holds steps above `time_step_min`, and `time_step_limit` does nothing.
  c.mamba.most_step = std::numeric_limits<double>::infinity();
  OAR_ASSIGN(c.mamba.least_step, r.number({"time_step_min"}, 0.001));
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 8, .per_token = 2, .ffn = 7688, .normalize = true}, c));
  OAR_ASSIGN(c.route.scale, positive(r, "routed_scaling_factor", 1));
  OAR_ASSIGN(c.route.groups, r.integer({"n_group"}, 1, 4096, 1, 1));
  OAR_ASSIGN(c.route.top_groups, r.integer({"topk_group"}, 1, c.route.groups, 1, 1));
  OAR_RETURN_IF_ERROR(read_corrected(r, c));
  if (std::ranges::count(c.kinds, LayerKind::kExperts) == 0) c.experts = 0;
  for (size_t n = 0; n < c.kinds.size(); ++n) c.dense_layer[n] = c.kinds[n] != LayerKind::kExperts;
  OAR_ASSIGN(const std::string convolved, r.text({"mamba_hidden_act"}, "silu"));
  if (convolved != "silu" && convolved != "swish")
    return unimplemented(cat("config.json: 'mamba_hidden_act' is '", convolved, "', expected 'silu'"));
  // How wide projections and shared experts are, as their matrices say; layers behind the last, for drafts.
  r.without_effect(
      "moe_latent_size moe_shared_expert_intermediate_size moe_shared_expert_overlap n_shared_experts expand "
      "mamba_expand mamba_proj_bias residual_in_fp32 rescale_prenorm_residual num_logits_to_keep "
      "num_query_groups "
      "rms_norm_eps norm_eps mtp_layers_block_type mtp_hybrid_override_pattern num_nextn_predict_layers "
      "time_step_limit");
  return ok_status();
}

Val mlp(ModelBuilder& b, Val x, const std::string& p) {
  return b.linear(b.activation(b.linear(x, p + "up_proj", b.c.mlp_bias)), p + "down_proj", b.c.mlp_bias);
}

Val mixture(ModelBuilder& b, Val x, const std::string& p) {
  const Val correction =
      b.op("reshape", {b.weight(p + "gate.e_score_correction_bias")}, {{"shape", std::vector<int64_t>{-1}}});
  const bool narrow = b.has(p + "fc1_latent_proj.weight");
  const Val in = narrow ? b.linear(x, p + "fc1_latent_proj", b.c.mlp_bias) : x;
  Val routed = b.routed_experts(in, {b.linear(x, p + "gate", false), correction, {}}, p + "experts", nullptr,
                                "up_proj", "down_proj");
  if (narrow) routed = b.linear(routed, p + "fc2_latent_proj", b.c.mlp_bias);
  return b.add(routed, mlp(b, x, p + "shared_experts."));
}

Val nemotron_h_hidden(ModelBuilder& b) {
  Val x = b.embedding("backbone.embeddings.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat("backbone.layers.", n, "."), p = layer + "mixer.";
    const Val y = b.rms_norm(x, layer + "norm");
    switch (b.c.kinds[static_cast<size_t>(n)]) {
      case LayerKind::kScan: x = b.add(x, b.mamba(y, p)); break;
      case LayerKind::kAttention: x = b.add(x, b.self_attention(y, p, n)); break;
      case LayerKind::kMlp: x = b.add(x, mlp(b, y, p)); break;
      case LayerKind::kExperts: x = b.add(x, mixture(b, y, p)); break;
    }
  }
  return b.rms_norm(x, "backbone.norm_f");
}

}  // namespace

extern const Architecture architecture_nemotron_h = {.model_type = "nemotron_h",
                                                     .read = read_nemotron_h,
                                                     .hidden = nemotron_h_hidden,
                                                     .embedding = "backbone.embeddings.weight"};

}  // namespace oar
