// The words for values that a rule refuses, whatever the values came in: JSON (fields.h) or typed messages
// (check_request()). `path` is how the protocol calls the field.
#pragma once

#include <string>
#include <string_view>

#include "engine/base/format.h"

namespace oar::api::rules {

template <class T>
std::string outside(std::string_view path, std::string_view kind, T min, T max, std::string_view got) {
  return cat(path, " must be ", kind, " in [", min, ", ", max, "], got ", got);
}
inline std::string too_long(std::string_view path, size_t bytes, size_t max) {
  return cat(path, " is ", bytes, " bytes long; at most ", max, " are accepted");
}
inline std::string too_many(std::string_view path, std::string_view kind, size_t count, size_t max) {
  return cat(path, " has ", count, " ", kind, "; at most ", max, " are accepted");
}
inline std::string empty(std::string_view path) { return cat(path, " is empty; leave it out"); }
inline std::string weighted_token(std::string_view path, std::string_view id, int64_t ids) {
  return cat(path, " names token id ", id, "; ids are integers in [0, ", ids, ")");
}
inline std::string weight(std::string_view path, int64_t id, double min, double max, std::string_view got) {
  return cat(path, " of token ", id, " must be a number in [", min, ", ", max, "], got ", got);
}

}  // namespace oar::api::rules
