// API keys: one comparison for both transports.
#pragma once

#include <string_view>

namespace oar::api {

// Whether `given` equals `secret` (not empty). Takes time by the length of `given`, not by where the two
// differ.
bool equal_constant_time(std::string_view given, std::string_view secret);
// Whether `authorization` is "Bearer <secret>", the scheme in any case.
bool bearer_matches(std::string_view authorization, std::string_view secret);

}  // namespace oar::api
