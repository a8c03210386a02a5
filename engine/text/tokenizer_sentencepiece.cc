// SentencePiece: the .model file (a protobuf ModelProto, read by a bounded wire reader of our own) and
// llama2.c's tokenizer.bin, which is a vocabulary exported from one. Format:
// https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/format.h"
#include "engine/base/wire_reader.h"
#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/vocabulary.h"

namespace oar {
namespace {

using ModelPiece = SentencePieceModel::Piece;

// Field numbers of the proto.
enum : uint32_t { kModelPieces = 1, kModelTrainer = 2, kModelNormalizer = 3 };
enum : uint32_t { kPieceText = 1, kPieceScore = 2, kPieceType = 3 };
enum : uint32_t {
  kTrainerModelType = 3,
  kTrainerWhitespaceAsSuffix = 24,
  kTrainerByteFallback = 35,
  kTrainerUnkId = 40,
  kTrainerBosId = 41,
  kTrainerEosId = 42,
  kTrainerPadId = 43,
  kTrainerUnkSurface = 44,
};
enum : uint32_t {
  kNormalizerCharsmap = 2,
  kNormalizerDummyPrefix = 3,
  kNormalizerRemoveSpaces = 4,
  kNormalizerEscape = 5
};

Status malformed(std::string_view what) {
  return data_loss(
      cat("the SentencePiece model's ", what, " is malformed; the file is damaged or no .model file"));
}

Result<ModelPiece> read_piece(std::string_view bytes) {
  ModelPiece piece;
  WireReader reader(bytes);
  while (const auto f = reader.next()) {
    if (f->number == kPieceText && f->is_bytes()) {
      piece.text = f->bytes;
    } else if (f->number == kPieceScore && f->is_fixed32()) {
      piece.score = f->as_float();
    } else if (f->number == kPieceType && f->is_varint()) {
      if (f->value < 1 || f->value > 6) return malformed("piece type");
      piece.type = static_cast<ModelPiece::Type>(f->value);
    }
  }
  if (!reader.ok()) return malformed("piece");
  return piece;
}

Result<SentencePieceModel> read_model(std::string_view bytes) {
  SentencePieceModel model;
  WireReader reader(bytes);
  const auto id = [](uint64_t v) {  // an int32; negative: none
    const auto value = static_cast<int64_t>(v);
    return value >= 0 && value < kMaxVocabulary ? std::optional(static_cast<int32_t>(value)) : std::nullopt;
  };
  model.unk = 0, model.bos = 1, model.eos = 2;  // the proto's defaults
  while (const auto f = reader.next()) {
    if (!f->is_bytes()) continue;
    if (f->number == kModelPieces) {
      if (model.pieces.size() >= static_cast<size_t>(kMaxVocabulary))
        return invalid_argument(cat("the SentencePiece model has more than ", kMaxVocabulary, " pieces"));
      OAR_ASSIGN(ModelPiece piece, read_piece(f->bytes));
      model.pieces.push_back(std::move(piece));
    } else if (f->number == kModelTrainer) {
      WireReader trainer(f->bytes);
      while (const auto t = trainer.next()) {
        if (t->number == kTrainerUnkSurface && t->is_bytes()) model.unk_surface = t->bytes;
        if (!t->is_varint()) continue;
        switch (t->number) {
          case kTrainerModelType:
            if (t->value != 1 && t->value != 2)
              return unimplemented(cat("SentencePiece model_type ", t->value,
                                       " is not supported; 1 (unigram) and 2 (BPE) are"));
            model.bpe = t->value == 2;
            break;
          case kTrainerWhitespaceAsSuffix: model.whitespace_as_suffix = t->value != 0; break;
          case kTrainerByteFallback: model.byte_fallback = t->value != 0; break;
          case kTrainerUnkId: model.unk = id(t->value); break;
          case kTrainerBosId: model.bos = id(t->value); break;
          case kTrainerEosId: model.eos = id(t->value); break;
          case kTrainerPadId: model.pad = id(t->value); break;
          default: break;
        }
      }
      if (!trainer.ok()) return malformed("trainer_spec");
    } else if (f->number == kModelNormalizer) {
      WireReader normalizer(f->bytes);
      while (const auto n = normalizer.next()) {
        if (n->number == kNormalizerCharsmap && n->is_bytes()) {
          OAR_ASSIGN(model.charsmap, Charsmap::parse(n->bytes));
        } else if (n->number == kNormalizerDummyPrefix && n->is_varint()) {
          model.add_dummy_prefix = n->value != 0;
        } else if (n->number == kNormalizerRemoveSpaces && n->is_varint()) {
          model.remove_extra_whitespaces = n->value != 0;
        } else if (n->number == kNormalizerEscape && n->is_varint()) {
          model.escape_whitespaces = n->value != 0;
        }
      }
      if (!normalizer.ok()) return malformed("normalizer_spec");
    }
  }
  if (!reader.ok()) return malformed("top level");
  return model;
}

}  // namespace

Result<TokenizerPtr> tokenizer_from_sentencepiece(std::string_view model) {
  if (model.size() > (size_t{1} << 30))
    return invalid_argument(cat("the SentencePiece model has ", model.size(), " bytes; the limit is 2^30"));
  OAR_ASSIGN(SentencePieceModel parsed, read_model(model));
  if (parsed.pieces.empty()) return malformed("list of pieces");
  for (size_t i = 0; i < parsed.pieces.size(); ++i)
    if (parsed.pieces[i].text.empty())
      return data_loss(cat("SentencePiece piece ", i, " is empty; the file is damaged"));
  // The trainer's ids are only names for pieces; the unknown piece is the one that says so.
  parsed.unk.reset();
  for (size_t i = 0; i < parsed.pieces.size(); ++i)
    if (parsed.pieces[i].type == ModelPiece::Type::kUnknown) {
      if (parsed.unk) return data_loss("the SentencePiece model has two unknown pieces; the file is damaged");
      parsed.unk = static_cast<int32_t>(i);
    }
  if (!parsed.unk) return data_loss("the SentencePiece model has no unknown piece; the file is damaged");
  return build_sentencepiece_tokenizer(std::move(parsed));
}

Result<TokenizerPtr> tokenizer_from_llama2c(std::string_view file, int32_t vocab_size) {
  // uint32 longest token, then per token: float score, int32 length, bytes. Tokens 0, 1, 2 are <unk>, <s>,
  // </s>; the next 256 are bytes when there are that many; a space stands for SentencePiece's marker.
  constexpr int32_t kFirstByte = 3;
  if (vocab_size < kFirstByte || vocab_size > kMaxVocabulary)
    return invalid_argument(cat("vocab_size ", vocab_size, " is outside 3..", kMaxVocabulary));
  size_t pos = 4;
  const auto word = [&](size_t at) {
    uint32_t v;
    std::memcpy(&v, file.data() + at, 4);
    return v;
  };
  SentencePieceModel model;
  model.bpe = true;
  model.remove_extra_whitespaces = false;
  for (int32_t i = 0; i < vocab_size; ++i) {
    if (pos > file.size() || file.size() - pos < 8)
      return data_loss(
          cat("tokenizer.bin ends inside token ", i, " of ", vocab_size, "; is vocab_size right?"));
    const uint32_t score_bits = word(pos), length = word(pos + 4);
    pos += 8;
    if (length > file.size() - pos)
      return data_loss(cat("tokenizer.bin: token ", i, " says it has ", length, " bytes, ", file.size() - pos,
                           " are left"));
    ModelPiece piece;
    std::memcpy(&piece.score, &score_bits, 4);
    const std::string_view raw = file.substr(pos, length);
    pos += length;
    for (const char c : raw) {
      if (c == ' ') piece.text += "\xE2\x96\x81";
      else piece.text += c;
    }
    model.pieces.push_back(std::move(piece));
  }
  constexpr std::string_view kNames[] = {"<unk>", "<s>", "</s>"};
  for (size_t i = 0; i < 3; ++i) {
    model.pieces[i].text = kNames[i];
    model.pieces[i].type = i == 0 ? ModelPiece::Type::kUnknown : ModelPiece::Type::kControl;
  }
  model.unk = 0, model.bos = 1, model.eos = 2;
  model.add_bos = true;
  model.byte_fallback = true;
  for (size_t b = 0; b < 256 && model.byte_fallback; ++b) {
    const size_t i = kFirstByte + b;
    model.byte_fallback =
        i < model.pieces.size() && model.pieces[i].text == byte_token_text(static_cast<uint8_t>(b));
  }
  for (size_t b = 0; b < 256 && model.byte_fallback; ++b)
    model.pieces[kFirstByte + b].type = ModelPiece::Type::kByte;
  return build_sentencepiece_tokenizer(std::move(model));
}

}  // namespace oar
