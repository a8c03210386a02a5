// Strings as Python sees them, on well-formed UTF-8: code-point positions, whitespace, case, character
// classes. Pure functions; the costs of long strings are charged by the callers. Properties come from the
// Unicode tables of this room (unicode/unicode.h); upper and title case, which tokenizers never need, from
// uppercase.inc.
//
// Not here: the methods and filters themselves (methods_text.cc, filters_text.cc).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace oar::jinja {

// Code point at byte `pos` < s.size(); advances `pos` behind it.
char32_t decode_at(std::string_view s, size_t& pos);
size_t count_code_points(std::string_view s);
// Byte offset of code point `index`; s.size() when there are no more than `index`.
size_t byte_offset(std::string_view s, size_t index);

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }  // what numbers are written with

bool is_space(char32_t c);      // str.isspace, str.strip, str.split
bool is_printable(char32_t c);  // whether repr() shows it as it is
bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_title(char32_t c);
bool is_alpha(char32_t c);
bool is_decimal(char32_t c);
bool is_digit_like(char32_t c);  // str.isdigit: also superscripts and circled digits
bool is_numeric(char32_t c);
bool is_word_char(char32_t c);  // \w

std::string to_upper(std::string_view s);
std::string to_lower(std::string_view s);
std::string to_capital(std::string_view s);  // first code point title case, the rest lower
std::string to_title(std::string_view s);    // every run of cased letters
std::string swap_case(std::string_view s);

// First occurrence of `part` at or after byte `from`, last occurrence that ends within s; npos when there is
// none. Linear time for every input: a template must not be able to make a search quadratic.
size_t find_text(std::string_view s, std::string_view part, size_t from = 0);
size_t rfind_text(std::string_view s, std::string_view part);

// What is left of `s` after stripping code points found in `chars` (null: whitespace) from the ends asked
// for.
std::string_view strip(std::string_view s, const std::string_view* chars, bool left, bool right);
// At \n, \r, \r\n, \v, \f, \x1c-\x1e, U+0085, U+2028, U+2029.
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends);
// At runs of whitespace; `max_splits` < 0: no limit. From the right: the last splits count first.
std::vector<std::string_view> split_space(std::string_view s, long long max_splits, bool from_right);
// At `separator`, which is not empty.
std::vector<std::string_view> split_at(std::string_view s, std::string_view separator, long long max_splits,
                                       bool from_right);

}  // namespace oar::jinja
