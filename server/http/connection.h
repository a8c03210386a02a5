// One HTTP connection as a state machine on one io_context thread. Private to connection.cc and
// http_server.cc (it names Asio types, which cost seconds of compile time).
//
// A wait for input is outstanding in every state in which input is welcome, also while a request is being
// answered: that is how a client that leaves is noticed during a long non-streaming wait. Input is parsed
// only between answers, so at most one request per connection is in progress and pipelined requests wait as
// bytes, bounded by Limits::pipelined_bytes. A client that closes its sending side while its request is still
// being computed counts as gone; once the answer is complete it is still delivered.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/http/compression.h"
#include "server/http/http_server.h"

namespace oar::http {

namespace asio = boost::asio;
using Tcp = asio::ip::tcp;
using SteadyTime = std::chrono::steady_clock::time_point;

class Connection;
struct TlsLayer;

// A thread that serves connections, and what it alone touches.
struct Loop {
  asio::io_context io{1};
  SteadyTime refused{};  // when it last told a client to come again later
};

// What connections share. They keep it alive, and so does a handler that still holds a request's writer: the
// io_contexts are destroyed after the last of them.
struct ConnectionHost {
  HttpServerOptions options;
  Router router;
  std::vector<std::unique_ptr<Loop>> loops;  // one thread each
  std::atomic<size_t> body_bytes{0};         // reserved for bodies being received
  std::atomic<bool> draining{false};
  // No thread runs any more. Work that is posted now would never be done, and hold what holds its context.
  std::atomic<bool> stopped{false};
  std::atomic<int> handing{0};              // threads within hand(), which stop() waits for
  bool loopback = false;                    // what it listens on
  std::function<void(Connection*)> closed;  // on the connection's thread, once
  // On the connection's thread: begins or ends to wait for the client, and could be closed meanwhile.
  std::function<void(Connection*, bool)> waits;

  // Calls `give`, which posts work to a context, unless nobody would do it. Any thread.
  template <class Give>
  void hand(Give&& give) {
    struct Within {
      std::atomic<int>& count;
      explicit Within(std::atomic<int>& c) : count(c) { ++count; }
      ~Within() { --count; }
    } within(handing);
    if (!stopped) give();
  }
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // `vital_only`: beyond the limit of connections.
  Connection(std::shared_ptr<ConnectionHost> host, Loop& loop, Tcp::socket socket, bool vital_only);
  ~Connection();

  void start();        // on the connection's thread
  void begin_drain();  // any thread: closes when idle, otherwise after the present answer
  void abort();        // any thread: closes at once
  void make_room();    // any thread: closes at once, if it still waits for its client

 private:
  friend class Exchange;
  enum class State { kHandshake, kIdle, kHeader, kBody, kAnswering, kLingering, kClosed };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  // TLS.
  void handshake();
  void on_handshake(boost::system::error_code ec);
  void explain_plain_http();

  // Input.
  void read_more();
  void on_readable(boost::system::error_code ec);
  void on_bytes(boost::system::error_code ec, std::string_view bytes);
  void on_end_of_input();
  void process();
  bool process_header();  // true: something was consumed, go on
  bool process_body();
  bool parse_header(std::string_view block);
  bool admit_request();
  bool reserve_body();
  void release_body();
  void dispatch(std::string body);

  // Output. `exchange` tells a late call for an earlier request from a call for the present one.
  void refuse(int status, const std::string& message);
  void send(uint64_t exchange, Response&& response);
  void start_stream(uint64_t exchange, Response&& response);
  void write_chunk(uint64_t exchange, std::string_view bytes);
  void finish_stream(uint64_t exchange);
  void abandon(uint64_t exchange);  // its last handle went without an answer
  void set_disconnect(uint64_t exchange, std::function<void()> callback);
  bool current(uint64_t exchange) const { return state_ == State::kAnswering && exchange == exchange_; }
  void append_head(const Response& response, std::optional<size_t> content_length);
  void append_chunk(std::string_view bytes);
  void flush();
  void on_written(boost::system::error_code ec, size_t bytes);
  void complete_exchange();
  bool behind(uint64_t exchange);
  void set_drain(uint64_t exchange, std::function<void()> callback);
  size_t unsent() const { return pending_.size() + output_.size() - written_; }

  // Life.
  void enter(State state);
  void set_deadline(std::chrono::milliseconds from_now);
  void watch();
  void on_timer();
  void linger();
  void close();
  bool waits_for_client() const {
    return state_ == State::kHandshake || state_ == State::kIdle || state_ == State::kHeader ||
           state_ == State::kLingering;
  }

  std::shared_ptr<ConnectionHost> host_;
  const Limits& limits_;
  Loop& loop_;
  asio::io_context& io_;
  Tcp::socket socket_;
  std::unique_ptr<TlsLayer> tls_;  // null: plain
  asio::steady_timer timer_;
  SteadyTime deadline_ = SteadyTime::max();
  State state_ = State::kIdle;
  std::string peer_;
  const bool vital_only_;
  HostCheck host_check_ = HostCheck::kNone;

  std::string input_;   // received, not yet parsed
  size_t scanned_ = 0;  // of input_, holding no end of header
  bool reading_ = false;
  bool processing_ = false;  // within process()
  bool end_of_input_ = false;
  bool refused_ = false;  // answered before the whole request was read
  uint64_t lingered_bytes_ = 0;

  std::optional<Parser> parser_;
  Request request_;  // without its body
  const Route* route_ = nullptr;
  Coding coding_ = Coding::kIdentity;  // of the request's body
  size_t body_reserved_ = 0;
  uint64_t body_wire_bytes_ = 0;

  uint64_t exchange_ = 0;
  std::function<void()> on_disconnect_, on_drain_;
  bool behind_ = false;  // the client, since more was unsent than the buffer is meant to hold
  SteadyTime request_start_;
  int status_ = 0;
  bool head_only_ = false;  // HEAD: no body
  bool keep_alive_ = true;
  bool stream_ = false, chunked_ = false;
  bool answer_complete_ = false;  // everything of the answer is in the output buffers

  std::string output_;   // being written
  size_t written_ = 0;   // of output_
  std::string pending_;  // to be written next
  bool writing_ = false;
};

}  // namespace oar::http
