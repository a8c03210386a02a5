// The border conditions follow the Hugging Face library's added vocabulary, which is what trained models saw.
#include "engine/text/added_tokens.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/text/unicode/unicode.h"
#include "engine/text/utf8.h"

namespace oar {

Result<AddedTokens> AddedTokens::create(std::vector<AddedToken> tokens,
                                        const std::vector<std::string>& patterns) {
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (patterns[i].size() > kMaxContentBytes)
      return invalid_argument(cat("added token ", tokens[i].id, " has ", patterns[i].size(),
                                  " bytes; the limit is ", kMaxContentBytes));
    entries.emplace_back(patterns[i], static_cast<int32_t>(i));
  }
  AddedTokens a;
  a.trie_ = Trie(std::move(entries));
  a.tokens_ = std::move(tokens);
  return a;
}

bool AddedTokens::has_special() const {
  return std::any_of(tokens_.begin(), tokens_.end(), [](const AddedToken& t) { return t.special; });
}

namespace {

// How many of `length` bytes from `begin` on lie before the next plain span.
size_t trusted_length(std::span<const TextSpan> plain, size_t begin, size_t length) {
  const auto next = std::upper_bound(plain.begin(), plain.end(), begin,
                                     [](size_t p, const TextSpan& s) { return p < s.end; });
  if (next == plain.end()) return length;
  return next->begin <= begin ? 0 : std::min(length, next->begin - begin);
}

}  // namespace

std::optional<AddedTokens::Hit> AddedTokens::next(std::string_view text, size_t from, size_t& cursor,
                                                  const SpecialTokens& special) const {
  for (; cursor < text.size(); ++cursor) {
    if (!trie_.starts_with(text[cursor])) continue;
    Trie::Match m = trie_.longest_prefix(text.substr(cursor));
    if (m.length == 0) continue;
    const size_t trusted = tokens_[static_cast<size_t>(m.value)].special
                               ? trusted_length(special.plain, cursor, m.length)
                               : m.length;
    if (trusted < m.length) {
      // It is the user's in part: a shorter one may stand before that, another begin within it.
      m = trie_.longest_prefix(text.substr(cursor, trusted));
      if (m.length == 0) continue;
    }
    const AddedToken& t = tokens_[static_cast<size_t>(m.value)];
    size_t begin = cursor, end = cursor + m.length;
    cursor = end - 1;  // a match that does not count is stepped over as a whole
    if (t.special && !special.parse) continue;
    if (t.single_word) {
      if (begin > 0 && is_word(decode_utf8(text, previous_utf8(text, begin)).value)) continue;
      if (end < text.size() && is_word(decode_utf8(text, end).value)) continue;
    }
    if (t.lstrip) {
      while (begin > from) {
        const size_t p = previous_utf8(text, begin);
        if (!is_white_space(decode_utf8(text, p).value)) break;
        begin = p;
      }
    }
    if (t.rstrip) {
      while (end < text.size()) {
        const CodePoint c = decode_utf8(text, end);
        if (!is_white_space(c.value)) break;
        end += c.length;
      }
    }
    cursor = end;
    return Hit{std::max(begin, from), end, t.id};
  }
  return std::nullopt;
}

}  // namespace oar
