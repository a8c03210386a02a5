// A response that is kept, as the events by which it would have come: pieces come whole.
#pragma once

#include <cstdint>
#include <string>

namespace oar::api {

// `body`: the response as it was stored. Events up to the number `after` are left out; -1: none are.
std::string replayed_response(const std::string& body, int64_t after);

}  // namespace oar::api
