// A SentencePiece vocabulary in memory, and the tokenizer made from it. Three files hold one: .model,
// llama2.c's tokenizer.bin, and GGUF metadata ("llama", "t5").
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/charsmap.h"
#include "engine/text/tokenizer.h"

namespace oar {

struct SentencePieceModel {
  struct Piece {
    enum class Type : uint8_t {
      kNormal = 1,
      kUnknown = 2,
      kControl = 3,
      kUserDefined = 4,
      kUnused = 5,
      kByte = 6
    };
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;
  bool bpe = false;  // else unigram
  bool byte_fallback = false;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;
  Charsmap charsmap;
  std::string unk_surface = " \xE2\x81\x87 ";  // what the unknown token decodes to
  std::optional<int32_t> unk, bos, eos, pad;
  bool add_bos = false, add_eos = false;
};

Result<TokenizerPtr> build_sentencepiece_tokenizer(SentencePieceModel model);

}  // namespace oar
