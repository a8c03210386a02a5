// GGUF metadata to a Tokenizer. "llama" and "t5" carry SentencePiece vocabularies, "gpt2" byte-level BPE
// whose split patterns the file only names (tokenizer.ggml.pre), "gemma4" BPE over characters, "bert"
// WordPiece in a spelling of its own. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#include <algorithm>
#include <array>

#include "engine/base/format.h"
#include "engine/text/bpe.h"
#include "engine/text/decoder_chain.h"
#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/word_models.h"

namespace oar {
namespace {

// Split patterns by what llama.cpp calls them. Each text is split by the first pattern, its pieces by the
// next.
struct PreTokenizerEntry {
  std::string_view names;  // separated by spaces
  std::array<std::string_view, 6> patterns;
  bool ignore_merges = false;
  bool add_bos = false;
};

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Contractions are ASCII here, unlike in tokenizer.json, where (?i:...) also takes U+017F for "s".
#define OAR_CONTRACTIONS R"('(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL]))"
constexpr std::string_view kLlama3 = OAR_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    OAR_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 = OAR_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
#define OAR_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define OAR_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
constexpr std::string_view kO200k = R"([^\r\n\p{L}\p{N}]?)" OAR_UPPER "*" OAR_LOWER "+(?:" OAR_CONTRACTIONS
                                    R"()?|[^\r\n\p{L}\p{N}]?)" OAR_UPPER "+" OAR_LOWER "*(?:" OAR_CONTRACTIONS
                                    R"()?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?)" OAR_UPPER "*" OAR_LOWER R"(+|[^\r\n\p{L}\p{N}]?)" OAR_UPPER "+" OAR_LOWER
    R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCjk = "[一-龥\u3040-\u309F\u30A0-\u30FF]+";
constexpr std::string_view kDeepSeekCjk = "[一-龥\u0800-一가-\uD7FF]+";
// Letters that have case, by the list of the vendor's tokenizer.json.
constexpr std::string_view kDeepSeekLetters =
    "\\s?["
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-"
    "\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-"
    "\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF"
    "\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-"
    "\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC"
    "\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115"
    "\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149\u214E"
    "\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-"
    "\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A"
    "\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-"
    "\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
    "]+";
constexpr std::string_view kDeepSeekMarks =
    "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+";
constexpr std::string_view kBloom = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
constexpr std::string_view kBailing =
    R"('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";

constexpr PreTokenizerEntry kPreTokenizers[] = {
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {"gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert jina-v1-en "
     "jina-v2-code "
     "roberta-bpe mpt olmo jais trillion granite-docling exaone4",
     {kGpt2}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", {kLlama3}, true, true},
    {"dbrx smaug-bpe chatglm-bpe glm4", {kLlama3}},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", {kQwen2}},
    {"qwen35", {kQwen35}},
    {"deepseek-llm", {"[\r\n]", kDeepSeekLetters, kDeepSeekMarks, R"(\s+$)", kDeepSeekCjk, R"(\p{N}+)"}},
    {"deepseek-coder", {"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekCjk, R"(\p{N})"}},
    {"deepseek-v3 hunyuan-dense joyai-llm", {R"(\p{N}{1,3})", kCjk, kDeepSeek3}},
    {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", {R"(\p{N})", kGpt2}},
    {"poro-chat bloom gpt3-finnish", {kBloom}},
    {"viking", {kBloom, R"(\p{N})"}},
    {"tekken", {kTekken}, true, true},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {kO200k}},
    {"bailingmoe bailingmoe2 llada-moe", {kBailing}},
};

const PreTokenizerEntry* find_pretokenizer(std::string_view name) {
  for (const PreTokenizerEntry& entry : kPreTokenizers) {
    for (std::string_view rest = entry.names; !rest.empty();) {
      const size_t space = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, space) == name) return &entry;
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
  }
  return nullptr;
}

Status check(const GgufVocab& v) {
  const size_t n = v.tokens.size();
  if (n == 0) return data_loss("the GGUF file has no tokenizer.ggml.tokens; it holds no vocabulary");
  if (n > static_cast<size_t>(kMaxVocabulary))
    return invalid_argument(cat("tokenizer.ggml.tokens has ", n, " entries; the limit is ", kMaxVocabulary));
  if (!v.scores.empty() && v.scores.size() != n)
    return data_loss(cat("tokenizer.ggml.scores has ", v.scores.size(), " entries for ", n, " tokens"));
  if (!v.types.empty() && v.types.size() != n)
    return data_loss(cat("tokenizer.ggml.token_type has ", v.types.size(), " entries for ", n, " tokens"));
  return ok_status();
}

// A special token's id, or nullopt when the file has none; an id outside the vocabulary counts as none, as
// files in circulation write all kinds of fillers.
std::optional<int32_t> role(std::optional<uint32_t> id, const GgufVocab& v) {
  return id && *id < v.tokens.size() ? std::optional(static_cast<int32_t>(*id)) : std::nullopt;
}

GgufTokenType type_of(const GgufVocab& v, size_t i) {
  return v.types.empty() ? GgufTokenType::kNormal : static_cast<GgufTokenType>(v.types[i]);
}

// Control, unknown and user-defined tokens are looked for in the raw text; the last also without
// parse_special.
void collect_added(const GgufVocab& v, TokenizerParts& parts) {
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const GgufTokenType type = type_of(v, i);
    if (type != GgufTokenType::kControl && type != GgufTokenType::kUserDefined &&
        type != GgufTokenType::kUnknown)
      continue;
    AddedToken t;
    t.id = static_cast<int32_t>(i);
    t.content = v.tokens[i];
    t.special = type != GgufTokenType::kUserDefined;
    if (!t.content.empty()) parts.added.push_back(std::move(t));
  }
}

void set_roles(const GgufVocab& v, TokenizerParts& parts, bool add_bos, bool add_eos) {
  parts.bos = role(v.bos_id, v);
  parts.eos = role(v.eos_id, v);
  parts.pad = role(v.padding_id, v);
  parts.unk = role(v.unknown_id, v);
  if (v.add_bos.value_or(add_bos) && parts.bos) parts.prefix = {*parts.bos};
  if (v.add_eos.value_or(add_eos) && parts.eos) parts.suffix = {*parts.eos};
  parts.adds_bos = !parts.prefix.empty();
  parts.adds_eos = !parts.suffix.empty();
}

Result<std::vector<MergeTable::Rule>> merges_of(const GgufVocab& v, const Vocabulary& vocabulary) {
  std::vector<MergeTable::Rule> merges;
  merges.reserve(v.merges.size());
  std::string joined;
  for (size_t i = 0; i < v.merges.size(); ++i) {
    const std::string_view merge = v.merges[i];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size())
      return data_loss(
          cat("tokenizer.ggml.merges[", i, "] = \"", merge, "\" is not two texts separated by a space"));
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    joined = left;
    joined += right;
    const int32_t l = vocabulary.find(left), r = vocabulary.find(right), m = vocabulary.find(joined);
    if (l < 0 || r < 0 || m < 0)
      return data_loss(cat("tokenizer.ggml.merges[", i, "] = \"", merge,
                           "\", but tokenizer.ggml.tokens lacks one of the two or their result"));
    merges.push_back({l, r, m, static_cast<uint32_t>(i)});
  }
  return merges;
}

// Characters by ranked merges, spaces as U+2581, and what has no token by its bytes.
Result<TokenizerPtr> character_bpe(GgufVocab v) {
  constexpr const char* kMarker = "\xE2\x96\x81";
  auto parts = std::make_unique<TokenizerParts>();
  parts->vocabulary = Vocabulary::build(v.tokens);
  parts->normalizer = make_replace_normalizer(" ", kMarker);
  BpeConfig config;
  config.byte_fallback = config.fuse_unk = true;
  config.unk_id = role(v.unknown_id, v);
  OAR_ASSIGN(config.merges, merges_of(v, parts->vocabulary));
  OAR_ASSIGN(parts->model, BpeModel::create(parts->vocabulary, std::move(config)));
  collect_added(v, *parts);
  OAR_RETURN_IF_ERROR(index_added_tokens(*parts));
  set_roles(v, *parts, true, false);
  DecoderChain chain;
  chain.add(DecoderChain::replace(kMarker, " "));
  chain.add(DecoderChain::byte_fallback());
  chain.rules.replace_each_byte = true;
  build_token_decoder(*parts, chain);
  return std::make_shared<const Tokenizer>(std::move(parts));
}

Result<TokenizerPtr> byte_level_bpe(GgufVocab v) {
  const std::string_view name = v.pre.empty() ? std::string_view("default") : std::string_view(v.pre);
  const PreTokenizerEntry* pre = find_pretokenizer(name);
  if (!pre)
    return unimplemented(
        cat("tokenizer.ggml.pre \"", name, "\" is not supported; use the model's tokenizer.json"));
  auto parts = std::make_unique<TokenizerParts>();
  parts->vocabulary = Vocabulary::build(v.tokens);
  std::vector<PreTokenizerPtr> steps;
  for (const std::string_view pattern : pre->patterns) {
    if (pattern.empty()) break;
    OAR_ASSIGN(SplitPattern compiled, SplitPattern::compile(pattern));
    steps.push_back(make_split(std::move(compiled), SplitBehavior::kIsolated, false));
  }
  parts->pretokenizer = make_pretokenizer_sequence(std::move(steps));

  BpeConfig config;
  config.byte_level = true;
  config.ignore_merges = pre->ignore_merges;
  OAR_ASSIGN(config.merges, merges_of(v, parts->vocabulary));
  OAR_ASSIGN(parts->model, BpeModel::create(parts->vocabulary, std::move(config)));
  collect_added(v, *parts);
  OAR_RETURN_IF_ERROR(index_added_tokens(*parts));
  set_roles(v, *parts, pre->add_bos, false);
  build_byte_level_decoder(*parts);
  return std::make_shared<const Tokenizer>(std::move(parts));
}

// GGUF marks the start of a word with U+2581 where BERT marks its continuation with "##", and leaves "[CLS]"
// alone.
std::string bert_spelling(std::string_view text, bool plain) {
  constexpr std::string_view kMarker = "\xE2\x96\x81";
  if (plain || (text.starts_with('[') && text.ends_with(']'))) return std::string(text);
  return text.starts_with(kMarker) ? std::string(text.substr(kMarker.size())) : cat("##", text);
}

Result<TokenizerPtr> word_piece(GgufVocab v) {
  auto parts = std::make_unique<TokenizerParts>();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const GgufTokenType type = type_of(v, i);
    const bool plain =
        type == GgufTokenType::kControl || type == GgufTokenType::kUnknown || v.tokens[i].empty();
    v.tokens[i] = bert_spelling(v.tokens[i], plain);
  }
  parts->vocabulary = Vocabulary::build(v.tokens);
  parts->normalizer = make_bert_normalizer({});
  std::vector<PreTokenizerPtr> steps;
  OAR_ASSIGN(SplitPattern spaces, SplitPattern::compile(R"(\s)"));
  steps.push_back(make_split(std::move(spaces), SplitBehavior::kRemoved, false));
  OAR_ASSIGN(SplitPattern punctuation, SplitPattern::compile(R"([!-/:-@\[-`{-~\p{P}])"));
  steps.push_back(make_split(std::move(punctuation), SplitBehavior::kIsolated, false));
  parts->pretokenizer = make_pretokenizer_sequence(std::move(steps));
  collect_added(v, *parts);
  OAR_RETURN_IF_ERROR(index_added_tokens(*parts));

