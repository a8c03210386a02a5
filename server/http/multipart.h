// Bodies of multipart/form-data (RFC 7578, RFC 2046), as /v1/files takes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace oar::http {

struct FormPart {
  std::string name;
  std::optional<std::string> file_name;  // absent: a field of the form
  std::string_view content;              // in the body
};

// The parts of a body that the request's Content-Type says is such a form; the body must outlive them.
// INVALID_ARGUMENT for another type, a body that does not keep its boundaries, a part without a name, a name
// that comes twice, or more than 16 parts.
Result<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body);

}  // namespace oar::http
