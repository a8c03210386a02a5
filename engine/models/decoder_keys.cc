#include "engine/models/decoder_keys.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar {
namespace {

Status read_windows(ConfigReader& r, const DecoderDefaults& d, ModelConfig& c) {
  if (d.windows == Windows::kNone) return ok_status();
  OAR_ASSIGN(int64_t window, r.integer({"sliding_window"}, 0, INT32_MAX, d.window, 0));
  const bool switched = d.windows != Windows::kAll && d.windows != Windows::kPattern;
  if (switched) {
    OAR_ASSIGN(const bool use, r.boolean("use_sliding_window", false));
    if (!use) window = 0;
  }
  c.windows.assign(static_cast<size_t>(c.layers), window);
  if (d.windows == Windows::kAll || d.windows == Windows::kSwitched) return ok_status();
  if (d.windows == Windows::kUpper) {
    OAR_ASSIGN(const int64_t first, r.integer({"max_window_layers"}, 0, INT32_MAX, 28));
    std::fill_n(c.windows.begin(), std::min(first, c.layers), 0);
  }
  const json::value* types = r.value("layer_types");  // its length and words are checked by the caller
  const bool listed = types != nullptr && types->is_array();
  if (d.windows == Windows::kPattern) {
    if (listed) {
      r.without_effect("sliding_window_pattern");
    } else {
      OAR_ASSIGN(const int64_t every, r.integer({"sliding_window_pattern"}, 1, INT32_MAX, d.window_pattern));
      for (int64_t k = every - 1; k < c.layers; k += every) c.windows[static_cast<size_t>(k)] = 0;
    }
  }
  for (size_t k = 0; listed && k < std::min(c.windows.size(), types->get_array().size()); ++k)
    c.windows[k] = types->get_array()[k] == json::value("sliding_attention") ? window : 0;
  for (size_t k = 0; !listed && d.windows == Windows::kUnrotated && k < c.rotated.size(); ++k)
    if (c.rotated[k]) c.windows[k] = 0;
  return ok_status();
}

// Of one kind of layers: theta, the rotated part and the rest of `o`.
Status read_rope_object(const json::object& o, const DecoderDefaults& d, RopeConfig& rope) {
  rope.scaling = o;
  ConfigReader inner(rope.scaling);
  OAR_ASSIGN(rope.theta, inner.number({"rope_theta"}, rope.theta));
  OAR_ASSIGN(rope.partial, inner.number({"partial_rotary_factor"}, rope.partial));
  inner.without_effect(
      "type rope_type factor factors low_freq_factor high_freq_factor original_max_position_embeddings "
      "beta_fast beta_slow mscale mscale_all_dim attention_factor truncate short_factor long_factor alpha "
      "short_mscale long_mscale finetuned max_position_embeddings llama_4_scaling_beta");
  // How positions of pictures share the frequencies: text has the same for all three.
  if (d.picture_rope) inner.without_effect("mrope_section mrope_interleaved");
  OAR_ASSIGN(const std::string unknown, inner.finish("rope_scaling"));
  if (!unknown.empty()) return unimplemented(cat("config.json: rope_scaling has ", unknown));
  return ok_status();
}

Status check_rope(const RopeConfig& rope) {
  if (!(rope.theta > 0))
    return invalid_argument(cat("config.json: 'rope_theta' is ", rope.theta, ", expected more than 0"));
  if (!(rope.partial > 0 && rope.partial <= 1))
    return invalid_argument("config.json: 'partial_rotary_factor' is not in (0, 1]");
  return ok_status();
}

// A list of 0 and 1 (or false and true), one for each layer, into `out`, which keeps its value where there is
// none.
Status read_layer_flags(ConfigReader& r, const char* key, const ModelConfig& c, std::vector<bool>& out) {
  const json::value* v = r.value(key);
  if (v == nullptr) return ok_status();
  if (!v->is_array() || v->get_array().size() < static_cast<size_t>(c.layers))
    return invalid_argument(cat("config.json: '", key, "' is not a list of ", c.layers,
                                " entries, as 'num_hidden_layers' wants"));
  for (size_t k = 0; k < static_cast<size_t>(c.layers); ++k) {
    const json::value& one = v->get_array()[k];
    const bool number = one.is_int64() && (one.get_int64() == 0 || one.get_int64() == 1);
    if (!number && !one.is_bool())
      return invalid_argument(cat("config.json: '", key, "' has ", json::serialize(one).substr(0, 80),
                                  " for layer ", k, ", expected 0 or 1"));
    out[k] = number ? one.get_int64() == 1 : one.get_bool();
  }
  return ok_status();
}

// The layers that rotate: those with a 1 in `no_rope_layers`, else all but every so manieth.
Status read_rotated(ConfigReader& r, const DecoderDefaults& d, ModelConfig& c) {
  if (d.unrotated_every == 0) return ok_status();
  OAR_ASSIGN(const int64_t every, r.integer({"no_rope_layer_interval"}, 1, INT32_MAX, d.unrotated_every));
  c.rotated.assign(static_cast<size_t>(c.layers), true);
  for (int64_t k = every - 1; k < c.layers; k += every) c.rotated[static_cast<size_t>(k)] = false;
  return read_layer_flags(r, "no_rope_layers", c, c.rotated);
}

}  // namespace