  set_roles(v, *parts, true, false);
  const auto cls = role(v.cls_id, v), sep = role(v.separator_id, v);
  if (!parts->bos) parts->bos = cls;
  if (!parts->eos) parts->eos = sep;
  if (v.add_bos.value_or(true) && cls) parts->prefix = {*cls};
  if (sep) parts->suffix = {*sep};
  parts->adds_bos = !parts->prefix.empty();
  parts->adds_eos = !parts->suffix.empty();
  if (!parts->unk) {
    const int32_t unk = parts->vocabulary.find("[UNK]");
    if (unk < 0)
      return data_loss("the GGUF file's \"bert\" vocabulary has neither an unknown_token_id nor [UNK]");
    parts->unk = unk;
  }
  WordPieceConfig config;
  config.unk_id = *parts->unk;
  parts->model = std::make_unique<WordPieceModel>(parts->vocabulary, std::move(config));
  DecoderChain chain;
  chain.add(DecoderChain::word_piece("##", true));
  build_token_decoder(*parts, chain);
  return std::make_shared<const Tokenizer>(std::move(parts));
}

Result<TokenizerPtr> sentencepiece(GgufVocab v, bool bpe) {
  using Type = SentencePieceModel::Piece::Type;
  if (v.scores.empty())
    return data_loss(cat("the GGUF file's \"", v.model, "\" vocabulary has no tokenizer.ggml.scores"));
  SentencePieceModel m;
  m.bpe = bpe;
  m.unk = role(v.unknown_id, v);
  m.bos = role(v.bos_id, v);
  m.eos = role(v.eos_id, v);
  m.pad = role(v.padding_id, v);
  std::array<bool, 256> bytes{};
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    SentencePieceModel::Piece piece;
    piece.score = v.scores[i];
    switch (type_of(v, i)) {
      case GgufTokenType::kUnknown: piece.type = Type::kUnknown; break;
      case GgufTokenType::kControl: piece.type = Type::kControl; break;
      case GgufTokenType::kUserDefined: piece.type = Type::kUserDefined; break;
      case GgufTokenType::kUnused: piece.type = Type::kUnused; break;
      case GgufTokenType::kByte: piece.type = Type::kByte; break;
      default: piece.type = Type::kNormal; break;
    }
    if (piece.type == Type::kByte) {
      if (const auto b = byte_token_byte(v.tokens[i])) bytes[*b] = true;
    }
    if (piece.type == Type::kUnknown && !m.unk) m.unk = static_cast<int32_t>(i);
    piece.text = std::move(v.tokens[i]);
    m.pieces.push_back(std::move(piece));
  }
  m.byte_fallback = std::all_of(bytes.begin(), bytes.end(), [](bool b) { return b; });
  m.add_dummy_prefix = v.add_space_prefix.value_or(true);
  m.remove_extra_whitespaces = v.remove_extra_whitespaces.value_or(!bpe);
  m.add_bos = v.add_bos.value_or(bpe);
  m.add_eos = v.add_eos.value_or(!bpe);
  if (!v.precompiled_charsmap.empty()) { OAR_ASSIGN(m.charsmap, Charsmap::parse(v.precompiled_charsmap)); }
  return build_sentencepiece_tokenizer(std::move(m));
}

}  // namespace

Result<TokenizerPtr> tokenizer_from_gguf(GgufVocab vocab) {
  OAR_RETURN_IF_ERROR(check(vocab));
  if (vocab.model == "llama") return sentencepiece(std::move(vocab), true);
  if (vocab.model == "t5") return sentencepiece(std::move(vocab), false);
  if (vocab.model == "gpt2") return byte_level_bpe(std::move(vocab));
  if (vocab.model == "gemma4") return character_bpe(std::move(vocab));
  if (vocab.model == "bert") return word_piece(std::move(vocab));
  return unimplemented(cat("tokenizer.ggml.model \"", vocab.model,
                           "\" is not supported; llama, gpt2, gemma4, bert and t5 are"));
}

}  // namespace oar
