#include "tests/loadtest/sse_server.h"

#include <algorithm>
#include <boost/asio.hpp>
#include <charconv>
#include <mutex>
#include <thread>
#include <vector>

namespace oar_test {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using error_code = boost::system::error_code;

std::string chunk_of(const std::string& data) {
  char size[32];
  const int n = std::snprintf(size, sizeof size, "%zx\r\n", data.size());
  return std::string(size, static_cast<size_t>(n)) + data + "\r\n";
}

}  // namespace

struct SseServer::Impl {
  SseBehaviour behaviour;
  asio::io_context io;
  tcp::acceptor acceptor{io};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::vector<std::thread> threads;
  std::atomic<int64_t> requests{0}, connections{0}, disconnects{0}, open{0}, most_open{0}, most_told{0};
  mutable std::mutex mutex;
  std::string last_body;

  struct Session : std::enable_shared_from_this<Session> {
    Session(Impl& server, tcp::socket s) : impl(server), socket(std::move(s)), timer(socket.get_executor()) {}
    Impl& impl;
    tcp::socket socket;
    asio::steady_timer timer;
    std::string in, out;
    size_t body_at = 0, body_size = 0;
    int sent = 0, chunks = 0;
    Clock::time_point due;

    void read() {
      asio::async_read_until(socket, asio::dynamic_buffer(in), "\r\n\r\n",
                             [self = shared_from_this()](error_code ec, size_t n) {
                               if (!ec) self->header(n);
                             });
    }
    void header(size_t n) {
      body_at = n;
      body_size = 0;
      if (const size_t at = in.find("Content-Length: "); at != std::string::npos && at < n)
        std::from_chars(in.data() + at + 16, in.data() + n, body_size);
      const size_t have = in.size() - n;
      if (have >= body_size) return answer();
      asio::async_read(socket, asio::dynamic_buffer(in), asio::transfer_exactly(body_size - have),
                       [self = shared_from_this()](error_code ec, size_t) {
                         if (!ec) self->answer();
                       });
    }
    void answer() {
      const SseBehaviour& b = impl.behaviour;
      if (in.starts_with("GET ")) {
        std::string body;
        if (in.starts_with("GET /metrics")) {
          const int64_t open = impl.open;
          body = "# TYPE x gauge\nvllm:num_requests_running{a=\"}\"} " + std::to_string(open) + "\n";
          raise(impl.most_told, open);
        } else if (in.starts_with("GET /v1/models")) body = R"({"object": "list", "data": [{"id": "fake"}]})";
        in.clear();
        return finish("HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                      body);
      }
      due = Clock::now();
      ++impl.requests;
      const std::string body = in.substr(body_at, body_size);
      {
        std::lock_guard lock(impl.mutex);
        impl.last_body = body;
      }
      chunks = b.chunks;
      if (const size_t at = body.find("\"max_tokens\":"); chunks == 0 && at != std::string::npos)
        std::from_chars(body.data() + at + 13, body.data() + body.size(), chunks);
      const bool whole = body.find("\"stream\":false") != std::string::npos;
      in.erase(0, body_at + body_size);
      sent = 0;
      if (b.fault == SseBehaviour::kCloseAtOnce) return;
      if (b.fault == SseBehaviour::kSilent) return hang();
      if (b.fault == SseBehaviour::kNoHttp) return last_words("220 mail.example.com ESMTP\r\n");
      if (b.fault == SseBehaviour::kRefuse) {
        const std::string error =
            R"({"error": {"message": "no room <here>", "type": "t", "param": null, "code": null}})";
        return finish(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: " +
            std::to_string(error.size()) + "\r\n\r\n" + error);
      }
      if (b.fault == SseBehaviour::kShortLength || b.fault == SseBehaviour::kLongLength) {
        const std::string text =
            "data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"x\"}, \"finish_reason\": "
            "\"stop\"}]}\n\ndata: [DONE]\n\n";
        const size_t says = b.fault == SseBehaviour::kShortLength ? text.size() + 100 : text.size() - 10;
        return last_words("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: " +
                          std::to_string(says) + "\r\n\r\n" + text);
      }
      raise(impl.most_open, ++impl.open);
      if (whole) {
        const std::string json =
            R"({"choices": [{"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 5}})";
        due += std::chrono::microseconds(static_cast<int64_t>(b.first_ms * 1000));
        timer.expires_at(due);
        return timer.async_wait([self = shared_from_this(), json](error_code) {
          --self->impl.open;
          self->finish("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
                       std::to_string(json.size()) + "\r\n\r\n" + json);
        });
      }
      out =
          "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: "
          "chunked\r\n\r\n";
      out += chunk_of(
          "data: {\"choices\": [{\"index\": 0, \"delta\": {\"role\": \"assistant\", \"content\": "
          "\"\"}}]}\n\n");
      due += std::chrono::microseconds(static_cast<int64_t>(b.first_ms * 1000));
      write_then([this] { at_due(); });
    }
    template <class F>
    void write_then(F next) {
      asio::async_write(socket, asio::buffer(out), [self = shared_from_this(), next](error_code ec, size_t) {
        if (ec) {
          --self->impl.open;
          ++self->impl.disconnects;
          return;
        }
        self->out.clear();
        next();
      });
    }
    static void raise(std::atomic<int64_t>& most, int64_t value) {
      for (int64_t seen = most; seen < value && !most.compare_exchange_weak(seen, value);) {}
    }
    bool held() const {
      return sent == 0 && (impl.most_open < impl.behaviour.hold_until_open ||
                           impl.most_told < impl.behaviour.hold_until_told);
    }
    void at_due() {
      if (held()) {
        timer.expires_after(std::chrono::milliseconds(20));
        return timer.async_wait([self = shared_from_this()](error_code ec) {
          if (!ec) self->at_due();
        });
      }
      if (impl.behaviour.first_ms == 0 && impl.behaviour.gap_ms == 0) return step();
      timer.expires_at(due);
      timer.async_wait([self = shared_from_this()](error_code ec) {
        if (!ec) self->step();
      });
    }
    void step() {
      const SseBehaviour& b = impl.behaviour;
      if (sent >= chunks / 2 && b.fault != SseBehaviour::kNone && fault()) return;
      for (int i = 0; i < b.per_write && sent < chunks; ++i, ++sent) {
        const std::string line = b.comments ? "\r\n" : "\n";
        std::string event = b.comments ? ": ping" + line + line : "";
        event += "data: {\"id\": \"c\", \"choices\": [{\"index\": 0, \"delta\": {\"content\": \"w" +
                 std::to_string(sent) + " \"}, \"text\": \"w" + std::to_string(sent) +
                 " \"}], \"text_output\": \"w\"}" + line + line;
        out += chunk_of(event);
      }
      due += std::chrono::microseconds(static_cast<int64_t>(b.gap_ms * 1000));
      if (sent < chunks) return write_then([this] { at_due(); });
      std::string end =
          "data: {\"choices\": [{\"index\": 0, \"delta\": {}, \"finish_reason\": \"length\"}]}\n\n";
      if (b.usage)
        end += "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 7, \"completion_tokens\": " +
               std::to_string(chunks) + "}}\n\n";
      out += chunk_of(end + "data: [DONE]\n\n") + "0\r\n\r\n";
      write_then([this] {
        --impl.open;
        read();
      });
    }
    bool fault() {
      const auto end_with = [&](const std::string& data) {
        --impl.open;
        last_words(out + chunk_of(data) + "0\r\n\r\n");
      };
      switch (impl.behaviour.fault) {
        case SseBehaviour::kReset: {
          --impl.open;
          error_code ignored;
          socket.set_option(asio::socket_base::linger(true, 0), ignored);
          socket.close(ignored);
          return true;
        }
        case SseBehaviour::kStall: return hang(), true;
        case SseBehaviour::kBrokenJson: return end_with("data: {\"choices\": [\n\n"), true;
        case SseBehaviour::kHalfEvent: return end_with("data: {\"choices\": []}"), true;
        case SseBehaviour::kEarlyEnd: return end_with(": nothing\n\n"), true;
        case SseBehaviour::kErrorInStream:
          return end_with("data: {\"error\": {\"message\": \"device lost\"}}\n\n"), true;
        default: return false;
      }
    }
    void hang() {
      // Until the client leaves.
      asio::async_read(socket, asio::dynamic_buffer(in),
                       [self = shared_from_this()](error_code, size_t) { ++self->impl.disconnects; });
    }
    void finish(std::string text) {
      out = std::move(text);
      asio::async_write(socket, asio::buffer(out), [self = shared_from_this()](error_code ec, size_t) {
        if (!ec) self->read();
      });
    }
    void last_words(std::string text) {
      out = std::move(text);
      asio::async_write(socket, asio::buffer(out), [self = shared_from_this()](error_code, size_t) {
        error_code ignored;
        self->socket.shutdown(tcp::socket::shutdown_send, ignored);
      });
    }
  };

  void accept() {
    acceptor.async_accept(asio::make_strand(io), [this](error_code ec, tcp::socket socket) {
      if (ec) return;
      ++connections;
      error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      std::make_shared<Session>(*this, std::move(socket))->read();
      accept();
    });
  }
};

SseServer::SseServer(SseBehaviour behaviour, int threads, int port) : impl_(std::make_unique<Impl>()) {
  impl_->behaviour = behaviour;
  const tcp::endpoint at(asio::ip::address_v4::loopback(), static_cast<unsigned short>(port));
  impl_->acceptor.open(at.protocol());
  impl_->acceptor.set_option(tcp::acceptor::reuse_address(true));
  impl_->acceptor.bind(at);
  impl_->acceptor.listen(4096);
  impl_->accept();
  for (int i = 0; i < threads; ++i) impl_->threads.emplace_back([this] { impl_->io.run(); });
}

SseServer::~SseServer() {
  impl_->io.stop();
  for (std::thread& t : impl_->threads) t.join();
}

std::string SseServer::url() const {
  return "http://127.0.0.1:" + std::to_string(impl_->acceptor.local_endpoint().port());
}
int64_t SseServer::requests() const { return impl_->requests; }
int64_t SseServer::connections() const { return impl_->connections; }
int64_t SseServer::disconnects() const { return impl_->disconnects; }
int64_t SseServer::most_open() const { return impl_->most_open; }
std::string SseServer::last_body() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->last_body;
}

}  // namespace oar_test