Status read_rope(ConfigReader& r, const DecoderDefaults& d, ModelConfig& c) {
  OAR_ASSIGN(c.rope.theta, r.number({"rope_theta"}, d.rope_theta));
  OAR_ASSIGN(c.rope.partial, r.number({"partial_rotary_factor"}, d.partial_rotary.value_or(1)));
  if (d.window_theta) c.window_rope = RopeConfig{*d.window_theta, c.rope.partial, {}};
  const char *key = nullptr, *split_key = nullptr;
  const json::object *flat = nullptr, *split = nullptr;
  for (const char* spelling : {"rope_parameters", "rope_scaling"}) {  // the older goes first where both are
    const json::value* v = r.value(spelling);
    if (v == nullptr) continue;
    if (!v->is_object()) return invalid_argument(cat("config.json: '", spelling, "' is not an object"));
    const json::object& o = v->get_object();
    if (o.if_contains("full_attention") != nullptr || o.if_contains("sliding_attention") != nullptr) {
      split = &o, split_key = spelling;
    } else if (!o.empty()) {
      flat = &o, key = spelling;
    }
  }
  if (flat != nullptr && split == nullptr && c.window_rope && std::string_view(key) == "rope_parameters")
    return invalid_argument(cat("config.json: '", key,
                                "' is not split into 'full_attention' and 'sliding_attention', as ",
                                c.model_type, " wants"));
  json::object whole;  // of layers without a window: what is split, then what is not
  if (split != nullptr) {
    const json::value *full = split->if_contains("full_attention"),
                      *window = split->if_contains("sliding_attention");
    if (!c.window_rope || split->size() != size_t{full != nullptr} + size_t{window != nullptr})
      return unimplemented(cat("config.json: '", split_key, "' is split by layer types that ", c.model_type,
                               " is not run with here"));
    for (const json::value* part : {full, window}) {
      if (part == nullptr || part->is_null()) continue;
      if (!part->is_object())
        return invalid_argument(cat("config.json: '", split_key, "' has a layer type that is not an object"));
      if (part == full) whole = part->get_object();
      else OAR_RETURN_IF_ERROR(read_rope_object(part->get_object(), d, *c.window_rope));
    }
  }
  if (flat != nullptr) {
    for (const auto& member : *flat) whole.insert_or_assign(member.key(), member.value());
  }
  if (!whole.empty()) OAR_RETURN_IF_ERROR(read_rope_object(whole, d, c.rope));
  if (const json::value* v = r.value("original_max_position_embeddings"))
    c.rope.scaling["original_max_position_embeddings"] = *v;
  OAR_RETURN_IF_ERROR(check_rope(c.rope));
  return c.window_rope ? check_rope(*c.window_rope) : ok_status();
}

namespace {}  // namespace

Result<double> positive(ConfigReader& r, const char* key, double absent) {
  OAR_ASSIGN(const double v, r.number({key}, absent));
  if (!(v > 0)) return invalid_argument(cat("config.json: '", key, "' is ", v, ", expected more than 0"));
  return v;
}

Result<double> norm_epsilon(ConfigReader& r, const char* key, double absent) {
  OAR_ASSIGN(const double v, r.number({key}, absent));
  if (!(v >= 0 && v < 1))
    return invalid_argument(cat("config.json: '", key, "' is ", v, ", expected at least 0 and less than 1"));
  return v;
}

