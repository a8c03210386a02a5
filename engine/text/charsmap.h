// SentencePiece's precompiled_charsmap: normalization rules as a double-array trie from byte strings to
// replacement strings (NFKC and friends, with changes). Two readers apply it: SentencePiece itself, longest
// rule first, and the Hugging Face "Precompiled" normalizer, grapheme by grapheme. A damaged blob is refused,
// never followed out of bounds.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/normalizer.h"
#include "engine/text/trie.h"

namespace oar {

class Charsmap {
 public:
  Charsmap() = default;  // no rules
  // Layout: uint32 trie bytes, the trie as little-endian uint32 units, then replacements, each ended by a
  // zero byte.
  static Result<Charsmap> parse(std::string_view blob);

  bool empty() const { return units_.empty(); }
  struct Rule {
    size_t length = 0;  // bytes of text it covers; 0: no rule
    std::string_view replacement;
  };
  Rule longest(std::string_view text) const;
  Rule shortest(std::string_view text) const;

 private:
  template <class Visit>
  void walk(std::string_view text, Visit&& visit) const;
  std::string_view replacement(uint32_t offset) const;

  std::vector<uint32_t> units_;  // darts-clone's layout
  std::string replacements_;     // valid UTF-8, zero-terminated strings
};

// tokenizer.json "Precompiled". A grapheme cluster of less than six bytes is replaced as a whole when some
// rule covers its beginning, else each character by itself.
NormalizerPtr make_precompiled_normalizer(Charsmap charsmap);

struct SentencePieceNormalizerOptions {
  Charsmap charsmap;
  std::vector<std::string> user_defined;  // pieces that pass through as they are
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
  bool whitespace_as_suffix = false;  // the dummy prefix goes to the end
};
NormalizerPtr make_sentencepiece_normalizer(SentencePieceNormalizerOptions options);

}  // namespace oar
