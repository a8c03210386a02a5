// Tokens that are found in the text before anything else happens to it: special tokens ("<|im_end|>") and
// words added to a trained vocabulary. Leftmost, then longest; one walk over the text.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/text/text_span.h"
#include "engine/text/trie.h"

namespace oar {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // skipped when decoding, ignored unless parse_special
};

// Which special tokens count: none, or those that touch no span of `plain` (ascending and apart).
struct SpecialTokens {
  bool parse = true;
  std::span<const TextSpan> plain = {};
};

class AddedTokens {
 public:
  static constexpr size_t kMaxContentBytes = 1024;  // bounds the walk at each position

  AddedTokens() = default;
  // `patterns[i]` is what to look for in place of tokens[i].content: its normalized form. Tokens with equal
  // patterns: the first counts.
  static Result<AddedTokens> create(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns);

  bool empty() const { return tokens_.empty(); }
  bool has_special() const;
  struct Hit {
    size_t begin, end;  // with swallowed white space
    int32_t id;
  };
  // The next token at or after `from`, the end of the previous hit; nullopt when there is none.
  // `cursor` is where to go on looking; begins at 0, belongs to one pass over one text.
  std::optional<Hit> next(std::string_view text, size_t from, size_t& cursor,
                          const SpecialTokens& special) const;

 private:
  std::vector<AddedToken> tokens_;
  Trie trie_;  // pattern -> index
};

}  // namespace oar
