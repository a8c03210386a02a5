// The fields that constrain an answer, as each protocol calls them: OpenAI's response_format, vLLM's
// structured_outputs and guided_*, SGLang's regex, ebnf, json_schema and structural_tag, llama.cpp's grammar
// and json_schema. All become one ConstraintSpec; a request has at most one.
#pragma once

#include "engine/text/grammar/constraint_compiler.h"
#include "server/api/fields.h"

namespace oar::api {

// The first fault is in `fields`. Schemas and grammars themselves are looked at when they are compiled.
void read_constraint(Fields& fields, grammar::ConstraintSpec& out);

// What OpenAI's formats say beside a schema: name, description and strict. Answers are always strict.
void read_schema_label(Fields& fields);

}  // namespace oar::api