Status read_full_heads(ConfigReader& r, int64_t head_dim, bool own_kv_heads, ModelConfig& c) {
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  const HeadShape usual{c.kv_heads, c.head_dim};
  HeadShape full{c.kv_heads, head_dim};
  OAR_ASSIGN(full.head_dim, r.integer({"global_head_dim"}, 1, 1 << 14, head_dim, c.head_dim));
  OAR_ASSIGN(const int64_t kv_heads,
             r.integer({"num_global_key_value_heads"}, 1, c.heads, c.kv_heads, c.kv_heads));
  if (own_kv_heads) full.kv_heads = kv_heads;
  if (const json::value* v = r.value("per_layer_config")) {
    if (!v->is_object()) return invalid_argument("config.json: 'per_layer_config' is not an object");
    std::optional<HeadShape> found;
    size_t read = 0;
    for (int64_t n = 0; n < c.layers; ++n) {
      HeadShape own = usual;
      if (const json::value* o = v->get_object().if_contains(std::to_string(n))) {
        if (!o->is_object())
          return invalid_argument(cat("config.json: 'per_layer_config' has no object for layer ", n));
        ConfigReader inner(o->get_object());
        OAR_ASSIGN(own.head_dim, inner.integer({"head_dim"}, 1, 1 << 14, c.head_dim));
        OAR_ASSIGN(own.kv_heads, inner.integer({"num_key_value_heads"}, 1, c.heads, c.kv_heads));
        OAR_ASSIGN(const std::string unknown, inner.finish("per_layer_config"));
        if (!unknown.empty())
          return unimplemented(cat("config.json: 'per_layer_config' has ", unknown, " for layer ", n));
        ++read;
      }
      if (!c.has_window(n) && !found) found = own;
      if (own != (c.has_window(n) ? usual : *found))
        return unimplemented(cat("config.json: 'per_layer_config' gives layer ", n, " ", own.kv_heads,
                                 " heads of ", own.head_dim, ", other than layers of its kind"));
    }
    if (read != v->get_object().size())
      return invalid_argument(
          cat("config.json: 'per_layer_config' names other layers than 0 to ", c.layers - 1));
    if (found) full = *found;
  }
  if (c.heads % full.kv_heads != 0)
    return invalid_argument(
        cat("config.json: 'num_attention_heads' ", c.heads, " is no multiple of '",
            full.kv_heads == c.kv_heads ? "num_key_value_heads" : "num_global_key_value_heads", "' ",
            full.kv_heads));
  c.full_heads = full;
  return ok_status();
}

Status read_shared_kv(ConfigReader& r, ModelConfig& c) {
  OAR_ASSIGN(c.shared_kv_layers, r.integer({"num_kv_shared_layers"}, 0, c.layers - 1, 0, 0));
  for (int64_t n = c.kv_layers(); n < c.layers; ++n) {
    if (c.has_window(c.kv_layer(n)) != c.has_window(n))
      return invalid_argument(cat("config.json: 'num_kv_shared_layers' is ", c.shared_kv_layers,
                                  ", but no layer before those is of the kind of layer ", n));
  }
  return ok_status();
}

Status read_experts(ConfigReader& r, const ExpertDefaults& d, ModelConfig& c) {
  static constexpr ConfigReader::Keys kExperts = {"num_local_experts", "num_experts", "n_routed_experts",
                                                  "moe_num_experts"},
                                      kPerToken = {"num_experts_per_tok", "moe_k", "top_k_experts"};
  OAR_ASSIGN(c.experts, r.integer(kExperts, 0, 4096, d.count));
  OAR_ASSIGN(c.experts_per_token, r.integer(kPerToken, c.experts > 0 ? 1 : 0, 4096, d.per_token));
  OAR_ASSIGN(c.expert_ffn, r.integer({"moe_intermediate_size"}, 1, 1 << 20, d.ffn == 0 ? c.ffn : d.ffn));
  OAR_ASSIGN(c.route.normalize, r.boolean("norm_topk_prob", d.normalize));
  if (c.experts > 0 && c.experts_per_token > c.experts) {
    return invalid_argument(cat("config.json: '", r.spelling(kPerToken), "' is ", c.experts_per_token,
                                ", more than the ", c.experts, " of '", r.spelling(kExperts), "'"));
  }
  c.dense_layer.assign(static_cast<size_t>(c.layers), false);
  OAR_ASSIGN(const int64_t step, r.integer({"decoder_sparse_step"}, 1, INT32_MAX, 1));
  for (int64_t k = 0; k < c.layers; ++k) c.dense_layer[static_cast<size_t>(k)] = (k + 1) % step != 0;
  const json::value* list = r.value("mlp_only_layers");
  if (list == nullptr) return ok_status();
  if (!list->is_array()) return invalid_argument("config.json: 'mlp_only_layers' is not a list");
  for (const json::value& v : list->get_array()) {
    if (!v.is_int64()) return invalid_argument("config.json: 'mlp_only_layers' is not a list of integers");
    if (v.get_int64() >= 0 && v.get_int64() < c.layers)
      c.dense_layer[static_cast<size_t>(v.get_int64())] = true;
  }
  return ok_status();
}

