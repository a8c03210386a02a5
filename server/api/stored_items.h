// What is kept of chats and responses, as it is listed and labelled.
#pragma once

#include <string>
#include <string_view>

#include "engine/base/json.h"

namespace oar::api {

// The messages of a stored chat, each with an id made of the chat's.
json::array listed_messages(const json::array& messages, std::string_view chat);
// A JSON object with other `metadata`.
std::string labelled(const std::string& body, const json::object& metadata);

}  // namespace oar::api
