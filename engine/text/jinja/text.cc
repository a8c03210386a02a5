#include "engine/text/jinja/text.h"

#include <algorithm>
#include <utility>

#include "engine/text/unicode/unicode.h"
#include "engine/text/utf8.h"

namespace oar::jinja {
namespace {

// Every `stride`-th code point of [first, last] has its upper case `delta` away.
struct UpperRun {
  char32_t first, last;
  int stride, delta;
};
struct SpecialCase {
  char32_t from;
  const char* upper;
  const char* title;
};

#include "engine/text/jinja/uppercase.inc"

char32_t simple_uppercase(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  const auto* run = std::upper_bound(std::begin(kUpperRuns), std::end(kUpperRuns), c,
                                     [](char32_t x, const UpperRun& r) { return x < r.first; });
  if (run == std::begin(kUpperRuns)) return c;
  --run;
  if (c > run->last || (c - run->first) % static_cast<char32_t>(run->stride) != 0) return c;
  return static_cast<char32_t>(static_cast<int>(c) + run->delta);
}

const SpecialCase* special_case(char32_t c) {
  const auto* s = std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), c,
                                   [](const SpecialCase& x, char32_t y) { return x.from < y; });
  return s != std::end(kSpecialCases) && s->from == c ? s : nullptr;
}

void append_upper(std::string& out, char32_t c) {
  if (c < 0x80) out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  else if (const SpecialCase* s = special_case(c)) out += s->upper;
  else append_utf8(out, simple_uppercase(c));
}

void append_title(std::string& out, char32_t c) {
  if (const SpecialCase* s = c < 0x80 ? nullptr : special_case(c)) {
    out += s->title;
    return;
  }
  for (const auto& [from, to] : kTitle)
    if (from == c) {
      append_utf8(out, to);
      return;
    }
  append_utf8(out, simple_uppercase(c));
}

bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || is_title(c); }

// Apostrophes, marks and the like: transparent when a final sigma is looked for (Unicode 3.13,
// Case_Ignorable).
bool is_case_ignorable(char32_t c) {
  using enum GeneralCategory;
  constexpr CategorySet kIgnorable =
      category_bit(kMn) | category_bit(kMe) | category_bit(kCf) | category_bit(kLm) | category_bit(kSk);
  return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019 || c == 0x2024 ||
         c == 0x2027 || in_categories(c, kIgnorable);
}

// Greek sigma is lower-cased by position: at the end of a word it is U+03C2.
bool is_final_sigma(std::string_view s, size_t start, size_t end) {
  bool before = false;
  for (size_t p = start; p > 0 && !before;) {
    p = previous_utf8(s, p);
    size_t q = p;
    const char32_t c = decode_at(s, q);
    if (is_case_ignorable(c)) continue;
    if (!is_cased(c)) return false;
    before = true;
  }
  if (!before) return false;
  for (size_t p = end; p < s.size();) {
    const char32_t c = decode_at(s, p);
    if (!is_case_ignorable(c)) return !is_cased(c);
  }
  return true;
}

// `start`: where c begins in s, `end`: behind it.
void append_lower(std::string& out, char32_t c, std::string_view s, size_t start, size_t end) {
  if (c < 0x80) out += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  else if (c == 0x3A3) append_utf8(out, is_final_sigma(s, start, end) ? 0x3C2 : 0x3C3);
  else if (c == 0x130) out += "i\u0307";
  else append_utf8(out, simple_lowercase(c));
}

// Up to this length the library's search, whose worst case multiplies the two lengths, is the fastest and
// harmless.
constexpr size_t kShortPart = 32;

// Knuth, Morris and Pratt: first occurrence of part[0..m) in text[0..n), both given as functions of the
// index.
template <class Text, class Part>
size_t search(size_t n, Text text, size_t m, Part part) {
  std::vector<size_t> border(m, 0);  // border[i]: longest proper prefix of part[0..i] that is also its suffix
  for (size_t i = 1, k = 0; i < m; ++i) {
    while (k > 0 && part(i) != part(k)) k = border[k - 1];
    if (part(i) == part(k)) ++k;
    border[i] = k;
  }
  for (size_t i = 0, k = 0; i < n; ++i) {
    while (k > 0 && text(i) != part(k)) k = border[k - 1];
    if (text(i) == part(k)) ++k;
    if (k == m) return i + 1 - m;
  }
  return std::string_view::npos;
}

}  // namespace

