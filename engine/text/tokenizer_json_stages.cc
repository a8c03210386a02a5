// One branch per type name; an unknown name is UNIMPLEMENTED and says so.
#include "engine/text/tokenizer_json_stages.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "engine/base/format.h"
#include "engine/text/charsmap.h"
#include "engine/text/utf8.h"
#include "engine/text/vocabulary.h"

namespace oar::tokenizer_json {
namespace {

// The GPT-2 pattern, https://github.com/openai/gpt-2/blob/master/src/encoder.py
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kPunctuationPattern = R"([!-/:-@\[-`{-~\p{P}])";
constexpr int kMaxNesting = 8;  // Sequence in Sequence
constexpr size_t kMaxSteps = 256;

Result<std::string> type_of(const json::object& o, std::string_view where) {
  return string_field(o, "type", where);
}

Status unknown(std::string_view where, std::string_view type) {
  return unimplemented(cat("tokenizer.json: ", where, " of type \"", type, "\" is not supported"));
}

Result<std::string> decode_base64(std::string_view text, std::string_view where) {
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int count = 0;
  size_t end = text.size();
  while (end > 0 && text[end - 1] == '=') --end;
  for (const char c : text.substr(0, end)) {
    uint32_t v;
    if (c >= 'A' && c <= 'Z') v = static_cast<uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z') v = static_cast<uint32_t>(c - 'a') + 26;
    else if (c >= '0' && c <= '9') v = static_cast<uint32_t>(c - '0') + 52;
    else if (c == '+') v = 62;
    else if (c == '/') v = 63;
    else return invalid_argument(cat("tokenizer.json: ", where, " is not valid base64"));
    bits = (bits << 6) | v;
    if ((count += 6) >= 8) {
      count -= 8;
      out += static_cast<char>((bits >> count) & 0xFF);
    }
  }
  return out;
}

// {"String": "..."} or {"Regex": "..."}
struct PatternField {
  bool regex = false;
  std::string text;
};
Result<PatternField> pattern_field(const json::object& o, std::string_view where) {
  const json::value* v = field(o, "pattern");
  if (v && v->is_string()) return PatternField{false, std::string(v->get_string())};
  if (v && v->is_object()) {
    for (const bool regex : {false, true})
      if (const json::value* s = field(v->get_object(), regex ? "Regex" : "String"); s && s->is_string())
        return PatternField{regex, std::string(s->get_string())};
  }
  return invalid_argument(
      cat("tokenizer.json: ", where, ".pattern must be {\"String\": ...} or {\"Regex\": ...}"));
}

Result<char32_t> character_field(const json::object& o, std::string_view key, std::string_view where) {
  const Result<std::string> text = string_field(o, key, where);
  if (!text.ok()) return text.status();
  const CodePoint c = text->empty() ? CodePoint{} : decode_utf8(*text, 0);
  if (text->empty() || c.length != text->size())
    return invalid_argument(
        cat("tokenizer.json: ", where, ".", key, " must be one character, got \"", *text, "\""));
  return c.value;
}

Status add_normalizer(const json::value& v, int depth, std::vector<NormalizerPtr>& steps) {
  constexpr std::string_view kWhere = "normalizer";
  if (depth > kMaxNesting || steps.size() > kMaxSteps)
    return invalid_argument("tokenizer.json: normalizer nests too deep or has too many steps");
  OAR_ASSIGN(const json::object* o, as_object(v, kWhere));
  OAR_ASSIGN(const std::string type, type_of(*o, kWhere));
  if (type == "Sequence") {
    OAR_ASSIGN(const json::array* list, array_field(*o, "normalizers", kWhere));
    for (const json::value& e : *list) OAR_RETURN_IF_ERROR(add_normalizer(e, depth + 1, steps));
  } else if (type == "NFC") {
    steps.push_back(make_unicode_normalizer(NormalForm::kNfc));
  } else if (type == "NFD") {
    steps.push_back(make_unicode_normalizer(NormalForm::kNfd));
  } else if (type == "NFKC") {
    steps.push_back(make_unicode_normalizer(NormalForm::kNfkc));
  } else if (type == "NFKD") {
    steps.push_back(make_unicode_normalizer(NormalForm::kNfkd));
  } else if (type == "Lowercase") {
    steps.push_back(make_lowercase_normalizer());
  } else if (type == "StripAccents") {
    steps.push_back(make_strip_accents_normalizer());
  } else if (type == "Nmt") {
    steps.push_back(make_nmt_normalizer());
  } else if (type == "ByteLevel") {
    steps.push_back(make_byte_level_normalizer());
  } else if (type == "Strip") {
    OAR_ASSIGN(const bool left, bool_field(*o, "strip_left", true, kWhere));
    OAR_ASSIGN(const bool right, bool_field(*o, "strip_right", true, kWhere));
    steps.push_back(make_strip_normalizer(left, right));
  } else if (type == "Prepend") {
    OAR_ASSIGN(std::string prefix, string_field(*o, "prepend", kWhere));
    steps.push_back(make_prepend_normalizer(std::move(prefix)));
  } else if (type == "Replace") {
    OAR_ASSIGN(PatternField pattern, pattern_field(*o, "normalizer Replace"));
    OAR_ASSIGN(std::string content, string_field(*o, "content", kWhere));
    if (pattern.regex) {
      OAR_ASSIGN(SplitPattern compiled, SplitPattern::compile(pattern.text));
      steps.push_back(make_replace_normalizer(std::move(compiled), std::move(content)));
    } else if (!pattern.text.empty()) {
      steps.push_back(make_replace_normalizer(std::move(pattern.text), std::move(content)));
    }
  } else if (type == "BertNormalizer") {
    BertNormalizerOptions options;
    OAR_ASSIGN(options.clean_text, bool_field(*o, "clean_text", true, kWhere));
    OAR_ASSIGN(options.handle_chinese_chars, bool_field(*o, "handle_chinese_chars", true, kWhere));
    OAR_ASSIGN(options.lowercase, bool_field(*o, "lowercase", true, kWhere));
    OAR_ASSIGN(options.strip_accents, bool_field(*o, "strip_accents", options.lowercase, kWhere));
    steps.push_back(make_bert_normalizer(options));
  } else if (type == "Precompiled") {
    const json::value* blob = field(*o, "precompiled_charsmap");
    if (blob && !blob->is_string())
      return invalid_argument("tokenizer.json: normalizer.precompiled_charsmap must be a base64 string");
    if (blob) {
      OAR_ASSIGN(const std::string bytes,
                 decode_base64(blob->get_string(), "normalizer.precompiled_charsmap"));
      OAR_ASSIGN(Charsmap charsmap, Charsmap::parse(bytes));
      if (!charsmap.empty()) steps.push_back(make_precompiled_normalizer(std::move(charsmap)));
    }
  } else {
    return unknown(kWhere, type);
  }
  return ok_status();
}

Result<SplitBehavior> behavior_field(const json::object& o, std::string_view where) {
  const json::value* v = field(o, "behavior");
  if (!v) return SplitBehavior::kIsolated;
  constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  for (const auto& [name, behavior] : kNames)
    if (v->is_string() && v->get_string() == name) return behavior;
  return invalid_argument(cat("tokenizer.json: ", where,
                              ".behavior must be one of Removed, Isolated, "
                              "MergedWithPrevious, MergedWithNext, Contiguous"));
}

Status add_split(std::string_view pattern, SplitBehavior behavior, bool invert, PreTokenizerParts& out) {
  OAR_ASSIGN(SplitPattern compiled, SplitPattern::compile(pattern));
  out.steps.push_back(make_split(std::move(compiled), behavior, invert));
  return ok_status();
}

Status add_pretokenizer(const json::value& v, int depth, PreTokenizerParts& out) {
  constexpr std::string_view kWhere = "pre_tokenizer";
  if (depth > kMaxNesting || out.steps.size() > kMaxSteps)
    return invalid_argument("tokenizer.json: pre_tokenizer nests too deep or has too many steps");
  OAR_ASSIGN(const json::object* o, as_object(v, kWhere));
  OAR_ASSIGN(const std::string type, type_of(*o, kWhere));
  if (type != "Sequence") out.ends_in_byte_alphabet = false;
  if (type == "Sequence") {
    OAR_ASSIGN(const json::array* list, array_field(*o, "pretokenizers", kWhere));
    for (const json::value& e : *list) OAR_RETURN_IF_ERROR(add_pretokenizer(e, depth + 1, out));
  } else if (type == "ByteLevel") {
    OAR_ASSIGN(const bool prefix, bool_field(*o, "add_prefix_space", true, kWhere));
    OAR_ASSIGN(const bool use_regex, bool_field(*o, "use_regex", true, kWhere));
    if (prefix) out.steps.push_back(make_prefix_space());
    if (use_regex) OAR_RETURN_IF_ERROR(add_split(kGpt2Pattern, SplitBehavior::kIsolated, false, out));
    out.steps.push_back(make_byte_alphabet());
    out.ends_in_byte_alphabet = true;
  } else if (type == "Split") {
    OAR_ASSIGN(const PatternField pattern, pattern_field(*o, "pre_tokenizer Split"));
    OAR_ASSIGN(const SplitBehavior behavior, behavior_field(*o, kWhere));
    OAR_ASSIGN(const bool invert, bool_field(*o, "invert", false, kWhere));
    OAR_ASSIGN(SplitPattern compiled,
               pattern.regex ? SplitPattern::compile(pattern.text) : SplitPattern::literal(pattern.text));
    out.steps.push_back(make_split(std::move(compiled), behavior, invert));
  } else if (type == "Whitespace") {
    return add_split(R"(\w+|[^\w\s]+)", SplitBehavior::kRemoved, true, out);
  } else if (type == "WhitespaceSplit") {
    return add_split(R"(\s)", SplitBehavior::kRemoved, false, out);
  } else if (type == "BertPreTokenizer") {
    OAR_RETURN_IF_ERROR(add_split(R"(\s)", SplitBehavior::kRemoved, false, out));
    return add_split(kPunctuationPattern, SplitBehavior::kIsolated, false, out);
  } else if (type == "Punctuation") {
    OAR_ASSIGN(const SplitBehavior behavior, behavior_field(*o, kWhere));
    return add_split(kPunctuationPattern, behavior, false, out);
  } else if (type == "Digits") {
    OAR_ASSIGN(const bool individual, bool_field(*o, "individual_digits", false, kWhere));
    return add_split(R"(\p{N})", individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false,
                     out);
  } else if (type == "CharDelimiterSplit") {
    OAR_ASSIGN(const char32_t delimiter, character_field(*o, "delimiter", kWhere));
    OAR_ASSIGN(SplitPattern compiled, SplitPattern::literal(to_utf8(delimiter)));
    out.steps.push_back(make_split(std::move(compiled), SplitBehavior::kRemoved, false));
  } else if (type == "FixedLength") {
    OAR_ASSIGN(const int64_t length, int_field(*o, "length", 5, kWhere));
    if (length < 1 || length > 1024)
      return invalid_argument(cat("tokenizer.json: pre_tokenizer.length must be 1..1024, got ", length));
    return add_split(cat(R"([\x{0}-\x{10FFFF}]{1,)", length, "}"), SplitBehavior::kIsolated, false, out);
  } else if (type == "Metaspace") {
    OAR_ASSIGN(const char32_t replacement, character_field(*o, "replacement", kWhere));
    OAR_ASSIGN(const bool prefix, bool_field(*o, "add_prefix_space", true, kWhere));
    OAR_ASSIGN(const bool split, bool_field(*o, "split", true, kWhere));
    PrependScheme scheme = prefix ? PrependScheme::kAlways : PrependScheme::kNever;
    if (field(*o, "prepend_scheme")) {
      OAR_ASSIGN(const std::string name, string_field(*o, "prepend_scheme", kWhere));
      if (name == "always" && prefix) scheme = PrependScheme::kAlways;
      else if (name == "first" && prefix) scheme = PrependScheme::kFirst;
      else if (name == "never") scheme = PrependScheme::kNever;
      else
        return invalid_argument(cat("tokenizer.json: pre_tokenizer.prepend_scheme \"", name,
                                    "\" is unknown or contradicts add_prefix_space"));
    }
    out.steps.push_back(make_metaspace(to_utf8(replacement), scheme, split));
  } else {
    return unknown(kWhere, type);
  }
  return ok_status();
}

Result<int32_t> token_id(const json::value& v, std::string_view where) {
  int64_t id = -1;
  if (v.is_int64()) id = v.get_int64();
  if (id < 0 || id > INT32_MAX)
    return invalid_argument(cat("tokenizer.json: ", where, " has a token id out of range"));
  return static_cast<int32_t>(id);
}

// ["[SEP]", 102]
Result<int32_t> token_pair_field(const json::object& o, std::string_view key) {
  OAR_ASSIGN(const json::array* pair, array_field(o, key, "post_processor"));
  if (pair->size() != 2)
    return invalid_argument(cat("tokenizer.json: post_processor.", key, " must be [text, id]"));
  return token_id((*pair)[1], cat("post_processor.", key));
}

Result<PostProcessor> parse_template(const json::object& o) {
  PostProcessor out;
  OAR_ASSIGN(const json::array* single, array_field(o, "single", "post_processor"));
  const json::value* specials = field(o, "special_tokens");
  bool seen_text = false;
  for (const json::value& item : *single) {
    OAR_ASSIGN(const json::object* entry, as_object(item, "post_processor.single"));
    if (const json::value* sequence = field(*entry, "Sequence")) {
      OAR_ASSIGN(const json::object* s, as_object(*sequence, "post_processor.single.Sequence"));
      OAR_ASSIGN(const std::string name, string_field(*s, "id", "post_processor.single.Sequence"));
      if (seen_text || name != "A")
        return unimplemented(
            "tokenizer.json: post_processor.single must contain the sequence A exactly once");
      seen_text = true;
      continue;
    }
    const json::value* special = field(*entry, "SpecialToken");
    if (!special)
      return invalid_argument(
          "tokenizer.json: post_processor.single has an entry that is neither "
          "SpecialToken nor Sequence");
    OAR_ASSIGN(const json::object* s, as_object(*special, "post_processor.single.SpecialToken"));
    OAR_ASSIGN(const std::string name, string_field(*s, "id", "post_processor.single.SpecialToken"));
    const json::value* definition =
        specials && specials->is_object() ? field(specials->get_object(), name) : nullptr;
    if (!definition)
      return invalid_argument(
          cat("tokenizer.json: post_processor.special_tokens does not define \"", name, "\""));
    OAR_ASSIGN(const json::object* d, as_object(*definition, "post_processor.special_tokens"));
    OAR_ASSIGN(const json::array* ids, array_field(*d, "ids", "post_processor.special_tokens"));
    for (const json::value& id : *ids) {
      OAR_ASSIGN(const int32_t value, token_id(id, "post_processor.special_tokens"));
      (seen_text ? out.suffix : out.prefix).push_back(value);
    }
  }
  if (!seen_text)
    return invalid_argument("tokenizer.json: post_processor.single does not contain the sequence A");
  return out;
}

Result<PostProcessor> parse_post_processor_at(const json::value& v, int depth) {
  constexpr std::string_view kWhere = "post_processor";
  if (depth > kMaxNesting) return invalid_argument("tokenizer.json: post_processor nests too deep");
  OAR_ASSIGN(const json::object* o, as_object(v, kWhere));
  OAR_ASSIGN(const std::string type, type_of(*o, kWhere));
  PostProcessor out;
  if (type == "Sequence") {
    OAR_ASSIGN(const json::array* list, array_field(*o, "processors", kWhere));
    for (const json::value& e : *list) {  // each wraps what the ones before it made
      OAR_ASSIGN(PostProcessor p, parse_post_processor_at(e, depth + 1));
      out.prefix.insert(out.prefix.begin(), p.prefix.begin(), p.prefix.end());
      out.suffix.insert(out.suffix.end(), p.suffix.begin(), p.suffix.end());
    }
  } else if (type == "TemplateProcessing") {
    return parse_template(*o);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    OAR_ASSIGN(const int32_t cls, token_pair_field(*o, "cls"));
    OAR_ASSIGN(const int32_t sep, token_pair_field(*o, "sep"));
    out.prefix = {cls};
    out.suffix = {sep};
  } else if (type != "ByteLevel") {  // which only adjusts offsets
    return unknown(kWhere, type);
  }
  return out;
}

Status add_decoder(const json::value& v, int depth, DecoderChain& chain) {
  constexpr std::string_view kWhere = "decoder";
  if (depth > kMaxNesting) return invalid_argument("tokenizer.json: decoder nests too deep");
  OAR_ASSIGN(const json::object* o, as_object(v, kWhere));
  OAR_ASSIGN(const std::string type, type_of(*o, kWhere));
  if (type == "Sequence") {
    OAR_ASSIGN(const json::array* list, array_field(*o, "decoders", kWhere));
    for (const json::value& e : *list) OAR_RETURN_IF_ERROR(add_decoder(e, depth + 1, chain));
    return ok_status();
  }
  if (type == "Fuse") {
    chain.fused = true;
    return ok_status();
  }
  if (type == "Strip") {
    OAR_ASSIGN(const char32_t content, character_field(*o, "content", kWhere));
    OAR_ASSIGN(const int64_t start, int_field(*o, "start", 0, kWhere));
    OAR_ASSIGN(const int64_t stop, int_field(*o, "stop", 0, kWhere));
    if (start < 0 || stop < 0 || start > 1024 || stop > 1024)
      return invalid_argument("tokenizer.json: decoder Strip start and stop must be 0..1024");
    if (!chain.fused) {
      chain.add(DecoderChain::strip(content, static_cast<size_t>(start), static_cast<size_t>(stop)));
    } else if (chain.rules.strip_left || chain.rules.strip_right) {
      return unimplemented("tokenizer.json: decoder with two Strip steps behind Fuse is not supported");
    } else {
      chain.rules.strip = content;
      chain.rules.strip_left = static_cast<size_t>(start);
      chain.rules.strip_right = static_cast<size_t>(stop);
    }
    return ok_status();
  }
  if (chain.fused)
    return unimplemented(cat("tokenizer.json: decoder ", type, " behind Fuse is not supported"));
  if (type == "ByteLevel") {
    chain.add(DecoderChain::byte_level());
    chain.fused = true;
  } else if (type == "ByteFallback") {
    chain.add(DecoderChain::byte_fallback());
    chain.rules.replace_each_byte = true;
  } else if (type == "Replace") {
    OAR_ASSIGN(PatternField pattern, pattern_field(*o, "decoder Replace"));
    OAR_ASSIGN(std::string content, string_field(*o, "content", kWhere));
    if (pattern.regex)
      return unimplemented("tokenizer.json: decoder Replace with a regular expression is not supported");
    if (!pattern.text.empty()) chain.add(DecoderChain::replace(std::move(pattern.text), std::move(content)));
  } else if (type == "Metaspace") {
    OAR_ASSIGN(const char32_t replacement, character_field(*o, "replacement", kWhere));
    OAR_ASSIGN(bool drop, bool_field(*o, "add_prefix_space", true, kWhere));
    if (const json::value* scheme = field(*o, "prepend_scheme"))
      drop = !(scheme->is_string() && scheme->get_string() == "never");
    chain.add(DecoderChain::metaspace(to_utf8(replacement), drop));
  } else if (type == "WordPiece") {
    OAR_ASSIGN(std::string prefix, string_field(*o, "prefix", kWhere));
    OAR_ASSIGN(const bool cleanup, bool_field(*o, "cleanup", true, kWhere));
    chain.add(DecoderChain::word_piece(std::move(prefix), cleanup));
  } else if (type == "BPEDecoder") {
    OAR_ASSIGN(chain.end_of_word, string_field(*o, "suffix", kWhere));
    chain.rules.space_after_word_end = true;
  } else {
    return unknown(kWhere, type);
  }
  return ok_status();
}

}  // namespace

const json::value* field(const json::object& o, std::string_view key) {
  const json::value* v = o.if_contains(key);
  return v && !v->is_null() ? v : nullptr;
}

Result<std::string> string_field(const json::object& o, std::string_view key, std::string_view where) {
  const json::value* v = field(o, key);
  if (!v || !v->is_string())
    return invalid_argument(cat("tokenizer.json: ", where, ".", key, " must be a string"));
  return std::string(v->get_string());
}

Result<std::string> optional_string_field(const json::object& o, std::string_view key,
                                          std::string_view fallback, std::string_view where) {
  return field(o, key) ? string_field(o, key, where) : Result<std::string>(std::string(fallback));
}

Result<bool> bool_field(const json::object& o, std::string_view key, bool fallback, std::string_view where) {
  const json::value* v = field(o, key);
  if (!v) return fallback;
  if (!v->is_bool())
    return invalid_argument(cat("tokenizer.json: ", where, ".", key, " must be true or false"));
  return v->get_bool();
}

Result<int64_t> int_field(const json::object& o, std::string_view key, int64_t fallback,
                          std::string_view where) {
  const json::value* v = field(o, key);
  if (!v) return fallback;
  if (!v->is_int64())
    return invalid_argument(cat("tokenizer.json: ", where, ".", key, " must be an integer"));
  return v->get_int64();
}

Result<const json::object*> as_object(const json::value& v, std::string_view where) {
  if (!v.is_object()) return invalid_argument(cat("tokenizer.json: ", where, " must be an object"));
  return &v.get_object();
}

Result<const json::array*> array_field(const json::object& o, std::string_view key, std::string_view where) {
  const json::value* v = field(o, key);
  if (!v || !v->is_array())
    return invalid_argument(cat("tokenizer.json: ", where, ".", key, " must be an array"));
  return &v->get_array();
}

Result<NormalizerPtr> parse_normalizer(const json::value* v) {
  std::vector<NormalizerPtr> steps;
  if (v) OAR_RETURN_IF_ERROR(add_normalizer(*v, 0, steps));
  if (steps.empty()) return NormalizerPtr();
  if (steps.size() == 1) return std::move(steps[0]);
  return make_normalizer_sequence(std::move(steps));
}

Result<PreTokenizerParts> parse_pretokenizer(const json::value* v) {
  PreTokenizerParts out;
  if (v) OAR_RETURN_IF_ERROR(add_pretokenizer(*v, 0, out));
  return out;
}

Result<PostProcessor> parse_post_processor(const json::value* v) {
  return v ? parse_post_processor_at(*v, 0) : Result<PostProcessor>(PostProcessor{});
}

Result<DecoderChain> parse_decoder(const json::value* v) {
  DecoderChain chain;
  if (v) OAR_RETURN_IF_ERROR(add_decoder(*v, 0, chain));
  else chain.add(DecoderChain::join_with_spaces());
  return chain;
}

Result<AddedToken> parse_added_token(const json::value& v) {
  constexpr std::string_view kWhere = "added_tokens";
  OAR_ASSIGN(const json::object* o, as_object(v, kWhere));
  AddedToken t;
  OAR_ASSIGN(t.content, string_field(*o, "content", kWhere));
  OAR_ASSIGN(const int64_t id, int_field(*o, "id", -1, kWhere));
  if (id < 0 || id >= kMaxVocabulary)
    return invalid_argument(cat("tokenizer.json: added_tokens \"", t.content, "\" has the id ", id));
  t.id = static_cast<int32_t>(id);
  OAR_ASSIGN(t.single_word, bool_field(*o, "single_word", false, kWhere));
  OAR_ASSIGN(t.lstrip, bool_field(*o, "lstrip", false, kWhere));
  OAR_ASSIGN(t.rstrip, bool_field(*o, "rstrip", false, kWhere));
  OAR_ASSIGN(t.special, bool_field(*o, "special", false, kWhere));
  OAR_ASSIGN(t.normalized, bool_field(*o, "normalized", !t.special, kWhere));
  return t;
}

Result<json::array> listed_added_tokens(const json::object& config) {
  json::array out;
  const json::value* listed = field(config, "added_tokens_decoder");
  if (listed == nullptr) return out;
  OAR_ASSIGN(const json::object* o, as_object(*listed, "added_tokens_decoder of tokenizer_config.json"));
  for (const auto& entry : *o) {
    OAR_ASSIGN(const json::object* token, as_object(entry.value(), "added_tokens_decoder"));
    int64_t id = 0;
    const std::string_view key = entry.key();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      return invalid_argument(
          cat("tokenizer_config.json: added_tokens_decoder: \"", key, "\" is no token id"));
    }
    json::object added = *token;
    added["id"] = id;
    out.push_back(std::move(added));
  }
  return out;
}

}  // namespace oar::tokenizer_json