Status read_corrected(ConfigReader& r, ModelConfig& c) {
  c.route.score = "sigmoid";
  OAR_RETURN_IF_ERROR(r.expect("scoring_func", "sigmoid"));
  return r.expect("topk_method", "noaux_tc");
}

bool is_layer_type(const json::value& type, std::string_view runs) {
  return type == json::value(runs) || (runs == "linear_attention" && type == json::value("mamba")) ||
         (runs == "full_attention" && type == json::value("attention"));
}

Status read_scanned(ConfigReader& r, const char* kind, int64_t interval, ModelConfig& c) {
  c.recurrent_type = kind;
  c.recurrent.assign(static_cast<size_t>(c.layers), false);
  const json::value* types = r.value("layer_types");  // its length and other words are checked by the caller
  if (types != nullptr && types->is_array()) {
    r.without_effect("full_attention_interval");
    for (size_t k = 0; k < std::min(c.recurrent.size(), types->get_array().size()); ++k)
      c.recurrent[k] = is_layer_type(types->get_array()[k], kind);
    return ok_status();
  }
  OAR_ASSIGN(const int64_t every, r.integer({"full_attention_interval"}, 1, INT32_MAX, interval));
  for (int64_t k = 0; k < c.layers; ++k) c.recurrent[static_cast<size_t>(k)] = (k + 1) % every != 0;
  return ok_status();
}

Status check_gate(const ModelConfig& c, const char* key) {
  for (const char* known : {"silu", "swish", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"})
    if (c.activation == known) return ok_status();
  return unimplemented(
      cat("config.json: '", key, "' is '", c.activation, "'; gated MLPs here use silu or gelu_pytorch_tanh"));
}

Status read_decoder(ConfigReader& r, const DecoderDefaults& d, ModelConfig& c) {
  OAR_ASSIGN(c.vocab, r.integer({"vocab_size"}, 1, INT32_MAX, d.vocab));
  OAR_ASSIGN(c.width, r.integer({"hidden_size"}, 1, 1 << 20, d.width));
  OAR_ASSIGN(c.layers, r.integer({"num_hidden_layers"}, 1, 4096, d.layers));
  OAR_ASSIGN(c.heads, r.integer({"num_attention_heads"}, 1, 1 << 16, d.heads));
  OAR_ASSIGN(c.kv_heads, r.integer({"num_key_value_heads"}, 1, c.heads, d.kv_heads, 0));
  OAR_ASSIGN(c.head_dim, r.integer({"head_dim"}, 1, 1 << 14, d.head_dim, 0));
  OAR_ASSIGN(c.ffn, r.integer({"intermediate_size"}, 1, 1 << 22, d.ffn));
  OAR_ASSIGN(c.max_context, r.integer({"max_position_embeddings"}, 1, INT32_MAX, d.max_context));
  OAR_ASSIGN(c.norm_eps, norm_epsilon(r, d.norm_eps_key, d.norm_eps));
  OAR_ASSIGN(c.activation, r.text({d.activation_key}, d.activation));
  OAR_ASSIGN(c.tied, r.boolean("tie_word_embeddings", d.tied));
  OAR_ASSIGN(c.attention_bias, r.boolean(d.bias_key, d.attention_bias));
  c.output_bias = c.attention_bias || d.output_bias;
  const bool pairs = c.rope_interleaved;  // of the architecture
  OAR_ASSIGN(c.rope_interleaved, r.boolean("rope_interleaved", pairs));
  c.paired_rows = c.rope_interleaved && !pairs;
  r.without_effect("is_decoder");
  OAR_RETURN_IF_ERROR(read_rope(r, d, c));
  OAR_RETURN_IF_ERROR(read_rotated(r, d, c));
  return read_windows(r, d, c);
}

}  // namespace oar
