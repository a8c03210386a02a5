#include "engine/text/line_reader.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/base/strip.h"
#include "engine/text/utf8.h"

namespace oar {

Status LineReader::wrong(int64_t line, std::string_view what) const {
  return invalid_argument(cat(path_, ", line ", line, ": ", what));
}

Status LineReader::checked(std::string_view text, int64_t line) const {
  return is_valid_utf8(text) ? ok_status() : wrong(line, "is not UTF-8; convert the file, say with iconv");
}

Result<json::object> LineReader::object(std::string_view text, int64_t line,
                                        std::string_view expected) const {
  auto parsed = parse_json(text, cat("line ", line));
  if (!parsed.ok()) return invalid_argument(cat(path_, ": ", parsed.status().message()));
  if (!parsed->is_object()) return wrong(line, cat("is no JSON object; one with ", expected, " is expected"));
  return std::move(parsed->get_object());
}

Status LineReader::only(const json::object& o, std::initializer_list<std::string_view> known,
                        int64_t line) const {
  for (const auto& [key, value] : o) {
    if (std::find(known.begin(), known.end(), std::string_view(key)) == known.end())
      return wrong(line, cat("the key '", repair_utf8(std::string_view(key).substr(0, 64)),
                             "' is not one that is read; remove it"));
  }
  return ok_status();
}

Result<std::string_view> LineReader::string(const json::object& o, const char* key, int64_t line) const {
  const json::value* const v = o.if_contains(key);
  if (v == nullptr || !v->is_string()) return wrong(line, cat("'", key, "' must be a string"));
  return std::string_view(v->get_string());
}

}  // namespace oar
