// tokenizer.json and tokenizer_config.json to a Tokenizer. The document may come from anywhere: ids are
// checked to be in range and reasonably dense before tables are sized by them.
#include <algorithm>
#include <limits>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/text/bpe.h"
#include "engine/text/tokenizer_json_stages.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/unigram.h"
#include "engine/text/word_models.h"

namespace oar {
namespace {

using namespace tokenizer_json;

// Tokens by id; ids may have holes, but the largest is bounded by the number of tokens.
Status check_density(int64_t largest, size_t count) {
  if (largest >= kMaxVocabulary || largest > static_cast<int64_t>(8 * count + 65536))
    return invalid_argument(
        cat("tokenizer.json: token id ", largest, " is too large for ", count, " tokens"));
  return ok_status();
}

Result<std::vector<std::string>> vocabulary_object(const json::object& model) {
  const json::value* v = field(model, "vocab");
  if (!v || !v->is_object())
    return invalid_argument("tokenizer.json: model.vocab must be an object of text: id");
  int64_t largest = -1;
  for (const auto& entry : v->get_object()) {
    if (!entry.value().is_int64() || entry.value().get_int64() < 0)
      return invalid_argument(cat("tokenizer.json: model.vocab[\"", std::string_view(entry.key()),
                                  "\"] must be a token id of at least 0"));
    largest = std::max(largest, entry.value().get_int64());
  }
  OAR_RETURN_IF_ERROR(check_density(largest, v->get_object().size()));
  std::vector<std::string> texts(static_cast<size_t>(largest + 1));
  std::vector<bool> taken(texts.size(), false);
  for (const auto& entry : v->get_object()) {
    const auto id = static_cast<size_t>(entry.value().get_int64());
    if (taken[id])
      return invalid_argument(cat("tokenizer.json: model.vocab gives the id ", id, " to two tokens"));
    taken[id] = true;
    texts[id] = std::string_view(entry.key());
  }
  return texts;
}

Result<std::optional<int32_t>> unknown_token(const json::object& model, const Vocabulary& vocabulary) {
  if (!field(model, "unk_token")) return std::optional<int32_t>();
  OAR_ASSIGN(const std::string text, string_field(model, "unk_token", "model"));
  const int32_t id = vocabulary.find(text);
  if (id < 0)
    return invalid_argument(cat("tokenizer.json: model.unk_token \"", text, "\" is not in model.vocab"));
  return std::optional(id);
}

// "left right" or ["left", "right"]
Result<std::pair<std::string_view, std::string_view>> merge_pair(const json::value& v, size_t index) {
  if (v.is_string()) {
    const std::string_view s = v.get_string();
    const size_t space = s.find(' ');
    if (space != std::string_view::npos && s.find(' ', space + 1) == std::string_view::npos)
      return std::pair{s.substr(0, space), s.substr(space + 1)};
  } else if (v.is_array() && v.get_array().size() == 2 && v.get_array()[0].is_string() &&
             v.get_array()[1].is_string()) {
    return std::pair{std::string_view(v.get_array()[0].get_string()),
                     std::string_view(v.get_array()[1].get_string())};
  }
  return invalid_argument(
      cat("tokenizer.json: model.merges[", index, "] must be \"left right\" or [left, right]"));
}

Result<std::unique_ptr<BpeModel>> load_bpe(const json::object& model, TokenizerParts& parts,
                                           bool byte_level) {
  OAR_ASSIGN(const std::vector<std::string> texts, vocabulary_object(model));
  parts.vocabulary = Vocabulary::build(texts);
  BpeConfig config;
  config.byte_level = byte_level;
  OAR_ASSIGN(config.byte_fallback, bool_field(model, "byte_fallback", false, "model"));
  OAR_ASSIGN(config.fuse_unk, bool_field(model, "fuse_unk", false, "model"));
  OAR_ASSIGN(config.ignore_merges, bool_field(model, "ignore_merges", false, "model"));
  OAR_ASSIGN(config.unk_id, unknown_token(model, parts.vocabulary));
  OAR_ASSIGN(config.continuing_subword_prefix,
             optional_string_field(model, "continuing_subword_prefix", "", "model"));
  OAR_ASSIGN(config.end_of_word_suffix, optional_string_field(model, "end_of_word_suffix", "", "model"));

  OAR_ASSIGN(const json::array* merges, array_field(model, "merges", "model"));
  config.merges.reserve(merges->size());
  std::string joined;
  for (size_t i = 0; i < merges->size(); ++i) {
    OAR_ASSIGN(const auto pair, merge_pair((*merges)[i], i));
    const auto [left, right] = pair;
    std::string_view tail = right;
    if (!config.continuing_subword_prefix.empty() && tail.size() >= config.continuing_subword_prefix.size())
      tail.remove_prefix(config.continuing_subword_prefix.size());
    joined = left;
    joined += tail;
    const int32_t l = parts.vocabulary.find(left), r = parts.vocabulary.find(right),
                  m = parts.vocabulary.find(joined);
    if (l < 0 || r < 0 || m < 0)
      return invalid_argument(cat("tokenizer.json: model.merges[", i, "] joins \"", left, "\" and \"", right,
                                  "\", but model.vocab lacks one of them or the result"));
    config.merges.push_back({l, r, m, static_cast<uint32_t>(i)});
  }
  parts.unk = config.unk_id;
  return BpeModel::create(parts.vocabulary, std::move(config));
}

Result<std::unique_ptr<UnigramModel>> load_unigram(const json::object& model, TokenizerParts& parts) {
  OAR_ASSIGN(const json::array* vocab, array_field(model, "vocab", "model"));
  if (vocab->size() >= static_cast<size_t>(kMaxVocabulary))
    return invalid_argument(
        cat("tokenizer.json: model.vocab has ", vocab->size(), " tokens; the limit is ", kMaxVocabulary));
  std::vector<std::string> texts;
  UnigramConfig config;
  config.min_score = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < vocab->size(); ++i) {
    const json::value& v = (*vocab)[i];
    const json::array* pair = v.is_array() ? &v.get_array() : nullptr;
    if (!pair || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_number())
      return invalid_argument(cat("tokenizer.json: model.vocab[", i, "] must be [text, score]"));
    texts.emplace_back((*pair)[0].get_string());
    config.scores.push_back((*pair)[1].to_number<double>());
    config.min_score = std::min(config.min_score, config.scores.back());
  }
  parts.vocabulary = Vocabulary::build(texts);
  OAR_ASSIGN(const int64_t unk, int_field(model, "unk_id", -1, "model"));
  if (unk >= static_cast<int64_t>(texts.size()))
    return invalid_argument(
        cat("tokenizer.json: model.unk_id ", unk, " is outside the vocabulary of ", texts.size()));
  if (unk >= 0) config.unk_id = static_cast<int32_t>(unk);
  OAR_ASSIGN(config.byte_fallback, bool_field(model, "byte_fallback", false, "model"));
  parts.unk = config.unk_id;
  return UnigramModel::create(parts.vocabulary, std::move(config));
}

Status load_model(const json::object& model, TokenizerParts& parts, bool byte_level) {
  std::string type;
  if (field(model, "type")) {
    OAR_ASSIGN(type, string_field(model, "type", "model"));
  } else {  // files from before the field
    const json::value* vocab = field(model, "vocab");
    type = field(model, "merges")                      ? "BPE"
           : vocab && vocab->is_array()                ? "Unigram"
           : field(model, "continuing_subword_prefix") ? "WordPiece"
                                                       : "WordLevel";
  }
  if (type == "BPE") {
    OAR_ASSIGN(parts.model, load_bpe(model, parts, byte_level));
  } else if (type == "Unigram") {
    OAR_ASSIGN(parts.model, load_unigram(model, parts));
  } else if (type == "WordPiece" || type == "WordLevel") {
    OAR_ASSIGN(const std::vector<std::string> texts, vocabulary_object(model));
    parts.vocabulary = Vocabulary::build(texts);
    OAR_ASSIGN(parts.unk, unknown_token(model, parts.vocabulary));
    if (type == "WordLevel") {
      parts.model = std::make_unique<WordLevelModel>(parts.vocabulary, parts.unk.value_or(-1));
      return ok_status();
    }
    if (!parts.unk) return invalid_argument("tokenizer.json: model.unk_token must be given for WordPiece");
    WordPieceConfig config;
    config.unk_id = *parts.unk;
    OAR_ASSIGN(config.continuing_subword_prefix,
               optional_string_field(model, "continuing_subword_prefix", "##", "model"));
    OAR_ASSIGN(const int64_t limit, int_field(model, "max_input_chars_per_word", 100, "model"));
    if (limit < 0) return invalid_argument(cat("tokenizer.json: model.max_input_chars_per_word is ", limit));
    config.max_input_chars_per_word = static_cast<size_t>(limit);
    parts.model = std::make_unique<WordPieceModel>(parts.vocabulary, std::move(config));
  } else {
    return unimplemented(cat("tokenizer.json: model of type \"", type,
                             "\" is not supported; BPE, Unigram, WordPiece and "
                             "WordLevel are"));
  }
  return ok_status();
}

Status load_added_tokens(const json::object& root, TokenizerParts& parts) {
  if (!field(root, "added_tokens")) return ok_status();
  OAR_ASSIGN(const json::array* list, array_field(root, "added_tokens", "root"));
  for (const json::value& v : *list) {
    OAR_ASSIGN(AddedToken t, tokenizer_json::parse_added_token(v));
    OAR_RETURN_IF_ERROR(check_density(t.id, static_cast<size_t>(parts.vocabulary.size()) + list->size()));
    if (!t.content.empty()) parts.added.push_back(std::move(t));
  }
  return ok_status();
}

// "bos_token": "<s>" or {"content": "<s>", ...}
std::optional<std::string> config_token(const json::object& config, std::string_view key) {
  const json::value* v = field(config, key);
  if (v && v->is_object()) v = field(v->get_object(), "content");
  if (!v || !v->is_string()) return std::nullopt;
  return std::string(v->get_string());
}

// Roles of tokens; and for the classes that build their own post-processor, add_bos_token and add_eos_token.
Status apply_config(std::string_view text, TokenizerParts& parts) {
  if (text.empty()) return ok_status();
  OAR_ASSIGN(const json::value document, parse_json(text, "tokenizer_config.json"));
  if (!document.is_object()) return invalid_argument("tokenizer_config.json must be an object");
  const json::object& config = document.get_object();
  const auto role = [&](std::string_view key) -> std::optional<int32_t> {
    const auto name = config_token(config, key);
    if (!name) return std::nullopt;
    for (const AddedToken& t : parts.added)
      if (t.content == *name) return t.id;
    const int32_t id = parts.vocabulary.find(*name);
    return id < 0 ? std::nullopt : std::optional(id);
  };
  const auto first_of = [](std::optional<int32_t> a, std::optional<int32_t> b) { return a ? a : b; };
  parts.bos = first_of(role("bos_token"), role("cls_token"));
  parts.eos = first_of(role("eos_token"), role("sep_token"));
  parts.pad = role("pad_token");
  parts.unk = first_of(role("unk_token"), parts.unk);
  const auto class_name = config_token(config, "tokenizer_class").value_or("");
  constexpr std::string_view kOwnPostProcessor[] = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer",
                                                    "CohereTokenizer"};
  const bool own =
      std::any_of(std::begin(kOwnPostProcessor), std::end(kOwnPostProcessor),
                  [&](std::string_view n) { return class_name == n || class_name == cat(n, "Fast"); });
  if (!own) return ok_status();
  if (const json::value* add = field(config, "add_bos_token"); add && add->is_bool() && parts.bos)
    parts.prefix = add->get_bool() ? std::vector{*parts.bos} : std::vector<int32_t>{};
  if (const json::value* add = field(config, "add_eos_token"); add && add->is_bool() && parts.eos)
    parts.suffix = add->get_bool() ? std::vector{*parts.eos} : std::vector<int32_t>{};
  return ok_status();
}

}  // namespace

