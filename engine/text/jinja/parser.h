// Tokens -> Template: Jinja's grammar. Nesting is bounded, so no template can overflow the stack here or in
// the interpreter.
#pragma once

#include <string_view>

#include "engine/text/jinja/ast.h"

namespace oar::jinja {

// Parentheses, brackets, unary operators and open statements around one another.
inline constexpr int kMaxNesting = 200;
// Levels of one expression tree, which a long a + b + c + ... also builds.
inline constexpr int kMaxExprHeight = 400;

// Throws Failure with its line. `source` must be well-formed UTF-8.
Template parse_template(std::string_view source);

}  // namespace oar::jinja
