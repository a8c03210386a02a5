// Assembles normalizer, BPE or Unigram model and decoder the way SentencePiece's processor runs them. One
// addition: with parse_special, the text of a control piece in the input becomes that piece, as chat
// templates expect.
#include "engine/text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <limits>

#include "engine/base/format.h"
#include "engine/text/bpe.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/unigram.h"

namespace oar {
namespace {

using Type = SentencePieceModel::Piece::Type;
constexpr std::string_view kMarker = "\xE2\x96\x81";

std::string replace_markers(std::string_view text) {
  std::string out;
  size_t copied = 0;
  for (size_t hit; (hit = text.find(kMarker, copied)) != std::string_view::npos;
       copied = hit + kMarker.size()) {
    out += text.substr(copied, hit - copied);
    out += ' ';
  }
  out += text.substr(copied);
  return out;
}

Decoder make_decoder(const SentencePieceModel& m) {
  DecoderRules rules;
  rules.replace_each_byte = true;
  const bool strips = m.add_dummy_prefix || m.remove_extra_whitespaces;
  rules.start =
      m.remove_extra_whitespaces ? DecoderRules::Start::kUntilText : DecoderRules::Start::kUntilSpace;
  return Decoder::build(
      static_cast<int32_t>(m.pieces.size()),
      [&](int32_t id) {
        const auto& piece = m.pieces[static_cast<size_t>(id)];
        Decoder::Token t;
        t.known = !piece.text.empty();
        if (piece.type == Type::kControl) {
          t.special = true;
          t.bytes = t.first = piece.text;
        } else if (piece.type == Type::kUnknown) {
          t.bytes = t.first = m.unk_surface;
        } else if (const auto byte = piece.type == Type::kByte ? byte_token_byte(piece.text) : std::nullopt) {
          t.bytes = t.first = std::string(1, static_cast<char>(*byte));
        } else {
          t.bytes = t.first = replace_markers(piece.text);
          if (strips && piece.text.starts_with(kMarker)) {
            t.begins_space = true;
            t.first.erase(0, 1);
          }
        }
        return t;
      },
      rules);
}

}  // namespace

Result<TokenizerPtr> build_sentencepiece_tokenizer(SentencePieceModel m) {
  auto parts = std::make_unique<TokenizerParts>();
  const size_t n = m.pieces.size();
  std::vector<std::string> texts;
  texts.reserve(n);
  for (const auto& p : m.pieces) texts.push_back(p.text);
  parts->vocabulary = Vocabulary::build(texts);

  SentencePieceNormalizerOptions normalizer;
  for (size_t i = 0; i < n; ++i) {
    const auto& p = m.pieces[i];
    if (p.type == Type::kControl) {
      AddedToken t;
      t.id = static_cast<int32_t>(i);
      t.content = p.text;
      t.special = true;
      if (!t.content.empty()) parts->added.push_back(std::move(t));
    } else if (p.type == Type::kUserDefined) {
      normalizer.user_defined.push_back(p.text);
    } else if (p.type == Type::kByte && !byte_token_byte(p.text)) {
      return data_loss(cat("token ", i, " is marked as a byte, but its text \"", p.text, "\" is not <0xXX>"));
    }
  }
  if (m.unk && (*m.unk < 0 || static_cast<size_t>(*m.unk) >= n))
    return invalid_argument(cat("the unknown token id ", *m.unk, " is outside the vocabulary of ", n));
  const auto inside = [n](std::optional<int32_t> id) {
    return id && *id >= 0 && static_cast<size_t>(*id) < n ? id : std::nullopt;
  };
  parts->unk = m.unk;
  parts->bos = inside(m.bos);
  parts->eos = inside(m.eos);
  parts->pad = inside(m.pad);
  if (m.add_bos && parts->bos) parts->prefix = {*parts->bos};
  if (m.add_eos && parts->eos) parts->suffix = {*parts->eos};
  parts->adds_bos = !parts->prefix.empty();
  parts->adds_eos = !parts->suffix.empty();
  parts->repair_each_byte = true;

  if (m.bpe) {
    std::vector<ScoredPiece> pieces(n);
    for (size_t i = 0; i < n; ++i) {
      using To = ScoredPiece::Type;
      pieces[i].score = m.pieces[i].score;
      pieces[i].type = m.pieces[i].type == Type::kNormal        ? To::kNormal
                       : m.pieces[i].type == Type::kUserDefined ? To::kUserDefined
                       : m.pieces[i].type == Type::kUnused      ? To::kUnused
                                                                : To::kOther;
    }
    OAR_ASSIGN(parts->model, BpeModel::from_scores(parts->vocabulary, pieces, m.unk, m.byte_fallback));
  } else {
    UnigramConfig config;
    config.single_precision = true;
    config.byte_fallback = m.byte_fallback;
    config.unk_id = m.unk;
    config.min_score = std::numeric_limits<float>::max();
    for (const auto& p : m.pieces) {
      config.scores.push_back(p.score);
      config.excluded.push_back(p.type != Type::kNormal && p.type != Type::kUserDefined);
      config.user_defined.push_back(p.type == Type::kUserDefined);
      if (p.type == Type::kNormal)
        config.min_score = std::min(config.min_score, static_cast<double>(p.score));
    }
    OAR_ASSIGN(parts->model, UnigramModel::create(parts->vocabulary, std::move(config)));
  }
  parts->decoder = make_decoder(m);
  normalizer.charsmap = std::move(m.charsmap);
  normalizer.add_dummy_prefix = m.add_dummy_prefix;
  normalizer.remove_extra_whitespaces = m.remove_extra_whitespaces;
  normalizer.escape_whitespaces = m.escape_whitespaces;
  normalizer.whitespace_as_suffix = m.whitespace_as_suffix;
  parts->normalizer = make_sentencepiece_normalizer(std::move(normalizer));
  OAR_RETURN_IF_ERROR(index_added_tokens(*parts));
  return std::make_shared<const Tokenizer>(std::move(parts));
}

}  // namespace oar