Result<TokenizerPtr> tokenizer_from_json(std::string_view tokenizer_json,
                                         std::string_view tokenizer_config_json) {
  if (tokenizer_json.size() > (size_t{1} << 30))
    return invalid_argument(cat("tokenizer.json has ", tokenizer_json.size(), " bytes; the limit is 2^30"));
  OAR_ASSIGN(const json::value document, parse_json(tokenizer_json, "tokenizer.json"));
  OAR_ASSIGN(const json::object* root, as_object(document, "the document"));
  return from_document(*root, tokenizer_config_json);
}

Result<TokenizerPtr> tokenizer_json::from_document(const json::object& root,
                                                   std::string_view tokenizer_config_json) {
  const json::value* model = field(root, "model");
  if (!model || !model->is_object()) return invalid_argument("tokenizer.json: model must be an object");

  auto parts = std::make_unique<TokenizerParts>();
  OAR_ASSIGN(parts->normalizer, parse_normalizer(field(root, "normalizer")));
  OAR_ASSIGN(PreTokenizerParts pre, parse_pretokenizer(field(root, "pre_tokenizer")));
  const json::object& m = model->get_object();
  // A byte-level model reads bytes itself; not one that decorates characters (CLIP's "</w>").
  OAR_ASSIGN(const std::string decoration_before,
             optional_string_field(m, "continuing_subword_prefix", "", "model"));
  OAR_ASSIGN(const std::string decoration_after, optional_string_field(m, "end_of_word_suffix", "", "model"));
  const bool byte_level = pre.ends_in_byte_alphabet && field(m, "merges") && decoration_before.empty() &&
                          decoration_after.empty();
  if (byte_level) pre.steps.pop_back();
  OAR_RETURN_IF_ERROR(load_model(m, *parts, byte_level));
  if (!pre.steps.empty()) parts->pretokenizer = make_pretokenizer_sequence(std::move(pre.steps));

  OAR_RETURN_IF_ERROR(load_added_tokens(root, *parts));
  OAR_RETURN_IF_ERROR(index_added_tokens(*parts));
  OAR_ASSIGN(PostProcessor post, parse_post_processor(field(root, "post_processor")));
  parts->prefix = std::move(post.prefix);
  parts->suffix = std::move(post.suffix);
  OAR_RETURN_IF_ERROR(apply_config(tokenizer_config_json, *parts));
  parts->adds_bos = !parts->prefix.empty();
  parts->adds_eos = !parts->suffix.empty();

  int32_t size = parts->vocabulary.size();
  if (!parts->added.empty()) size = std::max(size, parts->added.back().id + 1);
  for (const auto* ids : {&parts->prefix, &parts->suffix})
    for (const int32_t id : *ids)
      if (id >= size)
        return invalid_argument(
            cat("tokenizer.json: post_processor uses the token id ", id, " of ", size, " tokens"));
  OAR_ASSIGN(const DecoderChain chain, parse_decoder(field(root, "decoder")));
  size_t next_added = 0;
  parts->decoder = Decoder::build(
      size,
      [&](int32_t id) {
        if (next_added < parts->added.size() && parts->added[next_added].id == id) {
          const size_t i = next_added++;
          return chain.describe(parts->decode_texts[i], parts->added[i].special);
        }
        const std::string_view text =
            id < parts->vocabulary.size() ? parts->vocabulary.text(id) : std::string_view{};
        return text.empty() ? Decoder::Token{} : chain.describe(text, false);
      },
      chain.rules);
  return std::make_shared<const Tokenizer>(std::move(parts));
}

}  // namespace oar
