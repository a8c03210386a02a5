// Accepting, spreading connections over the threads, and stopping. One io_context per thread: a connection
// lives on one thread for good, so it needs no locks.
#include "server/http/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "engine/base/format.h"
#include "server/http/connection.h"

namespace oar::http {
namespace {

using boost::system::error_code;

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

Result<HostPort> split_address(const std::string& address) {
  const std::string remedy = "write host:port, for instance 127.0.0.1:8000 or [::1]:0";
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return invalid_argument(cat("listening address '", address, "' has no port; ", remedy), "http");
  }
  HostPort out;
  out.host = address.substr(0, colon);
  if (out.host.size() >= 2 && out.host.front() == '[' && out.host.back() == ']') {
    out.host = out.host.substr(1, out.host.size() - 2);
  }
  const char* end = address.data() + address.size();
  const auto parsed = std::from_chars(address.data() + colon + 1, end, out.port);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return invalid_argument(cat("listening address '", address, "' has a bad port; ", remedy), "http");
  }
  return out;
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpServerOptions options, Router router) : host_(std::make_shared<ConnectionHost>()) {
    host_->options = std::move(options);
    host_->router = std::move(router);
    host_->closed = [this](Connection* c) { forget(c); };
    for (int i = 0; i < std::max(1, host_->options.threads); ++i) {
      host_->contexts.push_back(std::make_unique<asio::io_context>(1));
    }
  }
  ~HttpServerImpl() override { stop(std::chrono::milliseconds(0)); }

  Status listen();
  int port() const override { return port_; }
  size_t connections() const override {
    std::lock_guard lock(mutex_);
    return connections_.size();
  }
  void begin_drain() override;
  bool stop(std::chrono::milliseconds timeout) override;

 private:
  void run(asio::io_context& context);
  void accept();
  void on_accept(error_code ec, Tcp::socket socket);
  void turn_away(Tcp::socket socket);
  void forget(Connection* c);
  asio::io_context& next_context() { return *host_->contexts[turn_ % host_->contexts.size()]; }

  std::shared_ptr<ConnectionHost> host_;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Tcp::acceptor> acceptor_;
  std::unique_ptr<asio::steady_timer> retry_;
  size_t turn_ = 0;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;  // guarded by mutex_
};

Status HttpServerImpl::listen() {
  const std::string& address = host_->options.address;
  OAR_ASSIGN(const HostPort where, split_address(address));
  asio::io_context& io = *host_->contexts[0];
  error_code ec;
  Tcp::resolver resolver(io);
  const auto found = resolver.resolve(where.host, std::to_string(where.port),
                                      Tcp::resolver::passive | Tcp::resolver::numeric_service, ec);
  if (ec || found.empty()) {
    return invalid_argument(cat("cannot resolve listening address '", address, "': ", ec.message()), "http");
  }
  const Tcp::endpoint endpoint = *found.begin();
  acceptor_ = std::make_unique<Tcp::acceptor>(io);
  acceptor_->open(endpoint.protocol(), ec);
  if (!ec) acceptor_->set_option(Tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor_->bind(endpoint, ec);
  if (!ec) acceptor_->listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return unavailable(cat("cannot listen on ", address, ": ", ec.message(), "; choose another port"));
  port_ = acceptor_->local_endpoint(ec).port();
  retry_ = std::make_unique<asio::steady_timer>(io);
  accept();
  for (auto& context : host_->contexts) {
    guards_.push_back(asio::make_work_guard(*context));
    threads_.emplace_back([this, context = context.get()] { run(*context); });
  }
  return ok_status();
}

// Nothing a handler throws (out of memory, for all we know) may end the process; its connection is dropped
// with it.
void HttpServerImpl::run(asio::io_context& context) {
  for (;;) {
    try {
      context.run();
      return;
    } catch (const std::exception& e) {
      host_->options.log(LogLevel::kError, cat("http: a handler failed: ", e.what()));
    }
  }
}

void HttpServerImpl::accept() {
  ++turn_;
  acceptor_->async_accept(next_context(),
                          [this](error_code ec, Tcp::socket socket) { on_accept(ec, std::move(socket)); });
}

void HttpServerImpl::on_accept(error_code ec, Tcp::socket socket) {
  if (!acceptor_->is_open()) return;
  if (ec) {
    // Out of descriptors or memory: waiting lets others finish; spinning would not.
    host_->options.log(LogLevel::kWarning, cat("http: accept failed: ", ec.message()));
    retry_->expires_after(std::chrono::milliseconds(100));
    retry_->async_wait([this](error_code stopped) {
      if (!stopped && acceptor_->is_open()) accept();
    });
    return;
  }
  std::shared_ptr<Connection> connection;
  {
    std::lock_guard lock(mutex_);
    if (connections_.size() < host_->options.limits.max_connections) {
      connection = std::make_shared<Connection>(host_, next_context(), std::move(socket));
      connections_.emplace(connection.get(), connection);
    }
  }
  if (connection) {
    asio::post(next_context(), [connection] { connection->start(); });
  } else {
    turn_away(std::move(socket));
  }
  accept();
}

// Too many connections: one line, best effort, and no state kept.
void HttpServerImpl::turn_away(Tcp::socket socket) {
  if (host_->options.tls) return;  // it would have to be encrypted first
  const Response full = host_->options.error_response(nullptr, 503, "too many connections; try again later");
  const std::string text = cat("HTTP/1.1 503 ", reason_phrase(503), "\r\nContent-Type: ", full.content_type,
                               "\r\nContent-Length: ", full.body.size(),
                               "\r\nRetry-After: 1\r\nConnection: close\r\n\r\n", full.body);
  error_code ec;
  socket.non_blocking(true, ec);
  socket.write_some(asio::buffer(text), ec);
  socket.shutdown(Tcp::socket::shutdown_send, ec);
}

void HttpServerImpl::forget(Connection* c) {
  std::lock_guard lock(mutex_);
  connections_.erase(c);
  if (connections_.empty()) empty_.notify_all();
}

void HttpServerImpl::begin_drain() {
  if (host_->draining.exchange(true)) return;
  if (acceptor_) {
    asio::post(*host_->contexts[0], [this] {
      error_code ec;
      acceptor_->close(ec);
      retry_->cancel();
    });
  }
  std::lock_guard lock(mutex_);
  for (auto& [raw, connection] : connections_) connection->begin_drain();
}

bool HttpServerImpl::stop(std::chrono::milliseconds timeout) {
  if (threads_.empty()) return true;
  begin_drain();
  bool clean;
  {
    std::unique_lock lock(mutex_);
    clean = empty_.wait_for(lock, timeout, [this] { return connections_.empty(); });
    for (auto& [raw, connection] : connections_) connection->abort();
    // A connection whose start() is still queued closes there; accept may add one until the acceptor is
    // closed.
    while (!connections_.empty()) {
      empty_.wait_for(lock, std::chrono::milliseconds(20));
      for (auto& [raw, connection] : connections_) connection->abort();
    }
  }
  guards_.clear();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  host_->stopped = true;
  for (auto& context : host_->contexts) {  // work posted by handlers that came late
    context->restart();
    context->poll();
  }
  return clean;
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, Router router) {
  if (!options.error_response) {
    options.error_response = [](const Request*, int status, const std::string& message) {
      return Response{status, "text/plain; charset=utf-8", {}, message + "\n"};
    };
  }
  auto server = std::make_unique<HttpServerImpl>(std::move(options), std::move(router));
  OAR_RETURN_IF_ERROR(server->listen());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace oar::http
