// The request log: one line of JSON for each generation request, written when it has ended or was refused, by
// an engine or before it reached one. Its fields are those of RequestLine; times are in seconds.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "engine/base/status.h"

namespace oar::api {

// What one line says.
struct RequestLine {
  std::string id, model;  // of a refused request, the model as the caller calls it where there is none
  std::string key;        // name of the API key; empty: none is asked for
  size_t prompts = 0;
  int32_t choices = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;  // of all prompts and choices
  int64_t preemptions = 0;
  double queued = 0;       // until the first prompt was scheduled; 0: none was
  double first_token = 0;  // until the first token of any choice; 0: there was none
  double total = 0;
  std::string finish;  // "stop", "length", ...; of a choice that failed, if there is one
  StatusCode status = StatusCode::kOk;
};

// Any thread.
class RequestLog {
 public:
  // Appends to the file at `path`, or to standard output for "-". UNAVAILABLE names a file that cannot be
  // opened.
  static Result<std::unique_ptr<RequestLog>> open(const std::string& path);
  // One write a line: lines of several processes do not mix.
  void write(const RequestLine& line);

 private:
  struct Close {
    void operator()(std::FILE* f) const {
      if (f != stdout) std::fclose(f);
    }
  };
  explicit RequestLog(std::FILE* file) : file_(file) {}
  std::mutex mutex_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace oar::api
