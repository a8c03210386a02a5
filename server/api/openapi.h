// The description of this server in OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0): the routes as they
// are registered, and of bodies the fields that their parsers ask for. So it cannot say other than what is
// so.
#pragma once

#include <string>
#include <vector>

#include "server/api/generation_request.h"

namespace oar::api {

struct DescribedRoute {
  std::string method, pattern;  // as routers have them: {name}, {name*}
  bool open = false;            // answered without a key
};
std::string openapi_json(const std::vector<DescribedRoute>& routes, const ApiLimits& limits);

}  // namespace oar::api
