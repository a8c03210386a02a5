// UTF-8 in and out: the only place that knows how bytes become code points. Ill-formed input is defined, not
// an error: every maximal ill-formed subpart stands for one U+FFFD (Unicode 15.0, section 3.9, "Best
// Practices for Using U+FFFD"). Rust's String::from_utf8_lossy and the WHATWG decoder do the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace oar {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;
inline constexpr char32_t kMaxCodePoint = 0x10FFFF;

struct CodePoint {
  char32_t value = 0;   // kReplacementCharacter when ill-formed
  uint32_t length = 0;  // bytes consumed, 1..4
  bool valid = false;
};

// How the bytes at text[pos] begin.
enum class Utf8Prefix {
  kComplete,    // a well-formed code point
  kIncomplete,  // the text ends inside what may still become one
  kInvalid,     // no continuation can make it well-formed
};

struct Utf8Probe {
  Utf8Prefix kind = Utf8Prefix::kInvalid;
  uint32_t length =
      0;  // bytes of the code point, of the incomplete tail, or of the maximal ill-formed subpart
  char32_t value = 0;  // when kComplete
};

// A file's text without the byte order mark that some editors begin one with.
inline std::string_view without_mark(std::string_view text) {
  return text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text;
}

// Precondition: pos < text.size().
Utf8Probe probe_utf8(std::string_view text, size_t pos);

namespace detail {
CodePoint decode_utf8_slow(std::string_view text, size_t pos);
}

// The code point at text[pos], pos < text.size(). Within its callers wherever: else the linker may give all
// of them the copy of a file that is compiled for size.
[[gnu::always_inline]] inline CodePoint decode_utf8(std::string_view text, size_t pos) {
  const auto b = static_cast<unsigned char>(text[pos]);
  if (b < 0x80) return {b, 1, true};
  return detail::decode_utf8_slow(text, pos);
}

// Appends c, which must be a scalar value (no surrogate, at most U+10FFFF).
void append_utf8(std::string& out, char32_t c);
std::string to_utf8(char32_t c);

bool is_valid_utf8(std::string_view text);
// The text with ill-formed parts replaced: one U+FFFD per maximal subpart, or with `each_byte` one per byte.
std::string repair_utf8(std::string_view text, bool each_byte = false);

// Start of the code point that ends just before `end` in well-formed text; 0 < end <= text.size().
inline size_t previous_utf8(std::string_view text, size_t end) {
  size_t i = end - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
  return i;
}

// Length in bytes of the code point that starts with this byte of well-formed text.
inline size_t utf8_length(char first) {
  const auto b = static_cast<unsigned char>(first);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

}  // namespace oar
