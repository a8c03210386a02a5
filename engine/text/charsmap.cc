// Unit layout of the double array (darts-clone): bits 0-7 label, bit 8 "has a value", bit 9 offset scale,
// bits 10-30 offset, bit 31 "this unit is a value"; the child of node n by byte b is n ^ offset ^ b.
#include "engine/text/charsmap.h"

#include "engine/base/format.h"
#include "engine/text/unicode/unicode.h"
#include "engine/text/utf8.h"

namespace oar {
namespace {

constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";  // U+2581

uint32_t unit_offset(uint32_t unit) { return (unit >> 10) << ((unit & (1U << 9)) >> 6); }
bool unit_has_value(uint32_t unit) { return (unit >> 8) & 1; }
uint32_t unit_label(uint32_t unit) { return unit & ((1U << 31) | 0xFF); }
uint32_t unit_value(uint32_t unit) { return unit & ((1U << 31) - 1); }

}  // namespace

Result<Charsmap> Charsmap::parse(std::string_view blob) {
  Charsmap map;
  if (blob.empty()) return map;
  const auto word = [&](size_t i) {
    uint32_t v = 0;
    for (size_t b = 0; b < 4; ++b)
      v |= static_cast<uint32_t>(static_cast<unsigned char>(blob[i + b])) << (8 * b);
    return v;
  };
  if (blob.size() < 4) return data_loss("precompiled_charsmap is shorter than its size field");
  const size_t trie_bytes = word(0);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > blob.size() - 4)
    return data_loss(cat("precompiled_charsmap says its trie has ", trie_bytes, " bytes, but ",
                         blob.size() - 4, " follow; the file is damaged"));
  map.units_.resize(trie_bytes / 4);
  for (size_t i = 0; i < map.units_.size(); ++i) map.units_[i] = word(4 + 4 * i);
  map.replacements_ = blob.substr(4 + trie_bytes);
  if (!is_valid_utf8(map.replacements_))
    return data_loss("precompiled_charsmap has replacements that are not UTF-8; the file is damaged");
  return map;
}

template <class Visit>
void Charsmap::walk(std::string_view text, Visit&& visit) const {
  if (units_.empty()) return;
  size_t node = unit_offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) return;  // the trie's strings are zero-terminated
    node ^= byte;
    if (node >= units_.size() || unit_label(units_[node]) != byte) return;
    const uint32_t unit = units_[node];
    node ^= unit_offset(unit);
    if (unit_has_value(unit)) {
      if (node >= units_.size()) return;
      if (!visit(i + 1, unit_value(units_[node]))) return;
    }
  }
}

std::string_view Charsmap::replacement(uint32_t offset) const {
  if (offset >= replacements_.size()) return {};
  // A hostile offset may point inside a character.
  while (offset < replacements_.size() && (static_cast<unsigned char>(replacements_[offset]) & 0xC0) == 0x80)
    ++offset;
  const std::string_view rest = std::string_view(replacements_).substr(offset);
  return rest.substr(0, rest.find('\0'));
}

Charsmap::Rule Charsmap::longest(std::string_view text) const {
  size_t length = 0;
  uint32_t value = 0;
  walk(text, [&](size_t n, uint32_t v) {
    length = n, value = v;
    return true;
  });
  return length == 0 ? Rule{} : Rule{length, replacement(value)};
}

Charsmap::Rule Charsmap::shortest(std::string_view text) const {
  Rule rule;
  walk(text, [&](size_t n, uint32_t v) {
    rule = {n, replacement(v)};
    return false;
  });
  return rule;
}

namespace {

class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(Charsmap charsmap) : charsmap_(std::move(charsmap)) {}

  Status apply(std::string_view text, std::string& out) const override {
    constexpr size_t kLongestWhole = 5;  // bytes
    for (size_t i = 0; i < text.size();) {
      const size_t length = grapheme_length(text.substr(i));
      const std::string_view grapheme = text.substr(i, length);
      i += length;
      if (length <= kLongestWhole) {
        if (const auto rule = charsmap_.shortest(grapheme); rule.length > 0) {
          out += rule.replacement;
          continue;
        }
      }
      for (size_t j = 0; j < grapheme.size();) {
        const std::string_view character = grapheme.substr(j, utf8_length(grapheme[j]));
        const auto rule = charsmap_.shortest(character);
        out += rule.length > 0 ? rule.replacement : character;
        j += character.size();
      }
    }
    return ok_status();
  }

 private:
  Charsmap charsmap_;
};

class SentencePieceNormalizer final : public Normalizer {
 public:
  explicit SentencePieceNormalizer(SentencePieceNormalizerOptions options) : o_(std::move(options)) {
    std::vector<std::pair<std::string_view, int32_t>> entries;
    for (const std::string& s : o_.user_defined) entries.emplace_back(s, 0);
    user_defined_ = Trie(std::move(entries));
  }

  Status apply(std::string_view text, std::string& out) const override {
    const bool squeeze = o_.remove_extra_whitespaces;
    while (squeeze && !text.empty()) {
      const Step s = step(text);
      if (s.replacement != " ") break;
      text.remove_prefix(s.length);
    }
    if (text.empty()) return ok_status();
    const size_t start = out.size();
    const std::string_view space = o_.escape_whitespaces ? kEscapedSpace : std::string_view(" ");
    if (o_.add_dummy_prefix && !o_.whitespace_as_suffix) out += space;
    bool after_space = squeeze;
    while (!text.empty()) {
      const Step s = step(text);
      std::string_view piece = s.replacement;
      while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
      if (!piece.empty()) {
        for (const char c : piece) {
          if (c == ' ') out += space;
          else out += c;
        }
        after_space = piece.ends_with(' ');
      }
      text.remove_prefix(s.length);
      if (!squeeze) after_space = false;
    }
    while (squeeze && out.size() >= start + space.size() && out.ends_with(space))
      out.resize(out.size() - space.size());
    if (o_.add_dummy_prefix && o_.whitespace_as_suffix) out += space;
    return ok_status();
  }

 private:
  struct Step {
    std::string_view replacement;
    size_t length;
  };
  Step step(std::string_view text) const {
    if (user_defined_.starts_with(text[0]))
      if (const Trie::Match m = user_defined_.longest_prefix(text); m.length > 0)
        return {text.substr(0, m.length), m.length};
    if (const auto rule = o_.charsmap.longest(text); rule.length > 0) return {rule.replacement, rule.length};
    const size_t length = utf8_length(text[0]);
    return {text.substr(0, length), length};
  }

  SentencePieceNormalizerOptions o_;
  Trie user_defined_;
};

}  // namespace

NormalizerPtr make_precompiled_normalizer(Charsmap charsmap) {
  return std::make_unique<Precompiled>(std::move(charsmap));
}

NormalizerPtr make_sentencepiece_normalizer(SentencePieceNormalizerOptions options) {
  return std::make_unique<SentencePieceNormalizer>(std::move(options));
}

}  // namespace oar
