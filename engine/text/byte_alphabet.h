// The two ways vocabularies write bytes as text: GPT-2's alphabet, one printable character per byte ("Ġ" is a
// space), and SentencePiece's byte tokens "<0x20>".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oar {

// The character that stands for a byte, as UTF-8.
std::string byte_alphabet_text(uint8_t byte);
// The byte a character stands for.
std::optional<uint8_t> byte_alphabet_byte(char32_t c);
// Each byte of `bytes` through the alphabet.
std::string to_byte_alphabet(std::string_view bytes);
// The bytes that `text` stands for, or nullopt when some character is not in the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view text);

// "<0x0A>" and back; exactly six characters, hexadecimal digits in either case.
std::string byte_token_text(uint8_t byte);
std::optional<uint8_t> byte_token_byte(std::string_view text);

}  // namespace oar
