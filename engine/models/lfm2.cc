// LFM2 and LFM2.5, https://arxiv.org/abs/2511.23404: short gated convolutions in most layers, attention over
// grouped and normalized heads in the others. LFM2-8B-A1B has mixtures behind its first layers, whose router
// is a sigmoid with a correction that decides the choice alone.
//
//   x += conv(rms_norm(x)) or attention(rms_norm(x));  x += mlp(rms_norm(x)) or experts(rms_norm(x))
//   conv(x): B, C, y = split(in_proj(x));  out_proj(C * causal_conv(B * y))
#include <algorithm>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kLfm2 = {.ffn = 12288,
                                   .max_context = 128000,
                                   .kv_heads = 8,
                                   .norm_eps = 1e-5,
                                   .rope_theta = 1e6,
                                   .tied = true,
                                   .vocab = 65536,
                                   .width = 2560,
                                   .layers = 32,
                                   .heads = 32,
                                   .norm_eps_key = "norm_eps"};

constexpr DecoderDefaults kLfm2Moe = [] {
  DecoderDefaults d = kLfm2;
  d.ffn = 7168, d.width = 2048;
  return d;
}();

// Two thirds of what is said, times a factor, rounded up to whole blocks.
Status adjust_ffn(ConfigReader& r, ModelConfig& c) {
  OAR_ASSIGN(const bool adjusted, r.boolean("block_auto_adjust_ff_dim", true));
  OAR_ASSIGN(const double factor, r.number({"block_ffn_dim_multiplier"}, 1, 1));
  OAR_ASSIGN(const int64_t multiple, r.integer({"block_multiple_of"}, 1, 1 << 20, 256));
  if (!adjusted) return ok_status();
  constexpr double kMost = 1 << 22;
  const double scaled = factor * static_cast<double>(2 * c.ffn / 3);
  if (!(scaled >= 1 && scaled <= kMost))
    return invalid_argument(cat("config.json: 'block_ffn_dim_multiplier' is ", factor, ", which makes ",
                                scaled, " of '", r.spelling({"block_ff_dim", "intermediate_size"}), "' ",
                                c.ffn));
  c.ffn = (static_cast<int64_t>(scaled) + multiple - 1) / multiple * multiple;
  return ok_status();
}

// Layers without attention: those of `layer_types` that are "conv", else those not in `full_attn_idxs`.
Status read_layers(ConfigReader& r, ModelConfig& c) {
  c.recurrent_type = "conv";
  c.recurrent.assign(static_cast<size_t>(c.layers), false);
  const json::value *types = r.value("layer_types"), *indices = r.value("full_attn_idxs");
  if (types != nullptr) {
    const size_t n = types->is_array() ? types->get_array().size() : 0;  // config.cc checks it
    for (size_t k = 0; k < std::min(n, c.recurrent.size()); ++k)
      c.recurrent[k] = types->get_array()[k] == json::value("conv");
    return ok_status();
  }
  if (indices == nullptr) return ok_status();
  if (!indices->is_array()) return invalid_argument("config.json: 'full_attn_idxs' is not a list");
  c.recurrent.assign(c.recurrent.size(), true);
  for (const json::value& v : indices->get_array()) {
    if (!v.is_int64()) return invalid_argument("config.json: 'full_attn_idxs' is not a list of integers");
    if (v.get_int64() >= 0 && v.get_int64() < c.layers)
      c.recurrent[static_cast<size_t>(v.get_int64())] = false;
  }
  return ok_status();
}

// What both have.
Status read_convolutions(ConfigReader& r, const DecoderDefaults& d, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, d, c));
  c.activation = "silu";  // no key chooses another
  OAR_ASSIGN(c.tied, r.boolean("tie_embedding", c.tied));
  OAR_ASSIGN(c.conv_bias, r.boolean("conv_bias", false));
  OAR_ASSIGN(c.conv_kernel, r.integer({"conv_L_cache"}, 1, 1 << 10, 3));
  r.without_effect("hidden_act rms_norm_eps");
  return ok_status();
}

