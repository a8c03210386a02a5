// Bytes of an HTTP/1.1 response to events: pure, fed as the bytes come, hostile input expected. Server-sent
// events after https://html.spec.whatwg.org/multipage/server-sent-events.html, of which servers of language
// models use `data:` and comments.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace oar::loadtest {

// Joins lines of a body into events. Lines end with \n, \r\n or \r.
class SseParser {
 public:
  // `on_data` gets the data of each complete event.
  template <class F>
  Status push(std::string_view bytes, F&& on_data);
  // True when the body ended inside an event: bytes were lost or never sent.
  bool incomplete() const { return !line_.empty() || has_data_; }

  static constexpr size_t kMaxEvent = size_t{16} << 20;

 private:
  void end_line(std::string_view line);
  std::string line_;  // the part of a line that the last push ended in
  std::string data_;
  bool has_data_ = false, after_cr_ = false;
};

template <class F>
Status SseParser::push(std::string_view bytes, F&& on_data) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      line_ += bytes;
      if (line_.size() + data_.size() > kMaxEvent)
        return Status(StatusCode::kDataLoss, "the server sent an event of more than 16 MiB");
      return ok_status();
    }
    after_cr_ = bytes[end] == '\r';
    std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (!line_.empty()) {
      line_ += line;
      line = line_;
    }
    if (line.empty()) {
      if (has_data_) on_data(std::string_view(data_));
      data_.clear();
      has_data_ = false;
    } else {
      end_line(line);
    }
    line_.clear();
    if (data_.size() > kMaxEvent)
      return Status(StatusCode::kDataLoss, "the server sent an event of more than 16 MiB");
  }
  return ok_status();
}

// One response. The body arrives through `on_body`.
class ResponseParser {
 public:
  explicit ResponseParser(std::function<void(std::string_view)> on_body);
  ~ResponseParser();
  // DATA_LOSS when the bytes are no HTTP response, or go on behind its end.
  Status push(std::string_view bytes);
  // The connection has ended. DATA_LOSS when the response has not.
  Status finish();
  bool done() const;
  bool has_header() const;
  bool keep_alive() const;
  unsigned status_code() const;
  std::string_view content_type() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string pending_;  // bytes the parser wants to see again with more behind them
};

}  // namespace oar::loadtest
