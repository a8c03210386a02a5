// Accepting, spreading connections over the threads, and stopping. One io_context per thread: a connection
// lives on one thread for good, so it needs no locks.
#include "server/http/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "engine/base/format.h"
#include "server/api/listen_address.h"
#include "server/api/short_turns.h"
#include "server/http/connection.h"

namespace oar::http {
namespace {

using boost::system::error_code;

// Bound and listening.
Result<std::unique_ptr<Tcp::acceptor>> open_acceptor(asio::io_context& io, const std::string& address) {
  OAR_ASSIGN(const api::HostPort where, api::split_address(address, "http"));
  error_code ec;
  Tcp::resolver resolver(io);
  const auto found = resolver.resolve(where.host, std::to_string(where.port),
                                      Tcp::resolver::passive | Tcp::resolver::numeric_service, ec);
  if (ec || found.empty()) {
    return invalid_argument(cat("cannot resolve listening address '", address, "': ", ec.message()), "http");
  }
  const Tcp::endpoint endpoint = *found.begin();
  auto acceptor = std::make_unique<Tcp::acceptor>(io);
  acceptor->open(endpoint.protocol(), ec);
  if (!ec) acceptor->set_option(Tcp::acceptor::reuse_address(true), ec);
  if (!ec) acceptor->bind(endpoint, ec);
  if (!ec) acceptor->listen(asio::socket_base::max_listen_connections, ec);
  if (ec) return unavailable(cat("cannot listen on ", address, ": ", ec.message(), "; choose another port"));
  return acceptor;
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpServerOptions options, Router router) : host_(std::make_shared<ConnectionHost>()) {
    host_->options = std::move(options);
    host_->router = std::move(router);
    host_->closed = [this](Connection* c) { forget(c); };
    host_->waits = [this](Connection* c, bool waits) { set_waiting(c, waits); };
    for (int i = 0; i < std::max(1, host_->options.threads); ++i) {
      host_->loops.push_back(std::make_unique<Loop>());
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
  void run(Loop& loop);
  void accept();
  void on_accept(error_code ec, Tcp::socket socket);
  void begin(std::shared_ptr<Connection> connection, bool paced);
  void turn_away(Tcp::socket socket);
  void forget(Connection* c);
  void set_waiting(Connection* c, bool waits);
  bool close_longest_waiting();  // with mutex_ held; false when none waits
  Loop& next_loop() { return *host_->loops[turn_ % host_->loops.size()]; }

  std::shared_ptr<ConnectionHost> host_;
  std::vector<asio::executor_work_guard<asio::io_context::executor_type>> guards_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Tcp::acceptor> acceptor_;
  std::unique_ptr<asio::steady_timer> retry_;
  size_t turn_ = 0;
  int port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  struct Entry {
    std::shared_ptr<Connection> connection;
    uint64_t waiting_since = 0;  // a key of waiting_, or 0
    bool leaving = false;        // told to make room
  };
  // Guarded by mutex_.
  std::unordered_map<Connection*, Entry> connections_;
  std::map<uint64_t, Connection*> waiting_;  // for their clients; the longest first
  uint64_t waits_ = 0;
  size_t leaving_ = 0;
  std::chrono::steady_clock::time_point said_full_;
};

Status HttpServerImpl::listen() {
  const std::string& address = host_->options.address;
  asio::io_context& io = host_->loops[0]->io;
  OAR_ASSIGN(acceptor_, open_acceptor(io, address));
  error_code ec;
  port_ = acceptor_->local_endpoint(ec).port();
  host_->loopback = acceptor_->local_endpoint(ec).address().is_loopback();
  retry_ = std::make_unique<asio::steady_timer>(io);
  accept();
  for (auto& loop : host_->loops) {
    guards_.push_back(asio::make_work_guard(loop->io));
    threads_.emplace_back([this, loop = loop.get()] { run(*loop); });
  }
  return ok_status();
}

// Nothing a handler throws (out of memory, for all we know) may end the process; its connection is dropped
// with it.
//
// A thread that refuses requests has more of them than the machine can do, and whoever computes shares the
// processors with it. Then it looks at its connections once in 2 ms: woken for every request, it would take a
// processor as often, and find nothing of its own in the caches.
void HttpServerImpl::run(Loop& loop) {
  constexpr std::chrono::milliseconds kPause{2}, kOverloaded{50};
  api::prefer_short_turns();
  for (;;) {
    try {
      while (loop.io.run_one() > 0) {
        loop.io.poll();
        if (std::chrono::steady_clock::now() - loop.refused < kOverloaded)
          std::this_thread::sleep_for(kPause);
      }
      return;
    } catch (const std::exception& e) {
      host_->options.log(LogLevel::kError, cat("http: a handler failed: ", e.what()));
    }
  }
}

void HttpServerImpl::accept() {
  ++turn_;
  acceptor_->async_accept(next_loop().io,
                          [this](error_code ec, Tcp::socket socket) { on_accept(ec, std::move(socket)); });
}

void HttpServerImpl::on_accept(error_code ec, Tcp::socket socket) {
  if (!acceptor_->is_open()) return;
  if (ec) {
    // Out of descriptors or memory: waiting lets others finish; spinning would not.
    host_->options.log(LogLevel::kWarning, cat("http: accept failed: ", ec.message()));
    if (std::lock_guard lock(mutex_); leaving_ == 0) close_longest_waiting();
    retry_->expires_after(std::chrono::milliseconds(100));
    retry_->async_wait([this](error_code stopped) {
      if (!stopped && acceptor_->is_open()) accept();
    });
    return;
  }
  std::shared_ptr<Connection> connection;
  bool full;
  {
    std::lock_guard lock(mutex_);
    const size_t limit = host_->options.limits.max_connections;
    full = connections_.size() - leaving_ >= limit;
    const bool made_room = full && close_longest_waiting();
    if (connections_.size() - leaving_ < limit + kVitalConnections) {
      connection = std::make_shared<Connection>(host_, next_loop(), std::move(socket), full && !made_room);
      connections_.emplace(connection.get(), Entry{connection});
    }
  }
  const bool paced = connection != nullptr && full;
  if (connection != nullptr) begin(std::move(connection), paced);
  else turn_away(std::move(socket));
  if (!paced) accept();
}

// Who has not started does not wait for its client yet, and so cannot make room. Where the table is full the
// next one is accepted behind the start (`paced`): else a burst of connections would turn others away.
void HttpServerImpl::begin(std::shared_ptr<Connection> connection, bool paced) {
  asio::post(next_loop().io, [this, connection = std::move(connection), paced] {
    const auto resume = [this] {
      asio::post(host_->loops[0]->io, [this] {
        if (acceptor_->is_open()) accept();
      });
    };
    try {
      connection->start();
    } catch (...) {
      if (paced) resume();
      throw;
    }
    if (paced) resume();
  });
}

void HttpServerImpl::set_waiting(Connection* c, bool waits) {
  std::lock_guard lock(mutex_);
  const auto it = connections_.find(c);
  if (it == connections_.end()) return;
  Entry& entry = it->second;
  waiting_.erase(entry.waiting_since);
  leaving_ -= std::exchange(entry.leaving, false);  // its request came first
  entry.waiting_since = waits ? ++waits_ : 0;
  if (waits) waiting_.emplace(waits_, c);
}

bool HttpServerImpl::close_longest_waiting() {
  if (waiting_.empty()) return false;
  const auto longest = waiting_.begin();
  Entry& entry = connections_.at(longest->second);
  waiting_.erase(longest);
  entry.waiting_since = 0;
  entry.leaving = true;
  ++leaving_;
  entry.connection->make_room();
  constexpr std::chrono::seconds kSayAgain{10};
  const auto now = std::chrono::steady_clock::now();
  if (now - said_full_ > kSayAgain) {
    said_full_ = now;
    host_->options.log(LogLevel::kWarning, cat("http: ", connections_.size(),
                                               " connections are open; new ones close those that have "
                                               "waited longest (--max-connections)"));
  }
  return true;
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
  const auto it = connections_.find(c);
  if (it == connections_.end()) return;
  waiting_.erase(it->second.waiting_since);
  leaving_ -= it->second.leaving;
  connections_.erase(it);
  if (connections_.empty()) empty_.notify_all();
}

void HttpServerImpl::begin_drain() {
  if (host_->draining.exchange(true)) return;
  if (acceptor_) {
    asio::post(host_->loops[0]->io, [this] {
      error_code ec;
      acceptor_->close(ec);
      retry_->cancel();
    });
  }
  std::lock_guard lock(mutex_);
  for (auto& [raw, entry] : connections_) entry.connection->begin_drain();
}

bool HttpServerImpl::stop(std::chrono::milliseconds timeout) {
  if (threads_.empty()) return true;
  begin_drain();
  bool clean;
  {
    std::unique_lock lock(mutex_);
    clean = empty_.wait_for(lock, timeout, [this] { return connections_.empty(); });
    for (auto& [raw, entry] : connections_) entry.connection->abort();
    // A connection whose start() is still queued closes there; accept may add one until the acceptor is
    // closed.
    while (!connections_.empty()) {
      empty_.wait_for(lock, std::chrono::milliseconds(20));
      for (auto& [raw, entry] : connections_) entry.connection->abort();
    }
  }
  guards_.clear();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  host_->stopped = true;
  while (host_->handing > 0) std::this_thread::yield();
  for (auto& loop : host_->loops) {  // work posted by handlers that came late
    loop->io.restart();
    loop->io.poll();
  }
  return clean;
}

}  // namespace

std::vector<std::string> addresses_in(const std::string& list) {
  std::vector<std::string> out;
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    out.emplace_back(trim(std::string_view(list).substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

Status check_addresses(const std::vector<std::string>& addresses) {
  asio::io_context io;
  std::vector<std::unique_ptr<Tcp::acceptor>> open;
  for (const std::string& address : addresses) {
    if (address.empty() || address.starts_with("unix:")) continue;
    OAR_ASSIGN(auto acceptor, open_acceptor(io, address));
    open.push_back(std::move(acceptor));
  }
  return ok_status();
}

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
