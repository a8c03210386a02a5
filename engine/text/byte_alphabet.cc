// Bytes that print as themselves in Latin-1 keep their code point; the other 68 take U+0100, U+0101, ... in
// order.
#include "engine/text/byte_alphabet.h"

#include <array>

#include "engine/text/utf8.h"

namespace oar {
namespace {

constexpr bool prints(unsigned b) {
  return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

struct Alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<int16_t, 0x144> of_char{};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet a;
  for (auto& v : a.of_char) v = -1;
  char32_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    a.of_byte[b] = prints(b) ? b : next++;
    a.of_char[a.of_byte[b]] = static_cast<int16_t>(b);
  }
  return a;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string byte_alphabet_text(uint8_t byte) { return to_utf8(kAlphabet.of_byte[byte]); }

std::optional<uint8_t> byte_alphabet_byte(char32_t c) {
  if (c >= kAlphabet.of_char.size() || kAlphabet.of_char[c] < 0) return std::nullopt;
  return static_cast<uint8_t>(kAlphabet.of_char[c]);
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() + bytes.size() / 4);
  for (const char b : bytes) append_utf8(out, kAlphabet.of_byte[static_cast<uint8_t>(b)]);
  return out;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = decode_utf8(text, i);
    const auto byte = c.valid ? byte_alphabet_byte(c.value) : std::nullopt;
    if (!byte) return std::nullopt;
    out += static_cast<char>(*byte);
    i += c.length;
  }
  return out;
}

std::string byte_token_text(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte >> 4] + kDigits[byte & 15] + '>';
}

std::optional<uint8_t> byte_token_byte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    unsigned digit = 0;
    if (c >= '0' && c <= '9') digit = static_cast<unsigned>(c - '0');
    else if (c >= 'a' && c <= 'f') digit = static_cast<unsigned>(c - 'a') + 10;
    else if (c >= 'A' && c <= 'F') digit = static_cast<unsigned>(c - 'A') + 10;
    else return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

}  // namespace oar
