// Fields of a model's configuration, whether its file was protobuf's text format or JSON (text_config.h).
// Errors name the field, what it must be and what it is.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar::config_fields {

Status wrong(std::string_view field, std::string_view wanted, const json::value& got);
// What is absent or null leaves `out` as it is. 64-bit integers may be strings, as protobuf's JSON writes
// them.
Status read_int(const json::object& o, std::string_view field, int64_t min, int64_t max, int64_t& out);
Status read_bool(const json::object& o, std::string_view field, bool& out);
Result<std::string> read_string(const json::object& o, std::string_view field);
// A repeated field: absent, one value, or an array.
std::vector<const json::value*> each(const json::object& o, std::string_view field);
// A map: an object, or a list of messages { key, value }. A key that is there twice is refused.
Result<std::vector<std::pair<std::string, const json::value*>>> entries(const json::object& o,
                                                                        std::string_view field);
Result<std::vector<int64_t>> read_ints(const json::object& o, std::string_view field, int64_t min,
                                       int64_t max);
// Null where it is absent.
Result<const json::object*> message(const json::object& o, std::string_view field);
// A map<string, string>: a JSON object, or pairs of key and value as the text format has them. A key that
// occurs twice is an error.
Result<std::vector<std::pair<std::string, std::string>>> read_map(const json::object& o,
                                                                  std::string_view field);

}  // namespace oar::config_fields
