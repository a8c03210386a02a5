// One request on its way: connect (or take a kept connection), write, read, time. Runs on one worker's
// io_context and touches nothing of other workers.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clients/loadtest/answer.h"
#include "clients/loadtest/link.h"
#include "clients/loadtest/run.h"

namespace oar::loadtest {

namespace asio = boost::asio;
using asio::ip::tcp;

// What the exchanges of one worker share.
struct WorkerContext {
  const RunSpec* spec = nullptr;
  Endpoint endpoint = Endpoint::kChat;
  std::vector<tcp::endpoint> addresses;
  Clock::time_point start;
  asio::io_context io{1};
  std::vector<std::shared_ptr<Link>> idle;  // connections that can be used again
  std::vector<char> buffer = std::vector<char>(64 << 10);
  Histogram gaps;
  int64_t bytes = 0, chunks = 0;
  LoadProgress* progress = nullptr;

  // When the next request of an open loop is due, and what sends it: asked after each event, so that a pile
  // of answers (after a moment without the processor, say) never holds back a request.
  int64_t due = INT64_MAX;
  std::function<void()> send_due;
  void after_event() {
    if (due <= now()) send_due();
  }

  int64_t now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  }
};

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  using Done = std::function<void(Exchange&)>;
  virtual ~Exchange() = default;
  virtual void start() = 0;
  // Ends it now, without waiting for anything.
  virtual void abort(const char* why) = 0;
  Record& record() { return record_; }

 protected:
  Record record_;
};

class HttpExchange final : public Exchange {
 public:
  // `request` is the whole HTTP request. `done` is called once.
  HttpExchange(WorkerContext& worker, Record record, const Plan& plan, std::string request, Done done);
  void start() override;
  void abort(const char* why) override;

 private:
  using error_code = boost::system::error_code;
  std::shared_ptr<HttpExchange> self() { return std::static_pointer_cast<HttpExchange>(shared_from_this()); }
  void connect(size_t address);
  void connected(error_code ec);
  void write();
  void wait();
  void read();
  bool take(std::string_view bytes);  // false: it is over
  void closed_by_server(error_code ec);
  void fail(std::string why);
  void complete(bool reusable);
  void note_kind();
  void arm();
  void on_timer();

  WorkerContext& worker_;
  int64_t cancel_after_;
  std::string request_;
  Done done_;
  std::shared_ptr<Link> link_;
  asio::steady_timer timer_, pause_;
  std::optional<ResponseParser> parser_;
  Answer answer_;
  bool reused_ = false, over_ = false, connecting_ = false, got_bytes_ = false, event_stream_ = false;
  int64_t last_byte_ = 0, deadline_ = 0;
  int64_t previous_chunk_ = -1;
};

}  // namespace oar::loadtest
