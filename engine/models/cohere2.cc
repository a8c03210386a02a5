// Command R7B: attention and MLP read the same LayerNorm and are added together; three windows, with rope
// over neighbouring channels, to one full layer without. https://arxiv.org/abs/2504.00698
//
//   n = layer_norm(x);  x += attention(n) + mlp(n)
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

constexpr DecoderDefaults kCohere2 = {.ffn = 22528,
                                      .max_context = 8192,
                                      .norm_eps = 1e-5,
                                      .windows = Windows::kPattern,
                                      .window_pattern = 4,
                                      .tied = true,
                                      .norm_eps_key = "layer_norm_eps"};

Status read_cohere2(ConfigReader& r, ModelConfig& c) {
  c.rope_interleaved = true;
  OAR_RETURN_IF_ERROR(read_decoder(r, kCohere2, c));
  OAR_ASSIGN(c.logit_scale, positive(r, "logit_scale", 0.0625));
  c.rotated.assign(c.windows.begin(), c.windows.end());
  OAR_RETURN_IF_ERROR(r.expect("order_of_interleaved_layers", "local_attn_first"));
  OAR_RETURN_IF_ERROR(r.expect("position_embedding_type", "rope_gptj"));
  OAR_RETURN_IF_ERROR(r.expect("use_gated_activation", true));
  OAR_RETURN_IF_ERROR(r.expect("use_parallel_block", true));
  // What other keys say again, and how a table is spread over devices.
  r.without_effect("layer_switch use_embedding_sharing use_parallel_embedding");
  return check_gate(c, "hidden_act");
}

Val cohere2_hidden(ModelBuilder& b) {
  Val x = b.embedding("model.embed_tokens.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("model.layers.", n, ".");
    const Val normed = b.layer_norm(x, p + "input_layernorm", false);
    const Val mixed = b.self_attention(normed, p + "self_attn.", n);
    x = b.add(b.add(x, mixed), b.gated_mlp(normed, p + "mlp."));
  }
  return b.layer_norm(x, "model.norm", false);
}

}  // namespace

extern const Architecture architecture_cohere2 = {"cohere2", read_cohere2, cohere2_hidden};

}  // namespace oar
