// Hunyuan, the dense ones: each head of queries and keys is normalized behind its rotation.
// https://huggingface.co/tencent/Hunyuan-7B-Instruct
//
//   x += attention(rms_norm(x));  x += mlp(rms_norm(x))
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kHunyuan = {.ffn = 11008, .max_context = 2048, .norm_eps = 1e-5};

Status read_hunyuan(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kHunyuan, c));
  OAR_RETURN_IF_ERROR(r.expect("use_qk_norm", true));
  OAR_RETURN_IF_ERROR(r.expect("use_rotary_pos_emb", true));
  OAR_RETURN_IF_ERROR(r.expect("use_cla", false));
  OAR_RETURN_IF_ERROR(r.expect("mlp_bias", false));
  // The older name of head_dim, beside it, and a head that is not run.
  r.without_effect("attention_head_dim add_classification_head");
  return check_gate(c, "hidden_act");
}

Val hunyuan_attention(ModelBuilder& b, Val x, const std::string& p, int64_t n) {
  const auto [q, k, v] = b.heads(x, p);
  return b.attend(
      {b.rms_norm(b.rope(q, n), p + "query_layernorm"), b.rms_norm(b.rope(k, n), p + "key_layernorm"), v}, p,
      n);
}

Val hunyuan_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    x = b.add(x, hunyuan_attention(b, b.rms_norm(x, p + "input_layernorm"), p + "self_attn.", n));
    x = b.add(x, b.gated_mlp(b.rms_norm(x, p + "post_attention_layernorm"), p + "mlp."));
  }
  return b.rms_norm(x, "model.norm");
}

}  // namespace

extern const Architecture architecture_hunyuan_v1_dense = {"hunyuan_v1_dense", read_hunyuan, hunyuan_hidden};

}  // namespace oar