Status read_lfm2(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_convolutions(r, kLfm2, c));
  OAR_ASSIGN(c.ffn, r.integer({"block_ff_dim"}, 1, 1 << 22, c.ffn));
  // Of the framework they were trained in; those that mean something here say it again under other names.
  r.without_effect(
      "block_dim block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu "
      "block_use_xavier_init conv_dim conv_dim_out conv_use_xavier_init num_heads theta use_pos_enc");
  OAR_RETURN_IF_ERROR(adjust_ffn(r, c));
  return read_layers(r, c);
}

// Weights of the chosen are divided by their sum, which the class adds 1e-6 to: less than 1e-6 of the sum of
// several sigmoids, unless all of them vanish.
Status read_lfm2_moe(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_convolutions(r, kLfm2Moe, c));
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 32, .per_token = 4, .ffn = 1792, .normalize = true}, c));
  OAR_ASSIGN(c.route.scale, positive(r, "routed_scaling_factor", 1));
  OAR_ASSIGN(const int64_t dense, r.integer({"num_dense_layers"}, 0, INT32_MAX, 2));
  for (int64_t n = 0; n < c.layers; ++n) c.dense_layer[static_cast<size_t>(n)] = n < dense;
  OAR_ASSIGN(c.route.corrected, r.boolean("use_expert_bias", true));
  OAR_RETURN_IF_ERROR(read_corrected(r, c));
  // Of the dense ones, whose MLPs are as wide as these make them.
  r.without_effect("block_auto_adjust_ff_dim block_ffn_dim_multiplier block_multiple_of block_ff_dim");
  if (r.value("layer_types") == nullptr)
    return invalid_argument("config.json has no 'layer_types', which lfm2_moe needs");
  return read_layers(r, c);
}

Val short_conv(ModelBuilder& b, Val x, const std::string& p) {
  const int64_t E = b.c.width;
  const Val all = b.linear(x, p + "in_proj", b.c.conv_bias);  // (T, 3 E)
  const Val gate = b.slice(all, 0, E), out_gate = b.slice(all, E, 2 * E), y = b.slice(all, 2 * E, 3 * E);
  const Val conv = b.causal_conv(b.op("mul", {gate, y}), p + "conv", E, b.c.conv_kernel, b.c.conv_bias);
  return b.linear(b.op("mul", {out_gate, conv}), p + "out_proj", b.c.conv_bias);
}

Val attention(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  const ModelBuilder::Heads h = b.heads(x, p);
  const Val q = b.rope(b.rms_norm(h.q, p + "q_layernorm"), n),
            k = b.rope(b.rms_norm(h.k, p + "k_layernorm"), n);
  return b.linear(b.merge_heads(b.attention(q, k, h.v, n)), p + "out_proj", b.c.output_bias);
}

Val feed_forward(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  if (b.c.experts > 0 && !b.c.dense_layer[static_cast<size_t>(n)])
    return b.experts(x, p + "gate", p + "experts", "w1", "w3", "w2",
                     b.c.route.corrected ? p + "expert_bias" : "");
  return b.linear(b.gated(b.linear(x, p + "w1", false), b.linear(x, p + "w3", false)), p + "w2", false);
}

Val lfm2_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    const Val y = b.rms_norm(x, p + "operator_norm");
    x = b.add(x, b.c.is_recurrent(n) ? short_conv(b, y, p + "conv.") : attention(b, y, p + "self_attn.", n));
    x = b.add(x, feed_forward(b, b.rms_norm(x, p + "ffn_norm"), p + "feed_forward.", n));
  }
  return b.rms_norm(x, "model.embedding_norm");
}

}  // namespace

extern const Architecture architecture_lfm2 = {"lfm2", read_lfm2, lfm2_hidden};
extern const Architecture architecture_lfm2_moe = {"lfm2_moe", read_lfm2_moe, lfm2_hidden};

}  // namespace oar
