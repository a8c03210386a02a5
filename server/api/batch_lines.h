// The lines of a batch, after https://platform.openai.com/docs/api-reference/batch: lines of requests in,
// lines of responses out. Reading, checking and resuming, for /v1/batches and for `oar batch`; no network.
#pragma once

#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/status.h"

namespace oar::api {

struct BatchRequest {
  int64_t line = 0;  // in the file, from 1
  std::string custom_id;
  std::string url;  // "/v1/chat/completions"
  std::string body;
};

// {"custom_id": "...", "method": "POST", "url": "/v1/...", "body": {...}}. `set_model` (may be empty) becomes
// the body's "model". INVALID_ARGUMENT names the line and the field.
Result<BatchRequest> parse_batch_line(std::string_view text, int64_t line, const std::string& set_model = {});
// The output line of an answer with an HTTP status.
std::string batch_output_line(const std::string& custom_id, unsigned status, const std::string& body);
// That of a request without an answer.
std::string batch_error_line(const std::string& custom_id, const char* code, const std::string& message);

// What a whole file of requests has to keep.
struct BatchRules {
  std::string endpoint;      // every line's url; empty: any
  int64_t max_requests = 0;  // 0: any number
  size_t max_faults = 1;     // after so many nobody looks further
};
struct BatchFault {
  int64_t line = 0;  // 0: the file as a whole
  Status why;        // INVALID_ARGUMENT, with the field
};
struct BatchCheck {
  int64_t requests = 0;  // good lines
  std::vector<BatchFault> faults;
  std::unordered_set<std::string> ids;  // of the good lines
};
// Every line must be a request, and every custom_id its own. NOT_FOUND when the file cannot be read.
Result<BatchCheck> check_batch(const std::string& path, const BatchRules& rules);

// Requests still to be done, handed out one by one. Any thread after open().
class BatchInput {
 public:
  // Checks the whole file first; its first fault is the status. `done` are left out.
  static Result<std::unique_ptr<BatchInput>> open(const std::string& path, const std::string& set_model,
                                                  std::unordered_set<std::string> done);
  // Of a file that was found good.
  static Result<std::unique_ptr<BatchInput>> open(const std::string& path, const BatchCheck& checked,
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
  // What stays of an earlier run's lines. A line cut off by a crash never does. kGood: answers with HTTP 200
  // alone, for errors are worth another try.
  enum class Keep { kNothing, kGood, kAll };
  // `done` gets the custom_ids of what was kept; a line whose custom_id is there already is dropped.
  static Result<std::unique_ptr<BatchOutput>> open(const std::string& path, Keep keep,
                                                   std::unordered_set<std::string>& done);
  Status append(const std::string& line);

 private:
  std::string path_;
  std::mutex mutex_;
  std::ofstream out_;
};

}  // namespace oar::api
