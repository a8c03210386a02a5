// The two files of `oar batch`, after https://platform.openai.com/docs/api-reference/batch: lines of requests
// in, lines of responses out. Reading, checking and resuming; no network.
#pragma once

#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar::cli {

struct BatchRequest {
  int64_t line = 0;  // in the file, from 1
  std::string custom_id;
  std::string url;  // "/v1/chat/completions"
  std::string body;
};

// {"custom_id": "...", "method": "POST", "url": "/v1/...", "body": {...}}. `set_model` (may be empty) becomes
// the body's "model". INVALID_ARGUMENT names the line and the field.
Result<BatchRequest> parse_batch_line(std::string_view text, int64_t line, const std::string& set_model = {});
// The output line of an answer with an HTTP status, or of none (status 0): then `body` is what went wrong.
std::string batch_output_line(const std::string& custom_id, unsigned status, const std::string& body);

// Requests still to be done, handed out one by one. Any thread after open().
class BatchInput {
 public:
  // Reads the whole file once: every line must be a request, every custom_id its own. `done` are left out.
  static Result<std::unique_ptr<BatchInput>> open(const std::string& path, const std::string& set_model,
                                                  std::unordered_set<std::string> done);
  int64_t total() const { return total_; }  // lines with requests
  int64_t left() const { return left_; }    // of them not done before
  std::optional<BatchRequest> next();

 private:
  std::string set_model_;
  std::unordered_set<std::string> done_;
  int64_t total_ = 0, left_ = 0;
  std::mutex mutex_;
  std::ifstream in_;  // guarded by mutex_, as is the next
  int64_t line_ = 0;
};

// Answers, one line each, on disk before the next is asked for. Any thread after open().
class BatchOutput {
 public:
  // Keeps the good answers (HTTP 200) of an earlier run and drops everything else of it: errors, which are
  // worth another try, and a line cut off by a crash. `done` gets the custom_ids of what was kept. `restart`:
  // keeps nothing.
  static Result<std::unique_ptr<BatchOutput>> open(const std::string& path, bool restart,
                                                   std::unordered_set<std::string>& done);
  Status append(const std::string& line);

 private:
  std::string path_;
  std::mutex mutex_;
  std::ofstream out_;
};

}  // namespace oar::cli
