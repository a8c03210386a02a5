#include "server/api/request_log.h"

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "server/api/utc_text.h"

namespace oar::api {
namespace {

// To the microsecond: what a clock knows more is noise.
double rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

}  // namespace

Result<std::unique_ptr<RequestLog>> RequestLog::open(const std::string& path) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "ae");
  if (file == nullptr) {
    return Status(StatusCode::kUnavailable,
                  cat("request-log: cannot append to ", path, ": ", std::strerror(errno)), "request-log");
  }
  return std::unique_ptr<RequestLog>(new RequestLog(file));
}

void RequestLog::write(const RequestLine& line) {
  const std::string text = json::serialize(json::object{{"time", utc_text(std::chrono::system_clock::now())},
                                                        {"id", line.id},
                                                        {"model", line.model},
                                                        {"key", line.key},
                                                        {"prompts", line.prompts},
                                                        {"choices", line.choices},
                                                        {"prompt_tokens", line.prompt_tokens},
                                                        {"cached_tokens", line.cached_tokens},
                                                        {"completion_tokens", line.completion_tokens},
                                                        {"preemptions", line.preemptions},
                                                        {"queued", rounded(line.queued)},
                                                        {"first_token", rounded(line.first_token)},
                                                        {"total", rounded(line.total)},
                                                        {"finish", line.finish},
                                                        {"status", status_code_name(line.status)}}) +
                           "\n";
  const std::lock_guard lock(mutex_);
  std::fwrite(text.data(), 1, text.size(), file_.get());
  std::fflush(file_.get());
}

}  // namespace oar::api
