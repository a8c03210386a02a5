// vocab.txt: WordPiece as BERT and ERNIE published it before there was tokenizer.json, a token per line.
// Written out as the tokenizer.json that says the same, so that there is one way a WordPiece tokenizer is
// made.
#include <algorithm>
#include <charconv>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

// The tokens by line. ERNIE's files say "token<TAB>id" on every line; the id then is the line's number, or
// the file is not one of those.
std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  std::vector<std::string_view> tokens;
  for (size_t k = 0; k < lines.size(); ++k) {
    const size_t tab = lines[k].rfind('\t');
    size_t id = 0;
    if (tab == std::string_view::npos) return lines;
    const char* last = lines[k].data() + lines[k].size();
    const auto r = std::from_chars(lines[k].data() + tab + 1, last, id);
    if (r.ec != std::errc() || r.ptr != last || id != k) return lines;
    tokens.push_back(lines[k].substr(0, tab));
  }
  return tokens;
}

std::string token_of(const json::object& config, const char* key, const char* fallback) {
  const json::value* v = config.if_contains(key);
  if (v && v->is_object()) v = v->get_object().if_contains("content");
  return v && v->is_string() ? std::string(v->get_string()) : fallback;
}

bool flag_of(const json::object& config, const char* key, bool fallback) {
  const json::value* v = config.if_contains(key);
  return v && v->is_bool() ? v->get_bool() : fallback;
}

json::object special(const std::string& token, int type) {
  return {{"SpecialToken", json::object{{"id", token}, {"type_id", type}}}};
}
json::object sequence(const char* name, int type) {
  return {{"Sequence", json::object{{"id", name}, {"type_id", type}}}};
}

}  // namespace

Result<TokenizerPtr> tokenizer_from_vocab_txt(std::string_view vocab_txt,
                                              std::string_view tokenizer_config_json) {
  if (vocab_txt.size() > (size_t{1} << 30)) return invalid_argument("vocab.txt is larger than 2^30 bytes");
  if (!is_valid_utf8(vocab_txt)) return invalid_argument("vocab.txt is not valid UTF-8");
  json::object config;
  if (!tokenizer_config_json.empty()) {
    OAR_ASSIGN(json::value document, parse_json(tokenizer_config_json, "tokenizer_config.json"));
    if (!document.is_object()) return invalid_argument("tokenizer_config.json must be an object");
    config = std::move(document.get_object());
  }
  // Of a token that stands on several lines the last counts, as in the dictionaries those files were read
  // into.
  json::object vocab;
  const std::vector<std::string_view> tokens = split_lines(vocab_txt);
  vocab.reserve(tokens.size());
  for (size_t k = 0; k < tokens.size(); ++k) vocab[json::string_view(tokens[k].data(), tokens[k].size())] = k;

  const std::string unk = token_of(config, "unk_token", "[UNK]"),
                    cls = token_of(config, "cls_token", "[CLS]"),
                    sep = token_of(config, "sep_token", "[SEP]");
  json::array added;
  json::object specials;
  std::vector<std::string> named;
  for (const std::string& token :
       {unk, cls, sep, token_of(config, "pad_token", "[PAD]"), token_of(config, "mask_token", "[MASK]")}) {
    const json::value* id = vocab.if_contains(token);
    if (!id || std::find(named.begin(), named.end(), token) != named.end()) continue;
    named.push_back(token);
    added.push_back(json::object{{"id", *id},
                                 {"content", token},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
    specials[token] = json::object{{"id", token}, {"ids", json::array{*id}}, {"tokens", json::array{token}}};
  }
  for (const std::string& token : {unk, cls, sep}) {
    if (!specials.contains(token))
      return invalid_argument(cat("vocab.txt has no line ", token, ", which BERT's tokenizer needs"));
  }
  // What the file's tokens are for, said where tokenizer_from_json() looks.
  if (!config.contains("unk_token")) config["unk_token"] = unk;
  if (!config.contains("cls_token")) config["cls_token"] = cls;
  if (!config.contains("sep_token")) config["sep_token"] = sep;
  if (!config.contains("pad_token") && specials.contains("[PAD]")) config["pad_token"] = "[PAD]";
  const bool lower = flag_of(config, "do_lower_case", true);
  const json::value* strip = config.if_contains("strip_accents");
  const json::object root{
      {"version", "1.0"},
      {"added_tokens", std::move(added)},
      {"normalizer", json::object{{"type", "BertNormalizer"},
                                  {"clean_text", true},
                                  {"handle_chinese_chars", flag_of(config, "tokenize_chinese_chars", true)},
                                  {"strip_accents", strip ? *strip : json::value()},
                                  {"lowercase", lower}}},
      {"pre_tokenizer", json::object{{"type", "BertPreTokenizer"}}},
      {"post_processor",
       json::object{{"type", "TemplateProcessing"},
                    {"single", json::array{special(cls, 0), sequence("A", 0), special(sep, 0)}},
                    {"pair", json::array{special(cls, 0), sequence("A", 0), special(sep, 0), sequence("B", 1),
                                         special(sep, 1)}},
                    {"special_tokens", std::move(specials)}}},
      {"decoder", json::object{{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
      {"model", json::object{{"type", "WordPiece"},
                             {"unk_token", unk},
                             {"continuing_subword_prefix", "##"},
                             {"max_input_chars_per_word", 100},
                             {"vocab", std::move(vocab)}}}};
  auto made = tokenizer_from_json(json::serialize(root), json::serialize(config));
  if (made.ok()) return made;
  return Status(made.status().code(), cat("vocab.txt, read as a tokenizer.json: ", made.status().message()));
}

}  // namespace oar
