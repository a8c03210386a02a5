// BERT's layers with rotated queries and keys in place of a table of positions, and with gates:
//   nomic_bert, https://arxiv.org/abs/2402.01613: gates of SiLU, no biases (nomic-embed-text)
//   gte, https://arxiv.org/abs/2407.19669: gates of GELU, biases but for the gates (gte-multilingual,
//   arctic-embed 2)
//
//   x = layer_norm(word[ids] + type[types])
//   x = layer_norm(x + W_o attention(x)),  x = layer_norm(x + W_down (act(W_gate x) W_up x))        per layer
//
// Files have the names of transformers, or those of the code that was published with the weights, where
// queries, keys and values are one matrix, and of gte the gate lies behind what it gates.
#include "engine/base/format.h"
#include "engine/models/decoder_keys.h"
#include "engine/models/encoder_writer.h"

namespace oar {
namespace {

// What a layer's tensors are called.
struct LayerNames {
  const char* layers;
  const char *qkv, *o;  // `qkv`: one matrix; null: q_proj, k_proj and v_proj of self_attn
  const char* attention_norm;
  const char *gate, *up, *down;  // `up` null: `gate` holds what is gated and the gate behind it
  const char* norm;
  const char* first_norm;  // of the tables' sum
};
constexpr LayerNames kNames = {
    "layers.",     nullptr,         "self_attn.o_proj",   "post_attention_layernorm", "mlp.gate_proj",
    "mlp.up_proj", "mlp.down_proj", "post_mlp_layernorm", "embeddings.LayerNorm"};
constexpr LayerNames kNomic = {"encoder.layers.", "attn.Wqkv", "attn.out_proj", "norm1", "mlp.fc12",
                               "mlp.fc11",        "mlp.fc2",   "norm2",         "emb_ln"};
constexpr LayerNames kGte = {"encoder.layer.",      "attention.qkv_proj",
                             "attention.o_proj",    "attn_ln",
                             "mlp.up_gate_proj",    nullptr,
                             "mlp.down_proj",       "mlp_ln",
                             "embeddings.LayerNorm"};

// What both families' configs say; the older spellings are those of the published code.
Status read_sizes(ConfigReader& r, EncoderConfig& c, double theta) {
  OAR_ASSIGN(c.width, r.integer({"hidden_size", "n_embd"}, 1, 1 << 16, 768));
  OAR_ASSIGN(c.layers, r.integer({"num_hidden_layers", "n_layer"}, 1, 1024, 12));
  OAR_ASSIGN(c.heads, r.integer({"num_attention_heads", "n_head"}, 1, 1024, 12));
  OAR_ASSIGN(c.ffn, r.integer({"intermediate_size", "n_inner"}, 1, 1 << 20, 3072));
  OAR_ASSIGN(c.norm_eps, r.number({"layer_norm_eps", "layer_norm_epsilon"}, 1e-12));
  c.table_width = c.width;
  return read_rope(r, {.rope_theta = theta}, c);
}

}  // namespace

// transformers' NomicBertConfig, and nomic-ai's own, of which newer files have both.
Status read_nomic_bert(ConfigReader& r, EncoderConfig& c) {
  OAR_ASSIGN(const double base, r.number({"rotary_emb_base"}, 1000));
  OAR_RETURN_IF_ERROR(read_sizes(r, c, base));
  // How far it was trained; `n_positions` says what may be asked of it.
  OAR_ASSIGN(c.max_context, r.integer({"max_position_embeddings", "max_trained_positions", "n_positions"}, 1,
                                      1 << 24, 2048));
  r.without_effect("max_trained_positions n_positions");
  OAR_ASSIGN(c.types, r.integer({"type_vocab_size"}, 0, 1024, 2));
  OAR_RETURN_IF_ERROR(r.expect("activation_function", "swiglu"));
  OAR_ASSIGN(c.activation, r.text({"hidden_act"}, "silu"));
  for (const char* key : {"prenorm", "parallel_block", "causal", "rotary_emb_interleaved", "qkv_proj_bias",
                          "mlp_fc1_bias", "mlp_fc2_bias", "use_rms_norm", "add_pooling_layer"})
    OAR_RETURN_IF_ERROR(r.expect(key, false));
  for (const char* key : {"rotary_emb_scale_base", "rotary_scaling_factor"})
    OAR_RETURN_IF_ERROR(r.expect(key, nullptr));
  OAR_RETURN_IF_ERROR(r.expect("rotary_emb_fraction", 1.0));
  OAR_ASSIGN(const int64_t mixtures, r.integer({"moe_every_n_layers"}, 0, 1024, 0, 0));
  if (mixtures > 0)
    return unimplemented(
        cat("config.json: 'moe_every_n_layers' is ", mixtures, "; nomic_bert is offered without mixtures"));
  OAR_ASSIGN(const int64_t head_dim, r.integer({"head_dim"}, 1, 1 << 16, c.width / c.heads));
  if (head_dim * c.heads != c.width)
    return unimplemented(cat("config.json: 'head_dim' is ", head_dim,
                             "; only 'hidden_size' / 'num_attention_heads' (", c.width / c.heads,
                             ") is offered"));
  r.without_effect(
      "parallel_block_tied_norm pad_vocab_size_multiple dense_seq_output fused_bias_fc fused_dropout_add_ln "
      "use_flash_attn use_xentropy summary_activation summary_first_dropout summary_proj_to_labels "
      "summary_type summary_use_proj");
  return ok_status();
}

// transformers' GteConfig, and the published NewConfig ("new").
Status read_gte(ConfigReader& r, EncoderConfig& c) {
  OAR_RETURN_IF_ERROR(read_sizes(r, c, c.model_type == "new" ? 1e4 : 160000));
  OAR_ASSIGN(c.max_context,
             r.integer({"max_position_embeddings"}, 1, 1 << 24, c.model_type == "new" ? 2048 : 8192));
  OAR_ASSIGN(c.types, r.integer({"type_vocab_size"}, 0, 1024, 1));
  OAR_ASSIGN(c.activation, r.text({"hidden_act"}, "gelu"));
  OAR_RETURN_IF_ERROR(r.expect("position_embedding_type", "rope"));
  OAR_RETURN_IF_ERROR(r.expect("layer_norm_type", "layer_norm"));
  for (const char* key : {"logn_attention_scale", "logn_attention_clip1"})
    OAR_RETURN_IF_ERROR(r.expect(key, false));
  r.without_effect("pack_qkv unpad_inputs use_memory_efficient_attention");
  return ok_status();
}

Val rotary_bert_hidden(EncoderWriter& b) {
  const int64_t E = b.c.width, F = b.c.ffn;
  const std::string& p = b.prefix;
  const bool biased = b.c.model_type != "nomic_bert";
  const LayerNames& t = b.has(p + "layers.0.self_attn.q_proj.weight") ? kNames : biased ? kGte : kNomic;
  Val x = b.table(p + "embeddings.word_embeddings.weight", b.in.tokens, b.c.vocab, E);
  if (b.types) x = b.add(x, b.table(p + "embeddings.token_type_embeddings.weight", b.types, b.e.types, E));
  x = b.norm(x, p + t.first_norm);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat(p, t.layers, n, ".");
    const Val qkv = t.qkv != nullptr ? b.layer(x, layer + t.qkv, 3 * E, E, biased) : Val{};
    const auto part = [&](int64_t k) {
      const char* const apart[] = {"q_proj", "k_proj", "v_proj"};
      return b.split_heads(qkv ? b.slice(qkv, k * E, (k + 1) * E)
                               : b.layer(x, cat(layer, "self_attn.", apart[k]), E, E, biased),
                           b.c.heads);
    };
    const Val q = b.rope(part(0), n), k = b.rope(part(1), n), v = part(2);
    x = b.norm(b.add(x, b.layer(b.attend(q, k, v), layer + t.o, E, E, biased)), layer + t.attention_norm);
    Val gate, up;
    if (t.up != nullptr) {
      gate = b.layer(x, layer + t.gate, F, E, false);
      up = b.layer(x, layer + t.up, F, E, false);
    } else {
      const Val both = b.layer(x, layer + t.gate, 2 * F, E, false);
      up = b.slice(both, 0, F), gate = b.slice(both, F, 2 * F);
    }
    const Val gated = b.op("mul", {b.activate(gate, b.c.activation), up});
    x = b.norm(b.add(x, b.layer(gated, layer + t.down, E, F, biased)), layer + t.norm);
  }
  return x;
}

}  // namespace oar
