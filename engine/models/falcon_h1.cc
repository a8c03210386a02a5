// Falcon H1, https://arxiv.org/abs/2507.22448: attention and a layer of Mamba-2 side by side in each layer,
// and multipliers, as maximal update parametrization has them, wherever a matrix reads or writes.
//
//   y = rms_norm(x);  x += s mamba(i y) + a attention(b y);  x += d mlp(rms_norm(x)),  its gate times g
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kFalconH1 = {.ffn = 14336, .max_context = 8192, .kv_heads = 8, .norm_eps = 1e-5};
constexpr MambaKeys kFalconMamba = {.heads = "mamba_n_heads",
                                    .head_dim = "mamba_d_head",
                                    .state = "mamba_d_state",
                                    .groups = "mamba_n_groups",
                                    .conv = "mamba_d_conv",
                                    .conv_bias = "mamba_conv_bias",
                                    .bias = "mamba_proj_bias",
                                    .expand = "mamba_expand",
                                    .width = "mamba_d_ssm",
                                    .absent_state = 256,
                                    .absent_groups = 1,
                                    .absent_width = 1024};

// The numbers of a list into `out`, which keeps its values where there is none.
Status read_numbers(ConfigReader& r, const char* key, std::span<double> out) {
  const json::value* v = r.value(key);
  if (v == nullptr) return ok_status();
  const bool listed = v->is_array() && v->get_array().size() == out.size() &&
                      std::ranges::all_of(v->get_array(), [](const json::value& n) { return n.is_number(); });
  if (!listed)
    return invalid_argument(cat("config.json: '", key, "' is ", json::serialize(*v).substr(0, 80),
                                ", expected ", out.size(), " numbers"));
  for (size_t k = 0; k < out.size(); ++k) out[k] = v->get_array()[k].to_number<double>();
  return ok_status();
}

Status read_falcon_h1(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kFalconH1, c));
  OAR_ASSIGN(c.folded, r.boolean("multipliers_folded", false));  // GGUF's are
  OAR_RETURN_IF_ERROR(read_mamba(r, kFalconMamba, c));
  OAR_ASSIGN(c.mlp_bias, r.boolean("mlp_bias", false));
  OAR_ASSIGN(c.mamba.output_bias, r.boolean("projectors_bias", false));
  OAR_ASSIGN(c.mamba.normed, r.boolean("mamba_rms_norm", false));
  OAR_ASSIGN(c.mamba.norm_first, r.boolean("mamba_norm_before_gate", true));
  OAR_ASSIGN(c.embedding_scale, r.number({"embedding_multiplier"}, 1));
  OAR_ASSIGN(c.logit_scale, r.number({"lm_head_multiplier"}, 1));
  OAR_ASSIGN(c.key_scale, r.number({"key_multiplier"}, 1));
  OAR_ASSIGN(c.attention_input_scale, r.number({"attention_in_multiplier"}, 1));
  OAR_ASSIGN(c.attention_output_scale, r.number({"attention_out_multiplier"}, 1));
  OAR_ASSIGN(c.mamba.input_scale, r.number({"ssm_in_multiplier"}, 1));
  OAR_ASSIGN(c.mamba.output_scale, r.number({"ssm_out_multiplier"}, 1));
  OAR_RETURN_IF_ERROR(read_numbers(r, "ssm_multipliers", c.mamba.scales));
  std::array<double, 2> mlp{1, 1};
  OAR_RETURN_IF_ERROR(read_numbers(r, "mlp_multipliers", mlp));
  c.gate_scale = mlp[0], c.mlp_scale = mlp[1];
  OAR_RETURN_IF_ERROR(r.expect("attn_layer_indices", nullptr));  // all layers attend
  // Which logits of a prompt are wanted, and what its trainer made sizes of.
  r.without_effect("num_logits_to_keep mamba_use_mlp mlp_expansion_factor layers_block_type");
  return check_silu(c, "hidden_act");
}

Val attention(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  const ModelBuilder::Heads h = b.heads(b.scale(x, b.c.attention_input_scale), p);
  const Val k = b.rope(b.scale(h.k, b.c.key_scale), n);
  return b.scale(b.attend({b.rope(h.q, n), k, h.v}, p, n), b.c.attention_output_scale);
}

Val mlp(ModelBuilder& b, Val x, const std::string& p) {
  const Val gate = b.scale(b.linear(x, p + "gate_proj", b.c.mlp_bias), b.c.gate_scale);
  const Val fed = b.gated(gate, b.linear(x, p + "up_proj", b.c.mlp_bias));
  return b.scale(b.linear(fed, p + "down_proj", b.c.mlp_bias), b.c.mlp_scale);
}

Val falcon_h1_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    const Val y = b.rms_norm(x, p + "input_layernorm");
    x = b.add(x, b.add(b.mamba(y, p + "mamba."), attention(b, y, p + "self_attn.", n)));
    x = b.add(x, mlp(b, b.rms_norm(x, p + "pre_ff_layernorm"), p + "feed_forward."));
  }
  return b.rms_norm(x, "model.final_layernorm");
}

}  // namespace

extern const Architecture architecture_falcon_h1 = {"falcon_h1", read_falcon_h1, falcon_h1_hidden};

}  // namespace oar
