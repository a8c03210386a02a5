#include "clients/loadtest/http_request.h"

#include <boost/asio/connect.hpp>

#include "clients/loadtest/response.h"
#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// The steps of one request on an io_context of its own; the caller runs it for as long as it wants to wait.
class HttpCall {
 public:
  HttpCall(asio::io_context& io, const Server& server, std::string request, size_t most)
      : link_(server.links->make(io)),
        request_(std::move(request)),
        most_(most),
        parser_([this](std::string_view part) { body_ += part; }) {}

  void start(const tcp::resolver::results_type& addresses) {
    asio::async_connect(link_->socket(), addresses, [this](error_code ec, const tcp::endpoint&) {
      if (ec) return end(unavailable(cat("cannot connect: ", ec.message())));
      link_->async_open([this](error_code e) {
        if (e) return end(unavailable(cat("TLS: ", e.message())));
        // A server may answer before it has read everything, so reading does not wait for the end of writing.
        link_->async_write(asio::buffer(request_), [](error_code) {});
        wait();
      });
    });
  }
  bool done() const { return done_; }
  const Status& status() const { return status_; }
  HttpReply reply() { return {parser_.status_code(), std::move(body_)}; }
  void close() {
    error_code ignored;
    link_->socket().close(ignored);
  }

 private:
  void end(Status s) {
    done_ = true;
    status_ = std::move(s);
    close();
  }
  void wait() {
    link_->async_wait_readable([this](error_code ec) { ec ? end(unavailable(ec.message())) : read(); });
  }
  void read() {
    char buffer[16 << 10];
    error_code ec;
    const size_t n = link_->read_some(buffer, sizeof buffer, ec);
    if (ec == asio::error::would_block) return wait();
    if (ec == asio::error::eof) return end(parser_.finish());
    if (ec) return end(unavailable(cat("the connection broke: ", ec.message())));
    if (Status s = parser_.push({buffer, n}); !s.ok()) return end(std::move(s));
    if (body_.size() > most_) return end(data_loss(cat("the answer has more than ", format_bytes(most_))));
    if (parser_.done()) return end(ok_status());
    wait();
  }

  std::shared_ptr<Link> link_;
  std::string request_, body_;
  size_t most_;
  ResponseParser parser_;
  bool done_ = false;
  Status status_;
};

}  // namespace

Result<HttpReply> http_request(const Server& server, const std::string& method, const std::string& path,
                               const std::vector<std::string>& headers, const std::string& body,
                               double timeout, size_t most) {
  std::string request = cat(method, " ", server.base, path, " HTTP/1.1\r\nHost: ", server.host, ":",
                            server.port, "\r\nUser-Agent: oar\r\nConnection: close\r\n");
  for (const std::string& h : headers) request += h + "\r\n";
  if (!body.empty() || method != "GET")
    request += cat("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  request += "\r\n";
  request += body;
  asio::io_context io(1);
  error_code ec;
  const auto found = tcp::resolver(io).resolve(server.host, server.port, ec);
  if (ec) return unavailable(cat(server.url, ": ", ec.message()));
  HttpCall call(io, server, std::move(request), most);
  call.start(found);
  io.run_for(std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(timeout)));
  if (!call.done()) {
    call.close();
    io.restart();
    io.poll();  // handlers that hold the call
    return unavailable(cat(server.url, path, ": no answer within ", timeout, " s"));
  }
  io.restart();
  io.poll();
  if (!call.status().ok())
    return Status(call.status().code(), cat(server.url, path, ": ", call.status().message()));
  return call.reply();
}

}  // namespace oar::loadtest
