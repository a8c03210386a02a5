// MiniCPM3: attention over a latent, whose heads rotate by halves, and three multipliers: of embeddings, of
// residual branches by the square root of the depth, of logits by the width.
// https://arxiv.org/abs/2404.06395, https://huggingface.co/openbmb/MiniCPM3-4B
//
//   x += s attention(rms_norm(x));  x += s mlp(rms_norm(x))
#include <cmath>

#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kMiniCpm3 = {.ffn = 6400, .max_context = 32768, .norm_eps = 1e-5, .tied = true};
constexpr LatentShape kMiniCpm3Latent = {.rank = 256, .query_rank = 768, .nope = 64, .rope = 32};

Status read_minicpm3(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kMiniCpm3, c));
  OAR_ASSIGN(c.mlp_bias, r.boolean("mlp_bias", false));
  OAR_RETURN_IF_ERROR(read_latent(r, kMiniCpm3Latent, c));
  OAR_ASSIGN(c.embedding_scale, r.number({"scale_emb"}, 12));
  const double depth = std::sqrt(static_cast<double>(c.layers));
  OAR_ASSIGN(const double branches, r.number({"scale_depth"}, 1.4, depth));
  c.residual_scale = branches / depth;
  OAR_ASSIGN(const int64_t base, r.integer({"dim_model_base"}, 1, 1 << 20, 256, c.width));
  c.logit_scale = static_cast<double>(base) / static_cast<double>(c.width);
  return check_gate(c, "hidden_act");
}

Val minicpm3_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  const auto branch = [&](Val y) { return b.scale(y, b.c.residual_scale); };
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, branch(b.latent_attention(b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n)));
    x = b.add(x, branch(b.gated_mlp(b.rms_norm(x, p + "post_attention_layernorm"), p + "mlp.")));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_minicpm3 = {"minicpm3", read_minicpm3, minicpm3_hidden};

}  // namespace oar
