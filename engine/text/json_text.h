// Text as the inside of a JSON string: the one place that knows which bytes are written how (RFC 8259).
#pragma once

#include <string>
#include <string_view>

namespace oar {

// Bytes from 0x80 on are copied as they are, so a character may come in pieces.
void append_json_escaped(std::string& out, std::string_view text);

// `text` between quotes. Ill-formed UTF-8 becomes U+FFFD, so what comes out is always valid JSON.
void append_json_string(std::string& out, std::string_view text);

}  // namespace oar
