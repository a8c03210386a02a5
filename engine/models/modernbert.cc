// ModernBERT, https://arxiv.org/abs/2412.13663: norms in front and mostly without biases, rotated queries and
// keys, gates of GELU; a token sees all of its text in every third layer and its neighbours in the others,
// where the rotation has a base of its own.
//
//   x = layer_norm(word[ids]);  x += attention(layer_norm(x));  x += W_o (gelu(a) b), (a, b) = W_i
//   layer_norm(x)
#include "engine/base/format.h"
#include "engine/models/encoder_writer.h"

namespace oar {
namespace {

// {"full_attention": {"rope_theta": ...}} of newer files.
Status read_theta(ConfigReader& r, const char* layers, double& theta) {
  const json::value* all = r.value("rope_parameters");
  if (all == nullptr || all->is_null()) return ok_status();
  if (!all->is_object()) return invalid_argument("config.json: 'rope_parameters' is no object");
  const json::value* one = all->get_object().if_contains(layers);
  if (one == nullptr || one->is_null()) return ok_status();
  if (!one->is_object())
    return invalid_argument(cat("config.json: 'rope_parameters.", layers, "' is no object"));
  ConfigReader inner(one->get_object());
  OAR_ASSIGN(const std::string type, inner.text({"rope_type"}, "default"));
  if (type != "default")
    return unimplemented(cat("config.json: 'rope_parameters.", layers, ".rope_type' is '", type,
                             "'; only default is offered"));
  OAR_ASSIGN(theta, inner.number({"rope_theta"}, theta));
  if (!(theta > 0))
    return invalid_argument(cat("config.json: 'rope_parameters.", layers, ".rope_theta' is not above 0"));
  return ok_status();
}

// Which layers see their neighbours alone, and how far.
Status read_windows(ConfigReader& r, EncoderConfig& c) {
  OAR_ASSIGN(const int64_t span, r.integer({"local_attention"}, 2, 1 << 24, 128));
  OAR_ASSIGN(const int64_t every, r.integer({"global_attn_every_n_layers"}, 1, 1024, 3));
  const int64_t window = span / 2 + 1;
  for (int64_t n = 0; n < c.layers; ++n) c.windows.push_back(n % every != 0 ? window : 0);
  const json::value* types = r.value("layer_types");
  if (types == nullptr || types->is_null()) return ok_status();
  if (!types->is_array() || types->get_array().size() != c.windows.size())
    return invalid_argument(
        cat("config.json: 'layer_types' has not one entry for each of ", c.layers, " layers"));
  for (size_t n = 0; n < c.windows.size(); ++n) {
    const json::value& type = types->get_array()[n];
    const bool local = type == "sliding_attention";
    if (!local && type != "full_attention")
      return invalid_argument(
          cat("config.json: 'layer_types[", n, "]' is neither full_attention nor sliding_attention"));
    c.windows[n] = local ? window : 0;
  }
  return ok_status();
}

}  // namespace

// transformers' ModernBertConfig.
Status read_modernbert(ConfigReader& r, EncoderConfig& c) {
  OAR_ASSIGN(c.width, r.integer({"hidden_size"}, 1, 1 << 16, 768));
  OAR_ASSIGN(c.layers, r.integer({"num_hidden_layers"}, 1, 1024, 22));
  OAR_ASSIGN(c.heads, r.integer({"num_attention_heads"}, 1, 1024, 12));
  OAR_ASSIGN(c.ffn, r.integer({"intermediate_size"}, 1, 1 << 20, 1152));
  OAR_ASSIGN(c.max_context, r.integer({"max_position_embeddings"}, 1, 1 << 24, 8192));
  OAR_ASSIGN(c.activation, r.text({"hidden_activation"}, "gelu"));
  OAR_ASSIGN(c.norm_eps, r.number({"norm_eps"}, 1e-5));
  OAR_ASSIGN(c.norm_bias, r.boolean("norm_bias", false));
  OAR_ASSIGN(c.attention_bias, r.boolean("attention_bias", false));
  OAR_ASSIGN(c.mlp_bias, r.boolean("mlp_bias", false));
  OAR_ASSIGN(c.pooled_bias, r.boolean("classifier_bias", false));
  OAR_ASSIGN(c.pooled_activation, r.text({"classifier_activation"}, "gelu"));
  OAR_ASSIGN(const std::string pooling, r.text({"classifier_pooling"}, "cls"));
  if (pooling != "cls" && pooling != "mean")
    return invalid_argument(cat("config.json: 'classifier_pooling' is '", pooling, "', not cls or mean"));
  c.pooled_mean = pooling == "mean";
  RopeConfig local;
  OAR_ASSIGN(c.rope.theta, r.number({"global_rope_theta"}, 160000));
  OAR_ASSIGN(local.theta, r.number({"local_rope_theta"}, 10000, 160000));
  OAR_RETURN_IF_ERROR(read_theta(r, "full_attention", c.rope.theta));
  OAR_RETURN_IF_ERROR(read_theta(r, "sliding_attention", local.theta));
  if (!(c.rope.theta > 0) || !(local.theta > 0))
    return invalid_argument("config.json: 'global_rope_theta' and 'local_rope_theta' are above 0");
  c.window_rope = local;
  r.without_effect(
      "cls_token_id sep_token_id decoder_bias deterministic_flash_attn sparse_prediction "
      "sparse_pred_ignore_index "
      "embedding_dropout mlp_dropout initializer_cutoff_factor reference_compile repad_logits_with_grad "
      "layer_norm_eps");
  return read_windows(r, c);
}

Val modernbert_hidden(EncoderWriter& b) {
  const int64_t E = b.c.width, F = b.c.ffn;
  const std::string& p = b.prefix;
  const auto norm = [&](Val x, const std::string& name) { return b.norm(x, name, b.e.norm_bias); };
  Val x =
      norm(b.table(p + "embeddings.tok_embeddings.weight", b.in.tokens, b.c.vocab, E), p + "embeddings.norm");
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat(p, "layers.", n, ".");
    const Val qkv =
        b.layer(n == 0 ? x : norm(x, layer + "attn_norm"), layer + "attn.Wqkv", 3 * E, E, b.c.attention_bias);
    const auto part = [&](int64_t k) { return b.split_heads(b.slice(qkv, k * E, (k + 1) * E), b.c.heads); };
    const Val heads[] = {b.rope(part(0), n), b.rope(part(1), n), part(2)};
    const Val a = b.attend(heads[0], heads[1], heads[2], b.c.windows[static_cast<size_t>(n)]);
    x = b.add(x, b.layer(a, layer + "attn.Wo", E, E, b.c.attention_bias));
    const Val both = b.layer(norm(x, layer + "mlp_norm"), layer + "mlp.Wi", 2 * F, E, b.c.mlp_bias);
    const Val gated = b.op("mul", {b.activate(b.slice(both, 0, F), b.c.activation), b.slice(both, F, 2 * F)});
    x = b.add(x, b.layer(gated, layer + "mlp.Wo", E, F, b.c.mlp_bias));
  }
  return norm(x, p + "final_norm");
}

Val modernbert_pooled(EncoderWriter& b, Val x, const std::string& dense) {
  // The mean of a segment is what attention of one head gives where all scores are 0.
  if (b.e.pooled_mean && !b.of_tokens) {
    const Val rows = b.op("reshape", {x}, {{"shape", std::vector<int64_t>{0, 1, b.c.width}}});
    x = b.merge_heads(b.op("attention", {rows, rows, rows, Val{}, b.in.segments},
                           {{"scale", 0.0}, {"causal", int64_t{0}}}));
  }
  const Val h = b.activate(b.layer(head_rows(b, x), dense, b.c.width, b.c.width, b.e.pooled_bias),
                           b.e.pooled_activation);
  return b.norm(h, "head.norm", b.e.norm_bias);
}

}  // namespace oar
