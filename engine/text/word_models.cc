// Greedy longest match in two tries: one for the start of a word, one for its continuations.
#include "engine/text/word_models.h"

#include "engine/text/utf8.h"

namespace oar {

WordPieceModel::WordPieceModel(const Vocabulary& vocabulary, WordPieceConfig config)
    : config_(std::move(config)) {
  const std::string_view prefix = config_.continuing_subword_prefix;
  std::vector<std::pair<std::string_view, int32_t>> initial, continuation;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view text = vocabulary.text(id);
    initial.emplace_back(text, id);
    if (text.starts_with(prefix)) continuation.emplace_back(text.substr(prefix.size()), id);
  }
  initial_ = Trie(std::move(initial));
  continuation_ = Trie(std::move(continuation));
}

void WordPieceModel::encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& out) const {
  scratch.cache.through(piece, out, [&] { split_word(piece, out); });
}

void WordPieceModel::split_word(std::string_view piece, std::vector<int32_t>& out) const {
  size_t characters = 0;
  for (size_t i = 0; i < piece.size() && characters <= config_.max_input_chars_per_word;
       i += utf8_length(piece[i]))
    ++characters;
  const size_t before = out.size();
  bool known = characters <= config_.max_input_chars_per_word;
  for (size_t i = 0; known && i < piece.size();) {
    // Tokens are well-formed UTF-8, so a match ends at a character border.
    const Trie::Match m = (i == 0 ? initial_ : continuation_).longest_prefix(piece.substr(i));
    known = m.length > 0;
    if (known) out.push_back(m.value);
    i += m.length;
  }
  if (known) return;
  out.resize(before);
  out.push_back(config_.unk_id);
}

}  // namespace oar
