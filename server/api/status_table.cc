#include "server/api/status_table.h"

#include "engine/base/format.h"
#include "server/api/json_writer.h"

namespace oar::api {
namespace {

constexpr ErrorKind kKinds[] = {
    {StatusCode::kOk, 200, "", nullptr, ""},
    {StatusCode::kCancelled, 499, "request_cancelled", "cancelled", "api_error"},
    {StatusCode::kUnknown, 500, "server_error", nullptr, "api_error"},
    {StatusCode::kInvalidArgument, 400, "invalid_request_error", nullptr, "invalid_request_error"},
    // It is the request's own, so that no server is at fault.
    {StatusCode::kDeadlineExceeded, 408, "timeout_error", "deadline_exceeded", "timeout_error"},
    {StatusCode::kNotFound, 404, "not_found_error", "not_found", "not_found_error"},
    {StatusCode::kAlreadyExists, 409, "invalid_request_error", "already_exists", "invalid_request_error"},
    {StatusCode::kPermissionDenied, 403, "permission_error", "permission_denied", "permission_error"},
    {StatusCode::kResourceExhausted, 429, "rate_limit_error", "resource_exhausted", "rate_limit_error"},
    {StatusCode::kFailedPrecondition, 400, "invalid_request_error", "failed_precondition",
     "invalid_request_error"},
    {StatusCode::kAborted, 409, "server_error", "aborted", "api_error"},
    // What does not fit is a prompt: Frontend::make_spec() and Scheduler::add().
    {StatusCode::kOutOfRange, 400, "invalid_request_error", "context_length_exceeded",
     "invalid_request_error"},
    {StatusCode::kUnimplemented, 501, "invalid_request_error", "not_implemented", "invalid_request_error"},
    {StatusCode::kInternal, 500, "server_error", "internal_error", "api_error"},
    {StatusCode::kUnavailable, 503, "unavailable_error", "unavailable", "overloaded_error"},
    {StatusCode::kDataLoss, 500, "server_error", "data_loss", "api_error"},
    {StatusCode::kUnauthenticated, 401, "authentication_error", "invalid_api_key", "authentication_error"},
};

// OpenAI's for a model that is not there; another NOT_FOUND is a path.
constexpr ErrorKind kNoModel = {StatusCode::kNotFound, 404, "invalid_request_error", "model_not_found",
                                "not_found_error"};

void write_excess(JsonWriter& w, const PromptExcess& excess) {
  if (excess.tokens == 0) return;
  w.key("n_prompt_tokens").number(excess.tokens).key("n_ctx").number(excess.context);
}

constexpr const char* kExcess = "exceed_context_size_error";

}  // namespace

const ErrorKind& error_kind(StatusCode code) {
  const auto index = static_cast<size_t>(code);
  return index < std::size(kKinds) ? kKinds[index] : kKinds[static_cast<size_t>(StatusCode::kUnknown)];
}

StatusCode status_code_of_http(int http) {
  switch (http) {
    case 401: return StatusCode::kUnauthenticated;
    case 403: return StatusCode::kPermissionDenied;
    case 404: return StatusCode::kNotFound;
    case 408:
    case 504: return StatusCode::kDeadlineExceeded;
    case 429: return StatusCode::kResourceExhausted;
    case 499: return StatusCode::kCancelled;
    case 501: return StatusCode::kUnimplemented;
    case 503: return StatusCode::kUnavailable;
    default: return http >= 500 ? StatusCode::kInternal : StatusCode::kInvalidArgument;
  }
}

void write_openai_error(JsonWriter& w, const Status& status, int http) {
  const bool no_model = status.code() == StatusCode::kNotFound && status.param() == "model";
  const ErrorKind& kind =
      no_model ? kNoModel : error_kind(http == 0 ? status.code() : status_code_of_http(http));
  w.begin_object().key("message").string(status.message());
  w.key("type").string(kind.openai_type);
  w.key("param").string_or_null(status.param());
  w.key("code").string_or_null(kind.openai_code ? kind.openai_code : "").end_object();
}

std::string openai_error(const Status& status, int http) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("error");
  write_openai_error(w, status, http);
  w.end_object();
  return out;
}

std::string anthropic_error(const Status& status, int http) {
  const ErrorKind& kind = error_kind(http == 0 ? status.code() : status_code_of_http(http));
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("type").string("error").key("error").begin_object();
  w.key("type").string(kind.anthropic_type).key("message").string(status.message());
  w.end_object().end_object();
  return out;
}

std::string openai_excess_error(const Status& status, const PromptExcess& excess) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("error").begin_object();
  w.key("message").string(status.message()).key("type").string(kExcess);
  w.key("param").string_or_null(status.param()).key("code").string(error_kind(status.code()).openai_code);
  write_excess(w, excess);
  w.end_object().end_object();
  return out;
}

std::string llama_error(const Status& status, int http, const PromptExcess& excess) {
  const StatusCode code = http == 0 ? status.code() : status_code_of_http(http);
  const ErrorKind& kind = error_kind(code);
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("error").begin_object().key("code").number(http == 0 ? kind.http : http);
  w.key("message").string(status.message());
  w.key("type").string(code == StatusCode::kUnimplemented ? "not_supported_error"
                       : code == StatusCode::kOutOfRange  ? kExcess
                                                          : kind.openai_type);
  write_excess(w, excess);
  w.end_object().end_object();
  return out;
}

std::string oip_error(const Status& status) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("error").string(status.message()).end_object();
  return out;
}

}  // namespace oar::api
