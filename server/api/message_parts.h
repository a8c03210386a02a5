// Contents of messages that are arrays of parts, as OpenAI's and Anthropic's clients send them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar::api {

// The text of a content: a string, or an array of parts of these types, joined the way most templates'
// authors assume: one per line. A part's text is its member "text", but a refusal's is "refusal".
Result<std::string> text_of_content(const json::value& content, const std::string& path,
                                    std::initializer_list<std::string_view> types);

}  // namespace oar::api
