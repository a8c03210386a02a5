// Any bytes as what a client sends over one HTTP connection: the server answers or hangs up, never waits for
// more after the client has finished sending, and serves the next client.
#include <cstdlib>

#include "server/http/http_server.h"
#include "tests/fuzz/target.h"
#include "tests/server/raw_client.h"

namespace {

// Answers with what it was given, whole or streamed, or not at all.
oar::http::HttpServer& server() {
  static const std::unique_ptr<oar::http::HttpServer> running = [] {
    using namespace oar::http;  // NOLINT
    Router router;
    router.add("POST", "/echo", [](Request&& r, std::shared_ptr<ResponseWriter> w) {
      w->send({200, "text/plain", {{"X-Query", r.query}}, r.body});
    });
    router.add("POST", "/stream/{part}", [](Request&& r, std::shared_ptr<ResponseWriter> w) {
      w->start_stream({200, "text/plain", {{"X-Part", r.params[0]}}, "begin"});
      w->write(r.body);
      w->finish();
    });
    router.add("GET", "/rest/{all*}", [](Request&& r, std::shared_ptr<ResponseWriter> w) {
      w->send({200, "text/plain", {}, r.params[0]});
    });
    router.add("GET", "/nothing", [](Request&&, std::shared_ptr<ResponseWriter>) {});
    HttpServerOptions o;
    o.address = "127.0.0.1:0";
    o.threads = 1;
    o.limits.header_bytes = 2048;
    o.limits.target_bytes = 512;
    o.limits.body_bytes = 16 << 10;
    o.limits.linger_timeout = std::chrono::milliseconds(200);
    auto started = HttpServer::start(std::move(o), std::move(router));
    if (!started.ok()) std::abort();
    return std::move(*started);
  }();
  return *running;
}

}  // namespace

OAR_FUZZ_TARGET(http) {
  if (size == 0) return 0;
  oar_test::RawClient client(server().port());
  // The first byte says how large the pieces are that the rest arrives in.
  const size_t piece = data[0] == 0 ? size : size_t{data[0]} * 8;
  for (size_t at = 1; at < size; at += piece) {
    client.send({reinterpret_cast<const char*>(data) + at, std::min(piece, size - at)});
  }
  client.shutdown_send();
  const std::string answer = client.receive_all(std::chrono::milliseconds(3000));
  if (!answer.empty() && answer.compare(0, 9, "HTTP/1.1 ") != 0) std::abort();
  return 0;
}
