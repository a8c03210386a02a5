// Protobuf's text format as JSON: what a model repository's config.pbtxt is written in. A field that occurs
// more than once becomes an array, a message an object, an enum its name; the reader of a config does not
// care which of the two a file was. Not a schema: unknown fields pass through. Input is untrusted: size and
// depth are bounded.
#pragma once

#include <string_view>

#include "engine/base/json.h"

namespace oar {

// `what` names the file in messages, which give the line.
Result<json::object> parse_text_config(std::string_view text, std::string_view what);

}  // namespace oar
