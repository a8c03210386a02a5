// A TCP client that sends exactly the bytes it is told to, and a small HTTP/1.1 reader for what comes back.
// Blocking with timeouts; one object per connection.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace oar_test {

struct HttpReply {
  int status = 0;
  std::string head;                            // status line and headers as received
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunk framing
  bool complete = false;                       // ended where its framing says
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False when the peer has closed or reset, or did not take it within 10 s.
  bool send(std::string_view bytes);
  void shutdown_send();
  void close();
  void reset();  // closes with RST
  // What arrives next: empty at the end of the stream, on an error or after the timeout.
  std::string receive(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));
  // Everything until the peer closes.
  std::string receive_all(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));
  bool closed_by_peer(std::chrono::milliseconds timeout = std::chrono::milliseconds(5000));
  // One response; bytes behind it stay for the next call.
  HttpReply read_reply(bool head_request = false);
  // Reads until the text has been seen in the raw stream.
  bool read_until(std::string_view text);
  const std::string& buffered() const { return buffer_; }

 private:
  int fd_ = -1;
  std::string buffer_;
};

using Headers = std::vector<std::pair<std::string, std::string>>;
std::string make_request(std::string_view method, std::string_view path, std::string_view body = {},
                         const Headers& headers = {});
// One request on a connection of its own.
HttpReply http(int port, std::string_view method, std::string_view path, std::string_view body = {},
               const Headers& headers = {});
// The data of server-sent events.
std::vector<std::string> sse_data(std::string_view body);

}  // namespace oar_test
