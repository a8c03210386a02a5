// config.json -> ModelConfig: what every architecture has in common; the keys and their defaults are in the
// architectures' own files.
#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/models/decoder_keys.h"
#include "engine/models/encoder.h"

namespace oar {
namespace {

// `layer_types` may repeat what the other keys say, or be what they say it with; it may not contradict them.
Status check_layer_types(ConfigReader& r, const ModelConfig& c) {
  const json::value* v = r.value("layer_types");
  if (v == nullptr || !c.kinds.empty()) return ok_status();  // whoever has kinds has read them
  if (!v->is_array() || v->get_array().size() != c.windows.size()) {
    return invalid_argument(cat("config.json: 'layer_types' is not a list of ", c.layers,
                                " entries, as 'num_hidden_layers' wants"));
  }
  for (size_t k = 0; k < c.windows.size(); ++k) {
    const std::string_view runs = c.is_recurrent(static_cast<int64_t>(k)) ? std::string_view(c.recurrent_type)
                                  : c.windows[k] <= 0                     ? "full_attention"
                                  : c.chunked                             ? "chunked_attention"
                                                                          : "sliding_attention";
    if (!is_layer_type(v->get_array()[k], runs)) {
      return unimplemented(cat("config.json: 'layer_types' has ", json::serialize(v->get_array()[k]),
                               " for layer ", k, ", which would run as ", runs,
                               "; check 'sliding_window' and 'use_sliding_window'"));
    }
  }
  return ok_status();
}

// How many letters apart two names are: Levenshtein's distance.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t same = before + (a[i] == b[j] ? 0 : 1);
      before = row[j + 1];
      row[j + 1] = std::min({same, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// That there is no such architecture, which comes nearest, and what that one leaves of the config: the one
// that leaves least, and among these the one whose name is most alike.
Status unknown_architecture(const json::object& o, std::string_view model_type) {
  std::string nearest, left, names;
  std::pair<size_t, size_t> best{SIZE_MAX, 0};
  for (const std::string& name : architecture_names()) {
    const Architecture* architecture = find_architecture(name);
    if (is_word_of(architecture->not_run, model_type))
      return unimplemented(cat("model_type '", model_type, "' ", architecture->reason));
    names += (names.empty() ? "" : ", ") + name;
    ConfigReader r(o);
    ModelConfig c;
    c.model_type = name;
    if (!architecture->read(r, c).ok()) continue;
    (void)r.value("layer_types");
    const std::vector<std::string> unread = r.unread();
    const std::pair<size_t, size_t> score{unread.size(), distance(name, model_type)};
    if (score >= best) continue;
    best = score;
    nearest = name;
    left.clear();
    constexpr size_t kShown = 12;
    for (size_t k = 0; k < std::min(unread.size(), kShown); ++k) left += (k == 0 ? "" : ", ") + unread[k];
    if (unread.size() > kShown) left += cat(" and ", unread.size() - kShown, " more");
  }
  std::string what = cat("model_type '", model_type, "' is not one that can be run: ", names, "; encoders: ");
  for (const std::string& name : encoder_names()) what += (what.ends_with(": ") ? "" : ", ") + name;
  if (!nearest.empty())
    what += cat("; the nearest is ", nearest,
                left.empty() ? ", which knows all keys of its config" : ", which has nothing for ", left);
  return unimplemented(std::move(what));
}

// A model that ends in another head than that of the next token: its file has that one, and not this.
Status check_task(const json::object& o) {
  const json::value* v = o.if_contains("architectures");
  if (v == nullptr || !v->is_array()) return ok_status();
  for (const json::value& one : v->get_array()) {
    if (!one.is_string()) continue;
    const std::string_view name = one.get_string();
    for (const std::string_view head :
         {"ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "RewardModel"})
      if (name.ends_with(head))
        return unimplemented(cat("config.json: 'architectures' has ", show_name(name),
                                 ", which scores texts; of such models encoders alone are run"));
  }
  return ok_status();
}

}  // namespace

Result<ModelConfig> read_model_config(const json::object& o) {
  ConfigReader r(o);
  ModelConfig c;
  OAR_ASSIGN(c.model_type, r.text({"model_type"}, ""));
  if (c.model_type.empty())
    return invalid_argument("config.json has no 'model_type'; a language model names its architecture there");
  const Architecture* architecture = find_architecture(c.model_type);
  if (architecture == nullptr && is_encoder_config(o))
    return unimplemented(cat("model_type '", c.model_type,
                             "' is an encoder, which `oar serve` and `oar finetune` take; here a language "
                             "model is expected"));
  if (architecture == nullptr) return unknown_architecture(o, c.model_type);
  OAR_RETURN_IF_ERROR(check_task(o));
  OAR_RETURN_IF_ERROR(architecture->read(r, c));
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.heads % c.kv_heads != 0) {
    return invalid_argument(cat("config.json: 'num_attention_heads' ", c.heads,
                                " is no multiple of 'num_key_value_heads' ", c.kv_heads));
  }
  if (c.head_dim == 0) {
    if (c.width % c.heads != 0) {
      return invalid_argument(cat("config.json: '", r.spelling({"hidden_size", "n_embd"}), "' ", c.width,
                                  " is no multiple of '", r.spelling({"num_attention_heads", "n_head"}), "' ",
                                  c.heads));
    }
    c.head_dim = c.width / c.heads;
  }
  if (c.windows.empty()) c.windows.assign(static_cast<size_t>(c.layers), 0);
  OAR_RETURN_IF_ERROR(check_layer_types(r, c));
  OAR_ASSIGN(c.unknown_keys, r.finish(c.model_type));
  return c;
}

}  // namespace oar
