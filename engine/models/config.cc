// config.json -> ModelConfig. A checkpoint is a stranger's file: every number is checked before a shape is
// made of it.
#include <cmath>

#include "engine/base/format.h"
#include "engine/models/model.h"

namespace oar {
namespace {

class Reader {
 public:
  explicit Reader(const json::object& o) : o_(o) {}

  // The first key present, as an integer in [least, most].
  Result<int64_t> integer(std::initializer_list<const char*> keys, int64_t least, int64_t most,
                          std::optional<int64_t> fallback) const {
    const json::value* v = nullptr;
    const char* key = *keys.begin();
    for (const char* k : keys) {
      const json::value* found = o_.if_contains(k);
      if (found && !found->is_null()) {
        v = found, key = k;
        break;
      }
    }
    if (!v) {
      if (fallback) return *fallback;
      return invalid_argument(cat("config.json has no '", key, "'"));
    }
    int64_t n = 0;
    if (v->is_int64()) n = v->get_int64();
    else if (v->is_double() && v->get_double() == std::floor(v->get_double()) &&
             std::abs(v->get_double()) < 9e15)
      n = static_cast<int64_t>(v->get_double());
    else return invalid_argument(cat("config.json: '", key, "' is not an integer"));
    if (n < least || n > most) {
      return invalid_argument(cat("config.json: '", key, "' is ", n, ", expected ", least, " to ", most));
    }
    return n;
  }

  Result<double> number(std::initializer_list<const char*> keys, double fallback) const {
    for (const char* k : keys) {
      const json::value* v = o_.if_contains(k);
      if (!v || v->is_null()) continue;
      if (!v->is_number()) return invalid_argument(cat("config.json: '", k, "' is not a number"));
      return v->to_number<double>();
    }
    return fallback;
  }

  bool boolean(const char* key, bool fallback) const {
    const json::value* v = o_.if_contains(key);
    return v && v->is_bool() ? v->get_bool() : fallback;
  }

  std::string text(std::initializer_list<const char*> keys, const char* fallback) const {
    for (const char* k : keys) {
      const json::value* v = o_.if_contains(k);
      if (v && v->is_string()) return std::string(v->get_string());
    }
    return fallback;
  }

