// What HTTP handlers see: a parsed request in, a response or a stream out. No Asio, no Beast: those stay in
// connection.cc and http_server.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/status.h"

namespace oar::http {

struct Header {
  std::string name, value;
};

// A complete request. `path` is percent-decoded and holds no NUL; `query` is as sent.
struct Request {
  std::string method;
  std::string target;  // as sent: path and query
  std::string path;
  std::string query;
  int version = 11;  // 10 or 11
  std::vector<Header> headers;
  std::string body;
  std::string peer;                 // address:port
  std::string route;                // pattern of the route that matched, for logs and metrics
  std::vector<std::string> params;  // what the route's {..} segments matched, in order

  // First header of that name (case-insensitive); empty when absent.
  std::string_view header(std::string_view name) const;
  bool has_header(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<Header> headers;
  std::string body;
  // Of an error in OpenAI's words: what went wrong, for a server that words them otherwise.
  std::shared_ptr<const Status> failure = nullptr;
};

// The standard reason phrase; "Status" for unknown codes.
const char* reason_phrase(int status);

// Answers one request: either send() once, or start_stream(), write()..., finish(). Methods may be called
// from any thread, one thread at a time; they never block. After the peer has gone they do nothing. Dropping
// the last reference without an answer sends a 500, so no request can hang on a forgotten path.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;
  virtual void send(Response response) = 0;
  // A body of unknown length: chunked for HTTP/1.1, until close for HTTP/1.0. `response.body` is its first
  // part.
  virtual void start_stream(Response response) = 0;
  virtual void write(std::string_view bytes) = 0;
  // On the connection's thread: more is unsent than the stream's buffer is meant to hold. Then `callback` of
  // on_drain() is called, on that thread too, when most of it has left.
  virtual bool behind() = 0;
  virtual void on_drain(std::function<void()> callback) = 0;
  virtual void finish() = 0;
  // Called once, on the connection's thread, when the peer leaves (or is dropped for not reading) before the
  // answer is complete; at once when that has already happened. Not called after a complete answer.
  virtual void on_disconnect(std::function<void()> callback) = 0;
  // Runs `work` on the connection's thread, in order with other posted work.
  virtual void post(std::function<void()> work) = 0;
};

using Handler = std::function<void(Request&&, std::shared_ptr<ResponseWriter>)>;

// Case-insensitive comparison of ASCII text, as header names and tokens want it.
bool iequals(std::string_view a, std::string_view b);
// Without leading and trailing spaces and tabs.
std::string_view trim(std::string_view s);
// Decodes %XX; false on a broken escape or an encoded NUL.
bool percent_decode(std::string_view in, std::string& out);

}  // namespace oar::http
