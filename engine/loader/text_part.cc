#include "engine/loader/text_part.h"

#include <charconv>
#include <map>
#include <optional>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"

namespace oar {
namespace {

// A tensor's name in a lone text model; nothing for one of another part.
std::optional<std::string> text_name(const std::string& name) {
  struct Prefix {
    std::string_view theirs, ours;
  };
  constexpr Prefix kPrefixes[] = {{"language_model.model.", "model."},
                                  {"model.language_model.", "model."},
                                  {"language_model.lm_head.", "lm_head."},
                                  {"lm_head.", "lm_head."}};
  for (const Prefix& p : kPrefixes)
    if (name.starts_with(p.theirs)) return cat(p.ours, std::string_view(name).substr(p.theirs.size()));
  return std::nullopt;
}

// "vision_tower" of "model.vision_tower.layers.0.weight".
std::string part_of(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  return std::string(name.substr(0, name.find('.')));
}

json::object text_config(const json::object& outer, json::object text) {
  for (const char* key : {"torch_dtype", "dtype", "quantization_config", "bos_token_id", "pad_token_id"}) {
    const json::value* v = outer.if_contains(key);
    if (v != nullptr && !text.contains(key)) text[key] = *v;
  }
  // Its list of ends is that of the chat, the text model's often the first of them alone.
  if (const json::value* v = outer.if_contains("eos_token_id"); v != nullptr && !v->is_null())
    text["eos_token_id"] = *v;
  const json::value* tied = outer.if_contains("tie_word_embeddings");
  if (tied != nullptr && (!text.contains("tie_word_embeddings") || *tied == json::value(true)))
    text["tie_word_embeddings"] = *tied;
  return text;
}

// "a (3), b (1)" of what is left out.
std::string counts(const std::map<std::string, size_t>& left) {
  std::string line;
  for (const auto& [part, count] : left)
    line += cat(line.empty() ? "" : ", ", show_name(part), " (", count, ")");
  return line;
}

// The head that drafts tokens which a tensor is part of: "mtp", or "layer 61", the model having so many or
// fewer.
std::optional<std::string> draft_head(std::string_view name, int64_t layers) {
  for (const std::string_view prefix : {"mtp.", "model.mtp.", "model.mtp_"})
    if (name.starts_with(prefix)) return "mtp";
  for (const std::string_view prefix : {"model.layers.", "backbone.layers.", "blk."}) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    int64_t layer = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    if (error == std::errc() && end != name.data() + name.size() && *end == '.' && layer >= layers)
      return cat("layer ", layer);
  }
  return std::nullopt;
}

}  // namespace

TensorMap take_draft_heads(const json::object& config, TensorMap& tensors,
                           std::vector<std::string>* notices) {
  const json::value* count = config.if_contains("num_hidden_layers");
  const int64_t layers = count != nullptr && count->is_int64() ? count->get_int64() : INT64_MAX;
  TensorMap drafts;
  std::map<std::string, size_t> left;
  for (auto at = tensors.begin(); at != tensors.end();) {
    const auto head = draft_head(at->first, layers);
    if (head) {
      ++left[*head];
      drafts.insert(tensors.extract(at++));
    } else {
      ++at;
    }
  }
  if (!left.empty() && notices != nullptr)
    notices->push_back(cat("tensors of draft heads, or behind the last layer, are not run: ", counts(left)));
  return drafts;
}

void keep_text_part(json::object& config, TensorMap& tensors, std::vector<std::string>* notices) {
  const json::value* text = config.if_contains("text_config");
  if (text == nullptr || !text->is_object() || !text->get_object().contains("model_type")) return;
  config = text_config(config, text->get_object());

  TensorMap kept;
  std::map<std::string, size_t> left;
  while (!tensors.empty()) {
    auto node = tensors.extract(tensors.begin());
    // Some converters take the other parts away and leave the rest under a lone model's names.
    const bool lone = node.key().starts_with("model.layers.") ||
                      node.key().starts_with("model.embed_tokens.") ||
                      node.key().starts_with("model.norm.") || node.key().starts_with("mtp.");
    auto name = lone ? std::optional(node.key()) : text_name(node.key());
    if (!name) {
      ++left[part_of(node.key())];
      continue;
    }
    node.key() = std::move(*name);
    kept.insert(std::move(node));
  }
  tensors = std::move(kept);
  if (left.empty() || notices == nullptr) return;
  notices->push_back(cat("tensors of other parts than text are left out: ", counts(left)));
}

}  // namespace oar