 private:
  const json::object& o_;
};

// Which layers look through a window: `layer_types` where the config has it, else the rules of its model
// type.
Status read_windows(const json::object& o, const Reader& r, ModelConfig& c) {
  c.windows.assign(static_cast<size_t>(c.layers), 0);
  OAR_ASSIGN(const int64_t window, r.integer({"sliding_window"}, 0, INT32_MAX, 0));
  if (window == 0 || !r.boolean("use_sliding_window", c.model_type == "mistral" || c.model_type == "mixtral"))
    return ok_status();
  if (const json::value* types = o.if_contains("layer_types"); types && types->is_array()) {
    const json::array& list = types->get_array();
    if (list.size() != c.windows.size()) {
      return invalid_argument(
          cat("config.json: 'layer_types' has ", list.size(), " entries for ", c.layers, " layers"));
    }
    for (size_t k = 0; k < list.size(); ++k) {
      if (list[k].is_string() && list[k].get_string() == "sliding_attention") c.windows[k] = window;
    }
    return ok_status();
  }
  // Qwen counts the full layers from the bottom.
  const int64_t bottom = c.model_type.rfind("qwen", 0) == 0 ? c.layers : 0;
  OAR_ASSIGN(const int64_t first, r.integer({"max_window_layers"}, 0, INT32_MAX, bottom));
  for (int64_t k = c.model_type.rfind("qwen", 0) == 0 ? first : 0; k < c.layers; ++k)
    c.windows[static_cast<size_t>(k)] = window;
  return ok_status();
}

Status read_experts(const json::object& o, const Reader& r, ModelConfig& c) {
  OAR_ASSIGN(c.experts, r.integer({"num_local_experts", "num_experts"}, 0, 4096, 0));
  if (c.experts == 0) return ok_status();
  OAR_ASSIGN(c.experts_per_token, r.integer({"num_experts_per_tok"}, 1, c.experts, 2));
  OAR_ASSIGN(c.expert_ffn, r.integer({"moe_intermediate_size"}, 1, 1 << 20, c.ffn));
  c.normalize_experts = c.model_type == "mixtral" || r.boolean("norm_topk_prob", false);
  c.dense_layer.assign(static_cast<size_t>(c.layers), false);
  OAR_ASSIGN(const int64_t step, r.integer({"decoder_sparse_step"}, 1, INT32_MAX, 1));
  for (int64_t k = 0; k < c.layers; ++k) c.dense_layer[static_cast<size_t>(k)] = (k + 1) % step != 0;
  if (const json::value* list = o.if_contains("mlp_only_layers"); list && list->is_array()) {
    for (const json::value& v : list->get_array()) {
      if (v.is_int64() && v.get_int64() >= 0 && v.get_int64() < c.layers)
        c.dense_layer[static_cast<size_t>(v.get_int64())] = true;
    }
  }
  return ok_status();
}

}  // namespace

Result<ModelConfig> read_model_config(const json::object& o) {
  const Reader r(o);
  ModelConfig c;
  c.model_type = r.text({"model_type"}, "");
  if (c.model_type.empty())
    return invalid_argument("config.json has no 'model_type'; a language model names its architecture there");
  if (!find_architecture(c.model_type)) {
    std::string names;
    for (const std::string& n : architecture_names()) names += (names.empty() ? "" : ", ") + n;
    return unimplemented(cat("model_type '", c.model_type, "' is not one that can be run: ", names));
  }
  OAR_ASSIGN(c.width, r.integer({"hidden_size", "n_embd"}, 1, 1 << 20, std::nullopt));
  OAR_ASSIGN(c.layers, r.integer({"num_hidden_layers", "n_layer"}, 1, 4096, std::nullopt));
  OAR_ASSIGN(c.heads, r.integer({"num_attention_heads", "n_head"}, 1, 1 << 16, std::nullopt));
  OAR_ASSIGN(c.kv_heads, r.integer({"num_key_value_heads"}, 1, c.heads, c.heads));
  if (c.heads % c.kv_heads != 0) {
    return invalid_argument(cat("config.json: 'num_attention_heads' ", c.heads,
                                " is no multiple of 'num_key_value_heads' ", c.kv_heads));
  }
  if (!o.contains("head_dim") && c.width % c.heads != 0) {
    return invalid_argument(
        cat("config.json: 'hidden_size' ", c.width, " is no multiple of 'num_attention_heads' ", c.heads));
  }
  OAR_ASSIGN(c.head_dim, r.integer({"head_dim"}, 1, 1 << 14, c.width / c.heads));
  OAR_ASSIGN(c.ffn, r.integer({"intermediate_size", "n_inner"}, 1, 1 << 22, 4 * c.width));
  OAR_ASSIGN(c.vocab, r.integer({"vocab_size"}, 1, INT32_MAX, std::nullopt));
  OAR_ASSIGN(c.max_context, r.integer({"max_position_embeddings", "n_positions"}, 1, INT32_MAX, 2048));
  OAR_ASSIGN(c.norm_eps, r.number({"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"}, 1e-5));
  if (!(c.norm_eps >= 0 && c.norm_eps < 1))
    return invalid_argument(cat("config.json: norm epsilon ", c.norm_eps, " is not in [0, 1)"));
  c.activation = r.text({"hidden_act", "activation_function"}, "silu");
  c.tied = r.boolean("tie_word_embeddings", c.model_type == "gpt2");
  c.rope_interleaved = r.boolean("rope_interleaved", false);
  c.linear_out_in = r.boolean("linear_out_in", false);
  OAR_ASSIGN(c.rope_theta, r.number({"rope_theta"}, 10000));
  OAR_ASSIGN(c.partial_rotary, r.number({"partial_rotary_factor"}, 1));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json::value* v = o.if_contains(key);
    if (!v || !v->is_object()) continue;
    c.rope_scaling = v->get_object();
    const Reader inner(c.rope_scaling);
    OAR_ASSIGN(c.rope_theta, inner.number({"rope_theta"}, c.rope_theta));
    OAR_ASSIGN(c.partial_rotary, inner.number({"partial_rotary_factor"}, c.partial_rotary));
  }
  if (!(c.rope_theta > 0))
    return invalid_argument(cat("config.json: 'rope_theta' is ", c.rope_theta, ", expected more than 0"));
  if (!(c.partial_rotary > 0 && c.partial_rotary <= 1))
    return invalid_argument("config.json: 'partial_rotary_factor' is not in (0, 1]");
  OAR_RETURN_IF_ERROR(read_windows(o, r, c));
  OAR_RETURN_IF_ERROR(read_experts(o, r, c));
  return c;
}

}  // namespace oar