size_t find_text(std::string_view s, std::string_view part, size_t from) {
  if (part.size() <= kShortPart || from >= s.size()) return s.find(part, from);
  const size_t at = search(
      s.size() - from, [&](size_t i) { return s[from + i]; }, part.size(), [&](size_t i) { return part[i]; });
  return at == std::string_view::npos ? at : from + at;
}

size_t rfind_text(std::string_view s, std::string_view part) {
  if (part.size() <= kShortPart) return s.rfind(part);
  const size_t n = s.size(), m = part.size();
  const size_t at = search(
      n, [&](size_t i) { return s[n - 1 - i]; }, m, [&](size_t i) { return part[m - 1 - i]; });
  return at == std::string_view::npos ? at : n - m - at;
}

char32_t decode_at(std::string_view s, size_t& pos) {
  const CodePoint c = decode_utf8(s, pos);
  pos += c.length;
  return c.value;
}

size_t count_code_points(std::string_view s) {
  return static_cast<size_t>(std::count_if(
      s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

size_t byte_offset(std::string_view s, size_t index) {
  size_t pos = 0;
  while (index > 0 && pos < s.size()) {
    pos += utf8_length(s[pos]);
    --index;
  }
  return std::min(pos, s.size());
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || (c >= 0x80 && is_white_space(c));
}

bool is_printable(char32_t c) {
  if (c < 0x80) return c >= 0x20 && c < 0x7F;
  return !in_categories(c, kOthers | kSeparators);
}

bool is_upper(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z';
  // Other_Uppercase: Roman numerals and circled or squared capitals.
  return general_category(c) == GeneralCategory::kLu || (c >= 0x2160 && c <= 0x216F) ||
         (c >= 0x24B6 && c <= 0x24CF) || (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool is_lower(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z';
  // Other_Lowercase: ordinal indicators, modifier letters, small Roman numerals and circled letters.
  return general_category(c) == GeneralCategory::kLl || c == 0xAA || c == 0xBA ||
         (c >= 0x2B0 && c <= 0x2B8) || c == 0x2C0 || c == 0x2C1 || (c >= 0x2E0 && c <= 0x2E4) || c == 0x345 ||
         c == 0x37A || (c >= 0x1D2C && c <= 0x1D6A) || c == 0x1D78 || (c >= 0x1D9B && c <= 0x1DBF) ||
         c == 0x2071 || c == 0x207F || (c >= 0x2090 && c <= 0x209C) || (c >= 0x2170 && c <= 0x217F) ||
         (c >= 0x24D0 && c <= 0x24E9);
}

bool is_title(char32_t c) { return general_category(c) == GeneralCategory::kLt; }
bool is_alpha(char32_t c) { return in_categories(c, kLetters); }
bool is_decimal(char32_t c) { return general_category(c) == GeneralCategory::kNd; }

bool is_digit_like(char32_t c) {
  return is_decimal(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) ||
         (c >= 0x2474 && c <= 0x247C) || (c >= 0x2488 && c <= 0x2490) || c == 0x24EA ||
         (c >= 0x24F5 && c <= 0x24FD) || c == 0x24FF || (c >= 0x2776 && c <= 0x277E) ||
         (c >= 0x2780 && c <= 0x2788) || (c >= 0x278A && c <= 0x2792);
}

bool is_numeric(char32_t c) {
  // Beside the number categories, the CJK ideographs that name numbers.
  static constexpr std::u32string_view kIdeographs =
      U"〇一二三四五六七八九十百千万億兆零壹貳叁肆伍陸柒捌玖拾佰仟萬两廿卅卌";
  return in_categories(c, kNumbers) || kIdeographs.find(c) != std::u32string_view::npos;
}

bool is_word_char(char32_t c) { return c == '_' || is_alpha(c) || is_numeric(c); }

std::string to_upper(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) append_upper(out, decode_at(s, pos));
  return out;
}

std::string to_lower(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) {
    const size_t start = pos;
    const char32_t c = decode_at(s, pos);
    append_lower(out, c, s, start, pos);
  }
  return out;
}

std::string to_capital(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) {
    const size_t start = pos;
    const char32_t c = decode_at(s, pos);
    if (start == 0) append_title(out, c);
    else append_lower(out, c, s, start, pos);
  }
  return out;
}

std::string to_title(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  bool inside = false;
  for (size_t pos = 0; pos < s.size();) {
    const size_t start = pos;
    const char32_t c = decode_at(s, pos);
    if (inside) append_lower(out, c, s, start, pos);
    else append_title(out, c);
    inside = is_cased(c);
  }
  return out;
}

std::string swap_case(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t pos = 0; pos < s.size();) {
    const size_t start = pos;
    const char32_t c = decode_at(s, pos);
    if (is_upper(c)) append_lower(out, c, s, start, pos);
    else if (is_lower(c)) append_upper(out, c);
    else out += s.substr(start, pos - start);
  }
  return out;
}

std::string_view strip(std::string_view s, const std::string_view* chars, bool left, bool right) {
  std::vector<char32_t> set;  // sorted, when there are too many to scan for each candidate
  if (chars != nullptr && chars->size() > kShortPart) {
    for (size_t pos = 0; pos < chars->size();) set.push_back(decode_at(*chars, pos));
    std::sort(set.begin(), set.end());
  }
  const auto drops = [&](std::string_view one) {
    size_t p = 0;
    if (chars == nullptr) return is_space(decode_at(one, p));
    if (!set.empty()) return std::binary_search(set.begin(), set.end(), decode_at(one, p));
    return chars->find(one) != std::string_view::npos;  // UTF-8: a whole code point matches only itself
  };
  while (left && !s.empty()) {
    const size_t n = std::min<size_t>(utf8_length(s[0]), s.size());
    if (!drops(s.substr(0, n))) break;
    s.remove_prefix(n);
  }
  while (right && !s.empty()) {
    const size_t start = previous_utf8(s, s.size());
    if (!drops(s.substr(start))) break;
    s.remove_suffix(s.size() - start);
  }
  return s;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t pos = 0; pos < s.size();) {
    const size_t at = pos;
    const char32_t c = decode_at(s, pos);
    const bool ends =
        (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == '\r' && pos < s.size() && s[pos] == '\n') ++pos;
    lines.push_back(s.substr(start, (keep_ends ? pos : at) - start));
    start = pos;
  }
  if (start < s.size()) lines.push_back(s.substr(start));
  return lines;
}

