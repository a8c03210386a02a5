// GPT-2's original pair of files, vocab.json and merges.txt, to a Tokenizer. The pair holds the byte-level
// BPE alone; how text is split belongs to the class that tokenizer_config.json names. Both together are
// written as the tokenizer.json that the tokenizers package would make of them, so that there is one reader
// to trust.
#include <algorithm>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_json_stages.h"
#include "engine/text/tokenizer_parts.h"

namespace oar {
namespace {

using namespace tokenizer_json;

constexpr std::string_view kEndOfText = "<|endoftext|>";
json::object byte_level(bool prefix_space, bool split) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_space},
          {"trim_offsets", true},
          {"use_regex", split}};
}

// The text of "eos_token": "</s>" or {"content": "</s>", ...}; empty when absent.
std::string_view token_text(const json::value* v) {
  if (v != nullptr && v->is_object()) v = field(v->get_object(), "content");
  return v != nullptr && v->is_string() ? std::string_view(v->get_string()) : std::string_view{};
}

// One "left right" per line behind an optional "#version" line. Symbols of the byte alphabet contain no white
// space.
Result<json::array> parse_merges(std::string_view text) {
  json::array merges;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view merge = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (merge.ends_with('\r')) merge.remove_suffix(1);
    if (merge.empty() || (line == 1 && merge.starts_with("#version"))) continue;
    const size_t space = merge.find(' ');
    if (space == 0 || space == std::string_view::npos || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string_view::npos) {
      return data_loss(cat("merges.txt: line ", line, " must be two symbols with one space between them"));
    }
    merges.push_back(json::array{merge.substr(0, space), merge.substr(space + 1)});
  }
  return merges;
}

// added_tokens_decoder has the ids; older files only name their special tokens, which then are in the
// vocabulary.
Result<json::array> added_tokens(const json::object& config, const json::object& vocab) {
  if (field(config, "added_tokens_decoder") != nullptr) return listed_added_tokens(config);
  json::array out;
  std::vector<std::string_view> names;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token"})
    names.push_back(token_text(field(config, key)));
  if (const json::value* more = field(config, "additional_special_tokens"); more && more->is_array()) {
    for (const json::value& v : more->get_array()) names.push_back(token_text(&v));
  }
  for (const std::string_view name : names) {
    const json::value* id = name.empty() ? nullptr : vocab.if_contains(name);
    if (id == nullptr) continue;
    // Named twice is added once: index_added_tokens() takes the same content and id again as a contradiction.
    const auto same = [&](const json::value& v) { return token_text(&v.get_object().at("content")) == name; };
    if (std::any_of(out.begin(), out.end(), same)) continue;
    out.push_back(json::object{{"id", *id}, {"content", name}, {"special", true}});
  }
  return out;
}

}  // namespace

Result<TokenizerPtr> tokenizer_from_vocab_merges(std::string_view vocab_json, std::string_view merges_txt,
                                                 std::string_view tokenizer_config_json) {
  if (vocab_json.size() + merges_txt.size() > (size_t{1} << 30))
    return invalid_argument("vocab.json and merges.txt are larger than 2^30 bytes together");
  OAR_ASSIGN(json::value vocab, parse_json(vocab_json, "vocab.json"));
  if (!vocab.is_object()) return invalid_argument("vocab.json must be an object of text: id");
  OAR_ASSIGN(json::array merges, parse_merges(merges_txt));
  json::object config{{"bos_token", kEndOfText},
                      {"eos_token", kEndOfText}};  // GPT-2's, which needs no config
  if (!tokenizer_config_json.empty()) {
    OAR_ASSIGN(const json::value document, parse_json(tokenizer_config_json, "tokenizer_config.json"));
    if (!document.is_object()) return invalid_argument("tokenizer_config.json must be an object");
    config = document.get_object();
  }

  json::object root{{"decoder", byte_level(false, true)}};
  const std::string_view made_for = token_text(field(config, "tokenizer_class"));
  if (made_for.empty() || made_for == "GPT2Tokenizer" || made_for == "GPT2TokenizerFast") {
    OAR_ASSIGN(const bool space, bool_field(config, "add_prefix_space", false, "tokenizer_config.json"));
    root["pre_tokenizer"] = byte_level(space, true);
  } else if (made_for == "Qwen2Tokenizer" || made_for == "Qwen2TokenizerFast") {
    root["normalizer"] = json::object{{"type", "NFC"}};
    root["pre_tokenizer"] = json::object{
        {"type", "Sequence"},
        {"pretokenizers", json::array{json::object{{"type", "Split"},
                                                   {"pattern", json::object{{"Regex", kQwenSplitPattern}}},
                                                   {"behavior", "Isolated"},
                                                   {"invert", false}},
                                      byte_level(false, false)}}};
  } else {
    return unimplemented(
        cat("vocab.json and merges.txt of the class ", made_for,
            " are not supported, only GPT2Tokenizer's and Qwen2Tokenizer's; save the model's "
            "tokenizer.json beside them (AutoTokenizer.from_pretrained(...).save_pretrained(...))"));
  }
  OAR_ASSIGN(root["added_tokens"], added_tokens(config, vocab.get_object()));
  root["model"] = json::object{{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(merges)}};
  auto made = from_document(root, json::serialize(config));
  if (made.ok()) return made;
  return Status(made.status().code(),
                cat("vocab.json and merges.txt, read as a tokenizer.json: ", made.status().message()));
}

}  // namespace oar
