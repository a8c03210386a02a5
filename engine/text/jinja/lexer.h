// Template source -> tokens, with the whitespace rules of Hugging Face's environment. trim_blocks drops the
// newline after a block or comment tag; lstrip_blocks drops blanks before such a tag that starts its line.
// The signs {%- -%} {%+ +%}, {% raw %} and comments are read; one final newline is dropped.
//
// Not here: grammar (parser.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/value.h"

namespace oar::jinja {

enum class TokenKind : uint8_t {
  kText,        // literal output
  kPrintBegin,  // {{
  kPrintEnd,    // }}
  kTagBegin,    // {%
  kTagEnd,      // %}
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator,  // text holds it: + - / // * % ** ~ [ ] ( ) { } == != > >= < <= = . : | , ;
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
  Int integer = 0;
  double real = 0;

  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// Throws Failure with its line. `source` must be well-formed UTF-8. The last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

// "name 'foo'", "end of template": for messages.
std::string describe(const Token& token);

}  // namespace oar::jinja