std::vector<std::string_view> split_space(std::string_view s, long long max_splits, bool from_right) {
  std::vector<std::string_view> parts;
  std::string_view rest = strip(s, nullptr, !from_right, from_right);
  while (!rest.empty()) {
    if (max_splits == 0) {
      // Python leaves the blanks at the far end of the remainder alone.
      parts.push_back(rest);
      break;
    }
    if (from_right) {
      size_t word = rest.size();
      while (word > 0) {
        size_t p = previous_utf8(rest, word);
        const size_t start = p;
        if (is_space(decode_at(rest, p))) break;
        word = start;
      }
      parts.push_back(rest.substr(word));
      rest = strip(rest.substr(0, word), nullptr, false, true);
    } else {
      size_t word = 0;
      while (word < rest.size()) {
        size_t p = word;
        if (is_space(decode_at(rest, p))) break;
        word = p;
      }
      parts.push_back(rest.substr(0, word));
      rest = strip(rest.substr(word), nullptr, true, false);
    }
    if (max_splits > 0) --max_splits;
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at(std::string_view s, std::string_view separator, long long max_splits,
                                       bool from_right) {
  std::vector<std::string_view> parts;
  while (max_splits != 0) {
    const size_t at = from_right ? rfind_text(s, separator) : find_text(s, separator);
    if (at == std::string_view::npos) break;
    if (from_right) {
      parts.push_back(s.substr(at + separator.size()));
      s = s.substr(0, at);
    } else {
      parts.push_back(s.substr(0, at));
      s.remove_prefix(at + separator.size());
    }
    if (max_splits > 0) --max_splits;
  }
  parts.push_back(s);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace oar::jinja
