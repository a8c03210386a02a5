// Mamba-2, https://arxiv.org/abs/2405.21060: layers of state space duality (mamba.cc) and nothing else.
//
//   x += mamba(rms_norm(x))
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"

namespace oar {
namespace {

// Attention, which there is none of, is read as of one head: its keys are not those of this class.
constexpr DecoderDefaults kMamba2 = {.max_context = 1 << 20,
                                     .norm_eps = 1e-5,
                                     .vocab = 32768,
                                     .width = 4096,
                                     .layers = 64,
                                     .heads = 1,
                                     .norm_eps_key = "layer_norm_epsilon"};
constexpr MambaKeys kMamba2Keys = {.heads = "num_heads",
                                   .head_dim = "head_dim",
                                   .state = "state_size",
                                   .groups = "n_groups",
                                   .conv = "conv_kernel",
                                   .conv_bias = "use_conv_bias",
                                   .bias = "use_bias",
                                   .expand = "expand",
                                   .absent_head_dim = 64};

Status read_mamba2(ConfigReader& r, ModelConfig& c) {
  OAR_RETURN_IF_ERROR(read_decoder(r, kMamba2, c));
  OAR_RETURN_IF_ERROR(read_mamba(r, kMamba2Keys, c));
  c.heads = c.kv_heads = 1;
  c.head_dim = c.width;
  c.recurrent_type = "linear_attention";
  c.recurrent.assign(static_cast<size_t>(c.layers), true);
  // The class has its norm behind the gate, whatever these say; `intermediate_size` repeats what expands.
  r.without_effect("norm_before_gate rms_norm intermediate_size residual_in_fp32 rescale_prenorm_residual");
  return check_silu(c, "hidden_act");
}

Val mamba2_hidden(ModelBuilder& b) {
  Val x = b.embedding("backbone.embeddings.weight", b.in.tokens, b.c.vocab);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string p = cat("backbone.layers.", n, ".");
    x = b.add(x, b.mamba(b.rms_norm(x, p + "norm"), p + "mixer."));
  }
  return b.rms_norm(x, "backbone.norm_f");
}

}  // namespace

extern const Architecture architecture_mamba2 = {.model_type = "mamba2",
                                                 .read = read_mamba2,
                                                 .hidden = mamba2_hidden,
                                                 .embedding = "backbone.embeddings.weight"};

}  // namespace oar
