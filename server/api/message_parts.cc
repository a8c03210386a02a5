#include "server/api/message_parts.h"

#include <algorithm>

#include "engine/base/format.h"
#include "server/api/fields.h"

namespace oar::api {

Result<std::string> text_of_content(const json::value& content, const std::string& path,
                                    std::initializer_list<std::string_view> types) {
  if (content.is_string()) return std::string(content.get_string());
  if (!content.is_array())
    return invalid_argument(cat(path, " must be a string or an array of parts, got ", describe(content)),
                            path);
  const json::array& parts = content.get_array();
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string where = cat(path, "[", i, "]");
    if (!parts[i].is_object()) {
      return invalid_argument(
          cat(where, " must be an object {\"type\":\"text\",\"text\":...}, got ", describe(parts[i])), where);
    }
    Fields part(parts[i].get_object(), where + ".");
    std::string type, piece;
    part.string("type", type, 64);
    if (part.ok() && std::find(types.begin(), types.end(), type) == types.end()) {
      part.fail("type",
                cat(where, ".type is ", describe(json::value(type)), "; this model reads text parts only"));
    }
    const std::string_view member = type == "refusal" ? "refusal" : "text";
    if (part.ok() && !part.find(member)) part.fail(member, cat(where, ".", member, " is missing"));
    part.string(member, piece, SIZE_MAX);
    if (!part.ok()) return part.status();
    if (i > 0) text += '\n';
    text += piece;
  }
  return text;
}

}  // namespace oar::api
