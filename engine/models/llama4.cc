// Llama 4, the text model: three of four layers rotate, see their own chunk of positions alone and normalize
// each head behind the rope; the others see all, and their queries sharpen with the position. Mixtures, in
// every or every other layer, give each token one expert, weighted by a sigmoid in front of it, and one that
// all share. https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E-Instruct
//
//   x += attention(rms_norm(x));  x += expert(s rms_norm(x)) + shared(rms_norm(x))
#include <algorithm>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kLlama4 = {.ffn = 8192,
                                     .max_context = 131072,
                                     .kv_heads = 8,
                                     .head_dim = 128,
                                     .norm_eps = 1e-5,
                                     .rope_theta = 500000,
                                     .unrotated_every = 4,
                                     .vocab = 202048,
                                     .width = 5120,
                                     .layers = 48,
                                     .heads = 40};

// The layers of `moe_layers`, else every interleave_moe_layer_step-th.
Status read_mixtures(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_experts(r, {.count = 16, .per_token = 1}, c));
  if (c.experts_per_token != 1)
    return unimplemented(cat("config.json: 'num_experts_per_tok' is ", c.experts_per_token,
                             "; experts whose inputs are weighted are run one for each token"));
  OAR_ASSIGN(const int64_t step, r.integer({"interleave_moe_layer_step"}, 1, INT32_MAX, 1));
  for (int64_t n = 0; n < c.layers; ++n) c.dense_layer[static_cast<size_t>(n)] = (n + 1) % step != 0;
  const json::value* list = r.value("moe_layers");
  if (list == nullptr) return ok_status();
  if (!list->is_array()) return invalid_argument("config.json: 'moe_layers' is not a list");
  c.dense_layer.assign(c.dense_layer.size(), true);
  for (const json::value& v : list->get_array()) {
    if (!v.is_int64()) return invalid_argument("config.json: 'moe_layers' is not a list of integers");
    if (v.get_int64() >= 0 && v.get_int64() < c.layers)
      c.dense_layer[static_cast<size_t>(v.get_int64())] = false;
  }
  return ok_status();
}

// Chunks in the layers that `layer_types` says, else in those that rotate.
Status read_chunks(ConfigReader& r, ModelConfig& c) {
  c.chunked = true;
  OAR_ASSIGN(const int64_t chunk, r.integer({"attention_chunk_size"}, 1, INT32_MAX, 8192, 0));
  const json::value* types = r.value("layer_types");  // its length and words are checked by the caller
  c.windows.assign(static_cast<size_t>(c.layers), 0);
  for (size_t n = 0; n < c.windows.size(); ++n) {
    const bool listed = types != nullptr && types->is_array() && n < types->get_array().size();
    const bool own = listed ? types->get_array()[n] == json::value("chunked_attention") : c.rotated[n];
    if (own) c.windows[n] = chunk;
  }
  return ok_status();
}

Status read_llama4(ConfigReader& r, ModelConfig& c) {
  c.rope_interleaved = true;
  OAR_RETURN_IF_ERROR(read_decoder(r, kLlama4, c));
  OAR_RETURN_IF_ERROR(read_mixtures(r, c));
  OAR_RETURN_IF_ERROR(read_chunks(r, c));
  c.expert_ffn = c.ffn;
  OAR_ASSIGN(c.ffn, r.integer({"intermediate_size_mlp"}, 1, 1 << 22, 16384));
  c.experts_transposed = c.route.before = true;
  c.route.score = "sigmoid";
  OAR_RETURN_IF_ERROR(r.expect("scoring_func", "sigmoid"));
  OAR_ASSIGN(const bool normed, r.boolean("use_qk_norm", true));
  if (normed) c.head_norms = HeadNorms::kEach;
  // Older files have a number here.
  const json::value* tuning = r.value("attn_temperature_tuning");
  if (tuning != nullptr && !tuning->is_bool() && !tuning->is_number())
    return invalid_argument("config.json: 'attn_temperature_tuning' is neither true nor false");
  const bool tuned =
      tuning == nullptr || (tuning->is_bool() ? tuning->get_bool() : tuning->to_number<double>() != 0);
  OAR_ASSIGN(const double beta, r.number({"attn_scale"}, 0.1));
  OAR_ASSIGN(c.position_period, positive(r, "floor_scale", 8192));
  c.position_beta = tuned ? beta : 0;
  c.position_offset = 1;
  r.without_effect("for_llm_compressor");
  return check_gate(c, "hidden_act");
}

Val llama4_attention(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  const ModelConfig& c = b.c;
  const auto project = [&](const char* name, int64_t heads) {
    return b.split_heads(b.linear(x, p + name, c.attention_bias), heads);
  };
  Val q = project("q_proj", c.heads), k = project("k_proj", c.kv_heads);
  if (c.rotated.empty() || c.rotated[static_cast<size_t>(n)]) {
    q = b.rope(q, n), k = b.rope(k, n);
    if (c.head_norms == HeadNorms::kEach) q = b.rms_norm(q), k = b.rms_norm(k);
  } else if (c.position_beta != 0) {
    q = b.op("mul", {q, b.position_scale()});
  }
  return b.attend({q, k, project("v_proj", c.kv_heads)}, p, n);
}

Val llama4_feed_forward(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  if (b.c.dense_layer[static_cast<size_t>(n)]) return b.gated_mlp(x, p);
  const Val routed = b.experts(x, p + "router", p + "experts", "gate_proj", "up_proj", "down_proj");
  return b.add(routed, b.gated_mlp(x, p + "shared_expert."));
}

Val llama4_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, llama4_attention(b, b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x,
              llama4_feed_forward(b, b.rms_norm(x, p + "post_attention_layernorm"), p + "feed_forward.", n));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_llama4_text = {"llama4_text", read_llama4, llama4_hidden};

}  // namespace oar
