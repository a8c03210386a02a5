#include "engine/base/status.h"

#include <cstdio>
#include <cstdlib>

namespace oar {

const char* status_code_name(StatusCode code) {
  static constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto i = static_cast<size_t>(code);
  return i < std::size(kNames) ? kNames[i] : "UNKNOWN";
}

std::string Status::to_string() const {
  if (ok()) return "OK";
  return std::string(status_code_name(code_)) + ": " + message_;
}

namespace detail {
void check_failed(const char* expr, const char* file, int line, std::string_view why) {
  std::fprintf(stderr, "oar: internal check failed at %s:%d: %s%s%.*s\n", file, line, expr,
               why.empty() ? "" : ": ", static_cast<int>(why.size()), why.data());
  std::abort();
}
}  // namespace detail

}  // namespace oar
