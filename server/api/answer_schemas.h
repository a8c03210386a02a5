// What the server answers, by route, as JSON schemas for /openapi.json: one table of objects and their fields
// (answer_schemas.cc), beside the requests' fields, which parsers list themselves. A test holds real answers
// against it, so that neither has what the other lacks.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"

namespace oar::api {

// By media type, of a route's answer that went well: {"application/json": {"schema": ...}}. Of a stream it
// is that of one event or line. Empty where there is no body, null where the route always refuses.
std::optional<json::object> answer_content(std::string_view method, std::string_view pattern);
// By name, as in "#/components/schemas/NAME".
json::object answer_objects();
// Method and pattern of every route above, in order: what the router has to have.
std::vector<std::pair<std::string_view, std::string_view>> answered_routes();

}  // namespace oar::api
