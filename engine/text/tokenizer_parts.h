// The stages of a tokenizer, as the factories assemble them. Private to engine/text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/decoder.h"
#include "engine/text/normalizer.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/token_model.h"
#include "engine/text/tokenizer.h"
#include "engine/text/vocabulary.h"

namespace oar {

// Qwen's, from the first to 3, as its tokenizer.json spells it.
inline constexpr std::string_view kQwenSplitPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct TokenizerParts {
  Vocabulary vocabulary;          // of the model, without tokens that were only added; the model refers to it
  std::vector<AddedToken> added;  // all of them, by ascending id; their texts win over the vocabulary's
  AddedTokens raw_added;          // those looked for in the raw text
  AddedTokens normalized_added;   // those looked for in the normalized text
  NormalizerPtr normalizer;       // null: none
  PreTokenizerPtr pretokenizer;   // null: none
  std::unique_ptr<const TokenModel> model;
  std::vector<int32_t> prefix, suffix;  // special tokens around the text
  Decoder decoder;
  std::vector<std::string> decode_texts;  // parallel to `added`: what the decoder sees
  std::optional<int32_t> bos, eos, pad, unk;
  bool adds_bos = false, adds_eos = false;
  bool repair_each_byte =
      false;  // ill-formed input: one U+FFFD per byte (SentencePiece), else per maximal subpart

  const AddedToken* find_added(int32_t id) const;
};

// Fills `decoder`: what the chain makes of the vocabulary's texts; added tokens are their content.
class DecoderChain;
void build_token_decoder(TokenizerParts& parts, const DecoderChain& chain);
void build_byte_level_decoder(TokenizerParts& parts);

// Fills raw_added, normalized_added and decode_texts from `added` (sorted here) and the normalizer.
Status index_added_tokens(TokenizerParts& parts);

}  // namespace oar
