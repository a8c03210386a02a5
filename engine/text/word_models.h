// The two models that know whole words: WordPiece (BERT: longest known prefix, then "##" continuations) and
// WordLevel (a word is a token or unknown).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/text/token_model.h"
#include "engine/text/trie.h"

namespace oar {

struct WordPieceConfig {
  int32_t unk_id = 0;
  std::string continuing_subword_prefix = "##";
  size_t max_input_chars_per_word = 100;  // longer words are unknown
};

class WordPieceModel final : public TokenModel {
 public:
  WordPieceModel(const Vocabulary& vocabulary, WordPieceConfig config);
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const override;

 private:
  void split_word(std::string_view word, std::vector<int32_t>& out) const;
  WordPieceConfig config_;
  Trie initial_;       // every token, for the start of a word
  Trie continuation_;  // tokens with the prefix, without it
};

class WordLevelModel final : public TokenModel {
 public:
  // unk_id -1: unknown words are dropped. `vocabulary` must outlive the model.
  WordLevelModel(const Vocabulary& vocabulary, int32_t unk_id) : vocabulary_(vocabulary), unk_id_(unk_id) {}
  void encode(std::string_view piece, ModelScratch&, std::vector<int32_t>& out) const override {
    if (piece.empty()) return;
    const int32_t id = vocabulary_.find(piece);
    if (id >= 0 || unk_id_ >= 0) out.push_back(id >= 0 ? id : unk_id_);
  }

 private:
  const Vocabulary& vocabulary_;
  int32_t unk_id_;
};

}  // namespace oar
