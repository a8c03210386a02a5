// Fields of requests that other servers and their clients know and this server does not read, so that none is
// passed over in silence: each either cannot change an answer, or is refused unless its value asks for
// nothing. One table for every protocol; a field that a request's parser does read is never looked up here.
#pragma once

#include <span>
#include <string_view>

#include "engine/base/json.h"

namespace oar::api {

struct UnreadField {
  std::string_view name;
  // The values that ask for nothing, as the elements of a JSON array. Empty: those that are empty (false, "",
  // [] and {}). "*": every value, for the field cannot change an answer.
  std::string_view idle;
  std::string_view remedy;  // what to do instead; of "*" fields: why it has no effect
};

std::span<const UnreadField> unread_fields();                 // by group, each name once
const UnreadField* find_unread_field(std::string_view name);  // null: nobody is known to send it
// Samplers that are not here, each with the value by which it is off.
json::object idle_samplers();
bool asks_for_nothing(const UnreadField& field, const json::value& value);

}  // namespace oar::api
