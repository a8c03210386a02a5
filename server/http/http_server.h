// HTTP/1.1 server: keep-alive, pipelining, chunked bodies both ways, server-sent events. There are hard
// limits on everything a client controls, and a deadline for every state of a connection. Boost.Asio and
// Beast's parser behind this header, in connection.cc and http_server.cc alone.
//
// TLS is OpenSSL's, from server/tls. Not here: HTTP/2 (a proxy in front), routes and their meaning
// (routes.cc), authentication (a hook).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/status.h"
#include "server/http/message.h"
#include "server/http/origin.h"
#include "server/http/router.h"
#include "server/tls/tls.h"

namespace oar::http {

struct Limits {
  // Open at once. Beyond, the connection that has waited longest for its client is closed; with none, only
  // vital routes are answered, on kVitalConnections more.
  size_t max_connections = 4096;
  size_t header_bytes = 16 << 10;         // request line and headers: 431 beyond
  size_t target_bytes = 8 << 10;          // request target: 414 beyond
  size_t body_bytes = 16 << 20;           // one body: 413 beyond
  size_t total_body_bytes = 512 << 20;    // bodies being received over all connections: 503 beyond
  size_t pipelined_bytes = 64 << 10;      // read ahead while a request is being answered; then reading pauses
  size_t stream_buffer_bytes = 64 << 10;  // unsent bytes of a stream; a client further behind is waited for
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds header_timeout{10'000};  // first byte to end of header; also a TLS handshake
  std::chrono::milliseconds body_timeout{60'000};    // end of header to end of body
  std::chrono::milliseconds write_timeout{30'000};   // without a byte accepted by the peer
  std::chrono::milliseconds linger_timeout{5'000};   // reading away what a refused client still sends
};

inline constexpr size_t kVitalConnections = 32;  // probes and scrapers: a handful each

// What a preflight request of an allowed origin is told. Texts that are empty repeat what was asked.
struct CorsAnswer {
  std::string methods, headers;
  bool credentials = false;  // a page may send what the browser knows, such as a client certificate
};

struct HttpServerOptions {
  std::string address = "127.0.0.1:8000";  // host:port, [v6]:port; port 0 picks a free one
  // Begins paths as a proxy before the server passes them on: "/llm/v1/models" is "/v1/models"; empty: none
  // does.
  std::string root_path;
  int threads = 2;
  Limits limits;
  std::shared_ptr<tls::ServerContext> tls;  // null: plain HTTP
  OriginPolicy origins;                     // whose pages may call, and under which names
  CorsAnswer cors;
  Logger log;

  // Looks at a request whose header has arrived and whose body has not; an answer here refuses it.
  std::function<std::optional<Response>(const Request&, const Route&)> admit;
  // Makes the body of an error the server itself answers with. `request` may be null (nothing was parsed).
  std::function<Response(const Request* request, int status, const std::string& message)> error_response;
  // Words an error with a `failure` otherwise before it is sent; empty: it goes as it is.
  std::function<void(const Request& request, Response& error)> reword;
  // After each answered request, on a connection's thread. `route` is a pattern, so its values are few.
  std::function<void(const std::string& route, const std::string& method, int status, double seconds)>
      on_complete;
};

// "a:1,b:2" as its parts.
std::vector<std::string> addresses_in(const std::string& list);
// Whether a server could listen on all of them (host:port) at this moment; empty ones are none.
Status check_addresses(const std::vector<std::string>& addresses);

class HttpServer {
 public:
  // Binds, listens and starts the threads. UNAVAILABLE names the address that could not be had.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, Router router);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual size_t connections() const = 0;
  // Closes the listening socket and idle connections; answers in progress go on and then close theirs.
  virtual void begin_drain() = 0;
  // Waits until no connection is answering, at most `timeout`, then closes the rest and joins the threads.
  // Idempotent. True when nothing had to be cut off.
  virtual bool stop(std::chrono::milliseconds timeout) = 0;
};

}  // namespace oar::http
