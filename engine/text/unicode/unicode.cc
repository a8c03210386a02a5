// Look-ups in the generated tables, and the grapheme cluster rules of UAX #29.
#include "engine/text/unicode/unicode.h"

#include "engine/text/utf8.h"

namespace oar {
namespace t = unicode_tables;

namespace {

// Order as in BREAKS of generate.py.
enum class GraphemeBreak : uint8_t {
  kOther,
  kCr,
  kLf,
  kControl,
  kExtend,
  kZwj,
  kRegionalIndicator,
  kPrepend,
  kSpacingMark,
  kL,
  kV,
  kT,
  kLv,
  kLvt,
  kExtendedPictographic,
};

GraphemeBreak grapheme_break(char32_t c) {
  if (c > kMaxCodePoint) return GraphemeBreak::kOther;
  return static_cast<GraphemeBreak>(
      t::kGraphemeBreak_values[static_cast<size_t>(t::kGraphemeBreak_blocks[c >> 7]) * 128 + (c & 127)]);
}

}  // namespace

char32_t simple_lowercase(char32_t c) {
  if (c > kMaxCodePoint) return c;
  const auto i = t::kLowercase_values[static_cast<size_t>(t::kLowercase_blocks[c >> 7]) * 128 + (c & 127)];
  return static_cast<char32_t>(static_cast<int32_t>(c) + t::kLowercase_deltas[i]);
}

char32_t simple_fold(char32_t c) {
  if (c > kMaxCodePoint) return c;
  const auto i = t::kFold_values[static_cast<size_t>(t::kFold_blocks[c >> 7]) * 128 + (c & 127)];
  return static_cast<char32_t>(static_cast<int32_t>(c) + t::kFold_deltas[i]);
}

std::span<const t::CodePointRange> script_ranges(std::string_view name) {
  for (size_t i = 0; i < t::kScriptCount; ++i)
    if (name == t::kScripts[i].name) return {t::kScriptRanges + t::kScripts[i].offset, t::kScripts[i].count};
  return {};
}

size_t grapheme_length(std::string_view text) {
  using enum GraphemeBreak;
  const CodePoint first = decode_utf8(text, 0);
  size_t pos = first.length;
  GraphemeBreak previous = grapheme_break(first.value);
  // GB11 needs to know whether a ZWJ follows ExtPict Extend*, GB12/13 whether the indicators before pair up.
  bool pictographic = previous == kExtendedPictographic;
  bool indicator_open = previous == kRegionalIndicator;
  while (pos < text.size()) {
    const CodePoint c = decode_utf8(text, pos);
    const GraphemeBreak next = grapheme_break(c.value);
    bool join = false;
    if (previous == kCr) {
      join = next == kLf;  // GB3
    } else if (previous == kControl || previous == kLf || next == kControl || next == kCr || next == kLf) {
      join = false;  // GB4, GB5
    } else if (previous == kL) {
      join = next == kL || next == kV || next == kLv || next == kLvt;  // GB6
    } else if (previous == kLv || previous == kV) {
      join = next == kV || next == kT;  // GB7
    } else if (previous == kLvt || previous == kT) {
      join = next == kT;  // GB8
    } else if (previous == kPrepend) {
      join = true;  // GB9b
    } else if (previous == kZwj) {
      join = pictographic && next == kExtendedPictographic;  // GB11
    } else if (previous == kRegionalIndicator) {
      join = indicator_open && next == kRegionalIndicator;  // GB12, GB13
    }
    const bool hard = previous == kControl || previous == kCr || previous == kLf;
    if (!hard && (next == kExtend || next == kZwj || next == kSpacingMark)) join = true;  // GB9, GB9a
    if (!join) break;
    pos += c.length;
    if (next == kExtendedPictographic) pictographic = true;
    else if (next != kExtend && next != kZwj) pictographic = false;
    indicator_open = next == kRegionalIndicator && previous != kRegionalIndicator;
    previous = next;
  }
  return pos;
}

std::string_view unicode_version() { return t::kVersion; }

}  // namespace oar
