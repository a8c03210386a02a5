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

Status::Status(StatusCode code, std::string message, std::string param) {
  if (code != StatusCode::kOk) error_ = new Error{code, 0, std::move(message), std::move(param)};
}
Status::Error* Status::copy(const Error& error) { return new Error(error); }
void Status::destroy(Error* error) { delete error; }
const Status::Error& Status::error() const {
  static const Error kNone;
  return error_ == nullptr ? kNone : *error_;
}
std::string Status::to_string() const {
  if (ok()) return "OK";
  return std::string(status_code_name(code())) + ": " + message();
}

Status invalid_argument(std::string m, std::string param) {
  return {StatusCode::kInvalidArgument, std::move(m), std::move(param)};
}
Status not_found(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
Status resource_exhausted(std::string m) { return {StatusCode::kResourceExhausted, std::move(m)}; }
Status unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
Status unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
Status internal_error(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
Status data_loss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }

namespace detail {
void check_failed(const char* expr, const char* file, int line, std::string_view why) {
  std::fprintf(stderr, "oar: internal check failed at %s:%d: %s%s%.*s\n", file, line, expr,
               why.empty() ? "" : ": ", static_cast<int>(why.size()), why.data());
  std::abort();
}
}  // namespace detail

}  // namespace oar
