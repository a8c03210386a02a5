// A server of known behaviour: answers every POST with a stream of server-sent events at exact times, or goes
// wrong in a chosen way. Counts what it saw. Threads of its own, ends with the object.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace oar_test {

struct SseBehaviour {
  enum Fault {
    kNone,
    kReset,          // the connection is reset after half of the chunks
    kStall,          // nothing more after half of the chunks
    kBrokenJson,     // an event that is no JSON
    kHalfEvent,      // ends in the middle of an event
    kEarlyEnd,       // a proper HTTP end, but no [DONE] and no finish reason
    kShortLength,    // Content-Length says more than comes
    kLongLength,     // more comes than Content-Length says
    kNoHttp,         // not HTTP at all
    kRefuse,         // 503 with an error object
    kErrorInStream,  // an error event behind a 200
    kSilent,         // accepts and says nothing
    kCloseAtOnce,    // closes without an answer
  };
  double first_ms = 0;          // from the end of the request to the first output
  double gap_ms = 0;            // between outputs
  int chunks = 5;               // outputs of a stream; 0: as many as max_tokens asks for
  int per_write = 1;            // outputs handed to the kernel at once
  bool usage = true;            // the last event tells token counts
  bool comments = false;        // keep-alive comments and \r\n line ends between events
  int64_t hold_until_open = 0;  // no output before so many streams have been open at once
  int64_t hold_until_told = 0;  // no output before /metrics has told of so many
  Fault fault = kNone;
};

class SseServer {
 public:
  explicit SseServer(SseBehaviour behaviour, int threads = 1, int port = 0);
  ~SseServer();
  std::string url() const;  // "http://127.0.0.1:port"
  int64_t requests() const;
  int64_t connections() const;
  int64_t disconnects() const;  // streams that the client left
  int64_t most_open() const;    // streams open at once
  std::string last_body() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oar_test
