// UTF-8 decoding by the table of well-formed byte sequences (Unicode 15.0, table 3-7).
#include "engine/text/utf8.h"

namespace oar {

Utf8Probe probe_utf8(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[pos + i]); };
  const unsigned char b0 = byte(0);
  if (b0 < 0x80) return {Utf8Prefix::kComplete, 1, b0};
  uint32_t length = 0;
  char32_t value = 0;
  unsigned char low = 0x80, high = 0xBF;  // bounds of the second byte
  if (b0 >= 0xC2 && b0 <= 0xDF) {
    length = 2, value = b0 & 0x1F;
  } else if (b0 >= 0xE0 && b0 <= 0xEF) {
    length = 3, value = b0 & 0x0F;
    if (b0 == 0xE0) low = 0xA0;   // no overlong forms
    if (b0 == 0xED) high = 0x9F;  // no surrogates
  } else if (b0 >= 0xF0 && b0 <= 0xF4) {
    length = 4, value = b0 & 0x07;
    if (b0 == 0xF0) low = 0x90;
    if (b0 == 0xF4) high = 0x8F;  // nothing past U+10FFFF
  } else {
    return {Utf8Prefix::kInvalid, 1, 0};
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (pos + i >= text.size()) return {Utf8Prefix::kIncomplete, i, 0};
    const unsigned char b = byte(i);
    if (b < low || b > high) return {Utf8Prefix::kInvalid, i, 0};
    value = (value << 6) | (b & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {Utf8Prefix::kComplete, length, value};
}

namespace detail {
CodePoint decode_utf8_slow(std::string_view text, size_t pos) {
  const Utf8Probe p = probe_utf8(text, pos);
  if (p.kind == Utf8Prefix::kComplete) return {p.value, p.length, true};
  return {kReplacementCharacter, p.length, false};
}
}  // namespace detail

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

std::string to_utf8(char32_t c) {
  std::string s;
  append_utf8(s, c);
  return s;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_utf8(text, i);
    if (!c.valid) return false;
    i += c.length;
  }
  return true;
}

std::string repair_utf8(std::string_view text, bool each_byte) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_utf8(text, i);
    if (c.valid) {
      out.append(text.substr(i, c.length));
    } else {
      for (uint32_t n = each_byte ? c.length : 1; n > 0; --n) append_utf8(out, kReplacementCharacter);
    }
    i += c.length;
  }
  return out;
}

}  // namespace oar
