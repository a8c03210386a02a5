// tiktoken's files to a Tokenizer: byte-level BPE as lines of "BASE64 RANK", where the rank is the id, and a
// piece that is a token is that token. Neither the split pattern nor the special tokens are in the file: the
// encodings in circulation are known by how many tokens they have, Qwen's and Kimi's also by their class.
// https://github.com/openai/tiktoken
#include <algorithm>
#include <array>
#include <charconv>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/text/bpe.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/tokenizer_json_stages.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

constexpr std::string_view kR50k =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kThreeDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// Words of cased letters with what is contracted behind them, apart from Chinese characters.
constexpr std::string_view kKimi =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
struct SpecialRun {
  int32_t after;      // id - number of ranks
  const char* text;   // null: no more; "#" stands for a number
  int32_t count = 1;  // of a numbered run
  int32_t first = 0;  // its first number
};
struct TiktokenEncoding {
  const char* name;
  size_t ranks;
  std::string_view pattern;
  bool nfc;
  const char *bos, *eos;  // null: none; bos begins every text
  std::array<SpecialRun, 12> special;
  const char* made_for = nullptr;  // the class of tokenizer_config.json that has it too
  bool listed = false;             // other names of these ids are in its added_tokens_decoder
};
// Llama 3's names are those of 3.1 and later, which gave three reserved tokens a use.
constexpr TiktokenEncoding kEncodings[] = {
    {"Llama 3",
     128000,
     kThreeDigits,
     false,
     "<|begin_of_text|>",
     "<|end_of_text|>",
     {{{0, "<|begin_of_text|>"},
       {1, "<|end_of_text|>"},
       {2, "<|reserved_special_token_#|>", 2, 0},
       {4, "<|finetune_right_pad_id|>"},
       {5, "<|reserved_special_token_#|>", 1, 2},
       {6, "<|start_header_id|>"},
       {7, "<|end_header_id|>"},
       {8, "<|eom_id|>"},
       {9, "<|eot_id|>"},
       {10, "<|python_tag|>"},
       {11, "<|reserved_special_token_#|>", 245, 3}}}},
    {"Qwen",
     151643,
     kQwenSplitPattern,
     true,
     nullptr,
     "<|endoftext|>",
     {{{0, "<|endoftext|>"}, {1, "<|im_start|>"}, {2, "<|im_end|>"}, {3, "<|extra_#|>", 205, 0}}},
     "QWenTokenizer"},
    {"Kimi K2",
     163584,
     kKimi,
     false,
     nullptr,
     "[EOS]",
     {{{0, "[BOS]"}, {1, "[EOS]"}, {2, "<|im_end|>"}, {3, "<|reserved_token_#|>", 253, 163587}}},
     "TikTokenTokenizer",
     true},
    {"cl100k_base",
     100256,
     kThreeDigits,
     false,
     nullptr,
     "<|endoftext|>",
     {{{1, "<|endoftext|>"},
       {2, "<|fim_prefix|>"},
       {3, "<|fim_middle|>"},
       {4, "<|fim_suffix|>"},
       {20, "<|endofprompt|>"}}}},
    {"r50k_base", 50256, kR50k, false, nullptr, "<|endoftext|>", {{{0, "<|endoftext|>"}}}},
};

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0, have = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '=' && i + 2 >= text.size() && text.size() % 4 == 0) break;
    const size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    have += 6;
    if (have < 8) continue;
    have -= 8;
    out += static_cast<char>(bits >> have);
  }
  return out;
}

Result<std::vector<std::string>> parse_ranks(std::string_view file) {
  std::vector<std::string> tokens;
  for (size_t line = 1; !file.empty(); ++line) {
    const size_t end = std::min(file.find('\n'), file.size());
    std::string_view text = file.substr(0, end);
    file.remove_prefix(std::min(end + 1, file.size()));
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (text.empty()) continue;
    const size_t space = text.find(' ');
    size_t rank = 0;
    const std::string_view number = space == std::string_view::npos ? "" : text.substr(space + 1);
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    const auto bytes = from_base64(text.substr(0, std::min(space, text.size())));
    if (!bytes || bytes->empty() || number.empty() || error != std::errc() ||
        stop != number.data() + number.size())
      return data_loss(cat("tiktoken file: line ", line, " is not base64, a space and a rank"));
    if (rank != tokens.size())
      return data_loss(cat("tiktoken file: line ", line, " has rank ", rank, ", expected ", tokens.size()));
    if (tokens.size() >= static_cast<size_t>(kMaxVocabulary))
      return invalid_argument(cat("tiktoken file: more than ", kMaxVocabulary, " tokens"));
    tokens.push_back(to_byte_alphabet(*bytes));
  }
  return tokens;
}

