// One record of a stream of server-sent events as Anthropic's messages and OpenAI's responses have them: its
// name, and a document that begins with its type.
#pragma once

#include <string>
#include <string_view>

#include "server/api/json_writer.h"

namespace oar::api {

// `members` writes what follows the type: members(JsonWriter&).
template <class F>
void append_record(std::string& out, std::string_view type, F&& members) {
  out += "event: ";
  out += type;
  out += "\ndata: ";
  JsonWriter w(out);
  w.begin_object().key("type").string(type);
  members(w);
  w.end_object();
  out += "\n\n";
}

}  // namespace oar::api
