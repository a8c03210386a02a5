// What the parsers of conversations share about tools, reasoning and formats: those of /v1/responses and
// /v1/messages are read in the terms of chat completions, and faults are told in the caller's.
#pragma once

#include <string>
#include <string_view>

#include "engine/text/tools/reply_plan.h"
#include "server/api/fields.h"
#include "server/api/model_handle.h"

namespace oar::api {

// {"type":"function","function":{"name":...}}
json::object function_choice(std::string_view name);

// `definitions` and `choice` as chats have them, null for what was not sent. `schema`: how the protocol calls
// the parameters of a tool, whose members have no "function" around them.
void read_tool_request(Fields& f, const json::value& definitions, const json::value& choice, bool parallel,
                       std::string_view schema, tools::ToolRequest& out);

// Faults where nobody knows how the model writes its reasoning, which the field `name` is about.
void require_reasoning_style(Fields& f, std::string_view name, const ModelHandle& model);

// A format of the answer in the flat form: {"type":"json_schema","schema":{...}}, "json_object" or "text".
void read_output_format(Fields& f, std::string_view name, grammar::ConstraintSpec& out);

}  // namespace oar::api