Result<const TiktokenEncoding*> find_encoding(size_t ranks, const json::object& config) {
  const json::value* made_for = config.if_contains("tokenizer_class");
  std::string known;
  for (const TiktokenEncoding& e : kEncodings) {
    if (made_for != nullptr && e.made_for != nullptr && *made_for == json::value(e.made_for)) return &e;
    known += cat(known.empty() ? "" : ", ", e.ranks, " (", e.name, ")");
  }
  for (const TiktokenEncoding& e : kEncodings)
    if (e.ranks == ranks) return &e;
  return unimplemented(cat("a tiktoken file of ", ranks, " tokens is not one whose split pattern is known: ",
                           known, "; save the model's tokenizer.json beside it"));
}

// Names and flags that tokenizer_config.json has for some of the special tokens.
Status rename_listed(const json::object& config, int32_t ranks, std::vector<AddedToken>& added) {
  using namespace tokenizer_json;
  OAR_ASSIGN(const json::array listed, listed_added_tokens(config));
  for (const json::value& v : listed) {
    OAR_ASSIGN(AddedToken t, parse_added_token(v));
    const auto at = static_cast<size_t>(t.id - ranks);
    if (t.id < ranks || at >= added.size() || t.content.empty())
      return invalid_argument(cat("tokenizer_config.json: added_tokens_decoder: ", t.id, " is none of the ",
                                  added.size(), " special tokens from ", ranks, " on, or has no text"));
    added[at] = std::move(t);
  }
  return ok_status();
}

Status add_special(const TiktokenEncoding& e, int32_t ranks, const json::object& config,
                   TokenizerParts& parts) {
  for (const SpecialRun& s : e.special) {
    for (int32_t k = 0; s.text != nullptr && k < s.count; ++k) {
      AddedToken t;
      t.id = ranks + s.after + k;
      t.content = s.text;
      if (const size_t at = t.content.find('#'); at != std::string::npos)
        t.content.replace(at, 1, std::to_string(s.first + k));
      t.special = true;
      parts.added.push_back(std::move(t));
    }
  }
  if (e.listed) OAR_RETURN_IF_ERROR(rename_listed(config, ranks, parts.added));
  for (const AddedToken& t : parts.added) {
    if (e.bos != nullptr && t.content == e.bos) parts.bos = t.id;
    if (t.content == e.eos) parts.eos = t.id;
  }
  if (parts.bos) parts.prefix = {*parts.bos};
  parts.adds_bos = !parts.prefix.empty();
  return ok_status();
}

// Any two neighbours may merge whose texts together are a token; its rank decides. Texts in the byte alphabet
// are cut between its characters, which have one byte or two.
std::vector<MergeTable::Rule> merges_of(const Vocabulary& vocabulary) {
  std::vector<MergeTable::Rule> merges;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    for (size_t at = utf8_length(text[0]); at < text.size(); at += utf8_length(text[at])) {
      const int32_t left = vocabulary.find(text.substr(0, at)), right = vocabulary.find(text.substr(at));
      if (left >= 0 && right >= 0) merges.push_back({left, right, id, static_cast<uint32_t>(id)});
    }
  }
  return merges;
}

}  // namespace

bool is_tiktoken(std::string_view file) {
  const size_t end = file.find('\n');
  const std::string_view line = file.substr(0, std::min({end, file.size(), size_t{4096}}));
  const size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 && from_base64(line.substr(0, space)) &&
         line.find_first_not_of("0123456789\r", space + 1) == std::string_view::npos;
}

Result<TokenizerPtr> tokenizer_from_tiktoken(std::string_view file, std::string_view tokenizer_config_json) {
  OAR_ASSIGN(const std::vector<std::string> tokens, parse_ranks(file));
  json::object says;
  if (!tokenizer_config_json.empty()) {
    OAR_ASSIGN(json::value document, parse_json(tokenizer_config_json, "tokenizer_config.json"));
    if (document.is_object()) says = std::move(document.get_object());
  }
  OAR_ASSIGN(const TiktokenEncoding* encoding, find_encoding(tokens.size(), says));
  auto parts = std::make_unique<TokenizerParts>();
  parts->vocabulary = Vocabulary::build(tokens);
  if (encoding->nfc) parts->normalizer = make_unicode_normalizer(NormalForm::kNfc);
  OAR_ASSIGN(SplitPattern pattern, SplitPattern::compile(encoding->pattern));
  parts->pretokenizer = make_split(std::move(pattern), SplitBehavior::kIsolated, false);
  BpeConfig config;
  config.byte_level = config.ignore_merges = true;
  config.merges = merges_of(parts->vocabulary);
  OAR_ASSIGN(parts->model, BpeModel::create(parts->vocabulary, std::move(config)));
  OAR_RETURN_IF_ERROR(add_special(*encoding, parts->vocabulary.size(), says, *parts));
  OAR_RETURN_IF_ERROR(index_added_tokens(*parts));
  build_byte_level_decoder(*parts);
  return std::make_shared<const Tokenizer>(std::move(parts));
}

}  // namespace oar
