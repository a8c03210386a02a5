// Unigram language model segmentation (https://arxiv.org/abs/1804.10959): the path of pieces with the highest
// sum of log probabilities, by Viterbi over byte positions. Time O(n * longest piece), memory 16 bytes per
// input byte.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/token_model.h"
#include "engine/text/trie.h"

namespace oar {

struct UnigramConfig {
  std::vector<double> scores;  // by id
  std::vector<bool> excluded;  // by id: pieces that never match (control, unknown, byte, unused); or empty
  std::vector<bool> user_defined;  // by id: always preferred; or empty
  std::optional<int32_t> unk_id;   // required for characters that no piece covers
  double min_score = 0;            // of the pieces that match
  bool byte_fallback = false;
  // SentencePiece keeps path scores in float, the Hugging Face library in double: near ties fall differently.
  bool single_precision = false;
};

class UnigramModel final : public TokenModel {
 public:
  // `vocabulary` must outlive the model.
  static Result<std::unique_ptr<UnigramModel>> create(const Vocabulary& vocabulary, UnigramConfig config);
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const override;

 private:
  void best_path(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const;
  explicit UnigramModel(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}
  const Vocabulary& vocabulary_;
  UnigramConfig config_;
  Trie trie_;
  std::array<int32_t, 256> byte_ids_{};  // -1 none
};

}  // namespace oar
