// The grammar of replies with calls in a style, for requests that demand a call or strict arguments. Names
// are those of the tools, arguments follow their schemas. What it allows is what the style's reader reads
// back as such a call.
#pragma once

#include "engine/text/grammar/constraint_compiler.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tools/style.h"
#include "engine/text/tools/tool_request.h"

namespace oar::tools {

// Adds rules and returns their root: nothing but calls where one is required, otherwise text in which every
// call is as declared. With `answer` (may be null) that text is what it allows, or calls instead of it.
// INVALID_ARGUMENT names the strict tool whose schema no grammar can be made of. Markers that are control
// tokens of the tokenizer are those tokens.
Result<grammar::Rule> add_reply(const ToolStyle& style, const ToolRequest& request,
                                const grammar::ConstraintSpec* answer, const Tokenizer& tokenizer,
                                grammar::Grammar& grammar);

// The constraint of a reply to such a request.
Result<std::shared_ptr<const Constraint>> compile_reply(const ToolStyle& style, const ToolRequest& request,
                                                        const grammar::ConstraintSpec* answer,
                                                        const Tokenizer& tokenizer,
                                                        grammar::ConstraintCompiler& compiler);

}  // namespace oar::tools
