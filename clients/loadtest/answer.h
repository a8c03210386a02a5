// What one response says: text, token counts, an error, whether it is whole. Knows the endpoints' JSON, not
// sockets or clocks.
#pragma once

#include <string>
#include <string_view>

#include "clients/loadtest/response.h"
#include "clients/loadtest/workload.h"

namespace oar::loadtest {

class Answer {
 public:
  Answer(Endpoint endpoint, bool keep_text) : endpoint_(endpoint), keep_text_(keep_text) {}

  // Bytes of the body. Returns how many pieces of output they completed; a protocol error is in error().
  int push(std::string_view bytes, bool event_stream);
  // The body has ended.
  void finish(unsigned http_status, bool event_stream);

  const std::string& error() const { return error_; }
  std::string& text() { return text_; }
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t output_tokens() const { return output_tokens_ >= 0 ? output_tokens_ : chunks_; }
  bool counted_by_server() const { return output_tokens_ >= 0; }
  int64_t chunks() const { return chunks_; }

 private:
  bool event(std::string_view data);  // true: it had output
  bool read(const json::object& o);
  void read_usage(const json::object& o);

  Endpoint endpoint_;
  bool keep_text_;
  SseParser sse_;
  std::string body_;  // of a response that is not a stream
  std::string text_, error_;
  int64_t prompt_tokens_ = 0, output_tokens_ = -1, chunks_ = 0;
  bool done_ = false, finish_reason_ = false;
};

}  // namespace oar::loadtest
