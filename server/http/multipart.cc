#include "server/http/multipart.h"

#include <algorithm>

#include "engine/base/format.h"
#include "server/http/message.h"

namespace oar::http {
namespace {

constexpr size_t kMostParts = 16;
constexpr size_t kMostHead = 8 << 10;  // of one part
constexpr size_t kMostBoundary = 70;   // RFC 2046, 5.1.1

Status wrong(std::string_view what) {
  return invalid_argument(cat("the body is no multipart/form-data: ", what));
}

// `name=value` of a header's parameters, the value bare or in quotes; nothing when it is not there.
std::optional<std::string> parameter(std::string_view header, std::string_view name) {
  size_t at = header.find(';');
  while (at < header.size()) {
    ++at;  // the semicolon
    const size_t equals = header.find('=', at);
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string_view key = trim(header.substr(at, equals - at));
    std::string value;
    size_t end = equals + 1;
    while (end < header.size() && header[end] == ' ') ++end;
    if (end < header.size() && header[end] == '"') {
      for (++end; end < header.size() && header[end] != '"'; ++end) {
        // Browsers write a quote as %22; others put a backslash before it.
        if (header[end] == '\\' && end + 1 < header.size() &&
            (header[end + 1] == '"' || header[end + 1] == '\\'))
          ++end;
        value += header[end];
      }
      if (end == header.size()) return std::nullopt;  // no closing quote
      end = header.find(';', end);
    } else {
      const size_t stop = std::min(header.find(';', end), header.size());
      value = trim(header.substr(end, stop - end));
      end = stop;
    }
    if (iequals(key, name)) return value;
    at = end;
  }
  return std::nullopt;
}

Status read_head(std::string_view head, FormPart& part) {
  bool named = false;
  while (!head.empty()) {
    const size_t end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(head.size(), end + 2));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return wrong("a part's header has no colon");
    const std::string_view name = trim(line.substr(0, colon)), value = trim(line.substr(colon + 1));
    if (iequals(name, "Content-Transfer-Encoding") && !iequals(value, "binary") && !iequals(value, "8bit") &&
        !iequals(value, "7bit"))
      return wrong("a part has a Content-Transfer-Encoding; send the bytes themselves");
    if (!iequals(name, "Content-Disposition")) continue;
    if (!iequals(trim(value.substr(0, value.find(';'))), "form-data")) return wrong("a part is no form-data");
    auto given = parameter(value, "name");
    if (!given || given->empty()) return wrong("a part has no name");
    part.name = std::move(*given);
    part.file_name = parameter(value, "filename");
    named = true;
  }
  return named ? ok_status() : wrong("a part has no Content-Disposition");
}

}  // namespace

Result<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body) {
  if (!iequals(trim(content_type.substr(0, content_type.find(';'))), "multipart/form-data"))
    return wrong("the Content-Type says another; send a form with a file");
  const auto boundary = parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kMostBoundary)
    return wrong("the Content-Type has no boundary");
  const std::string line = cat("--", *boundary), next = cat("\r\n", line);
  // Before the first boundary may stand what nobody reads.
  size_t at = body.starts_with(line) ? line.size() : body.find(next);
  if (at == std::string_view::npos) return wrong("its first boundary is not there");
  if (!body.starts_with(line)) at += next.size();
  std::vector<FormPart> parts;
  for (;;) {
    if (body.substr(at).starts_with("--")) return parts;
    while (at < body.size() && (body[at] == ' ' || body[at] == '\t')) ++at;  // padding of transports
    if (!body.substr(at).starts_with("\r\n")) return wrong("a boundary goes on");
    at += 2;
    if (parts.size() == kMostParts) return wrong(cat("it has more than ", kMostParts, " parts"));
    const size_t head_end = body.substr(at, kMostHead).find("\r\n\r\n");
    if (head_end == std::string_view::npos) return wrong("the header of a part does not end, or is too long");
    FormPart part;
    OAR_RETURN_IF_ERROR(read_head(body.substr(at, head_end), part));
    at += head_end + 4;
    // An empty part's boundary may follow its header at once.
    const size_t end = body.substr(at - 2).starts_with(next) ? at - 2 : body.find(next, at);
    if (end == std::string_view::npos) return wrong("its last boundary is not there");
    part.content = end < at ? std::string_view() : body.substr(at, end - at);
    at = end + next.size();
    for (const FormPart& other : parts)
      if (other.name == part.name) return wrong(cat("two parts are called ", part.name.substr(0, 64)));
    parts.push_back(std::move(part));
  }
}

}  // namespace oar::http
