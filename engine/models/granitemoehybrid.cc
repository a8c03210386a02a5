// Granite 4 H, https://www.ibm.com/granite/docs/models/granite: layers of Mamba-2 and a few with attention
// that rotates nothing, Granite's four multipliers, and behind both a mixture beside an MLP that all tokens
// share, or that alone.
//
//   x += m mix(rms_norm(x));  y = rms_norm(x);  x += m (experts(y) + shared(y))
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kGraniteHybrid = {.ffn = 11008, .max_context = 2048, .layers = 32};
constexpr MambaKeys kGraniteMamba = {.heads = "mamba_n_heads",
                                     .head_dim = "mamba_d_head",
                                     .state = "mamba_d_state",
                                     .groups = "mamba_n_groups",
                                     .conv = "mamba_d_conv",
                                     .conv_bias = "mamba_conv_bias",
                                     .bias = "mamba_proj_bias",
                                     .expand = "mamba_expand",
                                     .absent_state = 256,
                                     .absent_groups = 1};

Status read_granitemoehybrid(ConfigReader& r, ModelConfig& c) {
  if (r.value("layers_block_type") != nullptr && r.value("layer_types") == nullptr)
    return invalid_argument("config.json: 'layers_block_type' is read as 'layer_types' alone: rename it");
  OAR_RETURN_IF_ERROR(read_decoder(r, kGraniteHybrid, c));
  OAR_RETURN_IF_ERROR(read_scanned(r, "linear_attention", INT32_MAX, c));  // all, where no key says it
  OAR_RETURN_IF_ERROR(read_mamba(r, kGraniteMamba, c));
  OAR_ASSIGN(const std::string positions, r.text({"position_embedding_type"}, ""));
  if (positions != "rope") c.rotated.assign(static_cast<size_t>(c.layers), false);
  OAR_ASSIGN(c.embedding_scale, positive(r, "embedding_multiplier", 1));
  OAR_ASSIGN(c.attention_scale, positive(r, "attention_multiplier", 1));
  OAR_ASSIGN(c.residual_scale, positive(r, "residual_multiplier", 1));
  OAR_ASSIGN(const double divisor, positive(r, "logits_scaling", 1));
  c.logit_scale = 1 / divisor;
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 8, .per_token = 2, .normalize = true}, c));
  OAR_ASSIGN(c.ffn, r.integer({"shared_intermediate_size"}, 1, 1 << 22, 1024));
  r.without_effect("normalization_function init_method layers_block_type");
  return check_silu(c, "hidden_act");
}

Val shared_mlp(ModelBuilder& b, Val x, const std::string& p) {
  const auto fed = [&](Val gate, Val up) { return b.linear(b.gated(gate, up), p + "output_linear", false); };
  if (b.has(p + "gate_proj.weight"))  // GGUF's
    return fed(b.linear(x, p + "gate_proj", false), b.linear(x, p + "up_proj", false));
  const Val both = b.linear(x, p + "input_linear", false);  // (T, 2 F)
  return fed(b.slice(both, 0, b.c.ffn), b.slice(both, b.c.ffn, 2 * b.c.ffn));
}

Val granitemoehybrid_hidden(ModelBuilder& b) {
  const double m = b.c.residual_scale;
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, "."), moe = p + "block_sparse_moe";
    const Val normed = b.rms_norm(x, p + "input_layernorm");
    const Val mixed =
        b.c.is_recurrent(n) ? b.mamba(normed, p + "mamba.") : b.self_attention(normed, p + "self_attn.", n);
    x = b.add(x, b.scale(mixed, m));
    const Val next = b.rms_norm(x, p + "post_attention_layernorm");
    Val fed = shared_mlp(b, next, p + "shared_mlp.");
    if (b.c.experts > 0)
      fed = b.add(b.experts(next, moe + ".router.layer", moe, "gate_proj", "up_proj", "down_proj"), fed);
    x = b.add(x, b.scale(fed, m));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_granitemoehybrid = {"granitemoehybrid", read_granitemoehybrid,
                                                           granitemoehybrid_hidden};

}  // namespace oar
