#include "clients/loadtest/exchange.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

int64_t nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

}  // namespace

HttpExchange::HttpExchange(WorkerContext& worker, Record record, const Plan& plan, std::string request,
                           Done done)
    : worker_(worker),
      cancel_after_(plan.cancel_after),
      request_(std::move(request)),
      done_(std::move(done)),
      timer_(worker.io),
      pause_(worker.io),
      answer_(worker.endpoint, worker.spec->keep_texts) {
  record_ = std::move(record);
  record_.slow = plan.slow;
}

void HttpExchange::start() {
  deadline_ = worker_.now() + nanoseconds(worker_.spec->timeout);
  last_byte_ = worker_.now();
  connecting_ = worker_.idle.empty();
  arm();
  if (!connecting_) {
    link_ = std::move(worker_.idle.back());
    worker_.idle.pop_back();
    reused_ = true;
    write();
  } else {
    connect(0);
  }
}

void HttpExchange::connect(size_t address) {
  connecting_ = true;
  last_byte_ = worker_.now();
  link_ = worker_.spec->server.links->make(worker_.io);
  link_->socket().async_connect(worker_.addresses[address], [self = self(), address](error_code ec) {
    if (self->over_) return;
    if (ec && address + 1 < self->worker_.addresses.size()) return self->connect(address + 1);
    self->connected(ec);
  });
}

void HttpExchange::connected(error_code ec) {
  if (ec) return fail(cat("cannot connect: ", ec.message()));
  error_code ignored;
  link_->socket().set_option(tcp::no_delay(true), ignored);
  if (record_.slow) link_->socket().set_option(asio::socket_base::receive_buffer_size(4096), ignored);
  link_->async_open([self = self()](error_code handshake) {
    if (self->over_) return;
    if (handshake) return self->fail(cat("cannot connect: TLS: ", handshake.message()));
    self->connecting_ = false;
    self->write();
  });
}

void HttpExchange::write() {
  parser_.emplace([this](std::string_view body) {
    note_kind();
    worker_.bytes += static_cast<int64_t>(body.size());
    const int pieces = answer_.push(body, event_stream_);
    if (pieces == 0) return;
    const int64_t now = last_byte_;  // one read, one time
    if (record_.first < 0) record_.first = now;
    for (int i = 0; i < pieces; ++i) {
      if (previous_chunk_ >= 0) {
        worker_.gaps.record(now - previous_chunk_);
        if (worker_.spec->keep_gaps)
          record_.gaps.push_back(static_cast<float>(now - previous_chunk_) * 1e-6f);
      }
      previous_chunk_ = now;
    }
    record_.last = now;
    worker_.chunks += pieces;
    if (worker_.progress != nullptr) worker_.progress->tokens.fetch_add(pieces, std::memory_order_relaxed);
  });
  record_.sent = last_byte_ = worker_.now();
  if (!reused_) arm();  // from now on for silence, not for connecting
  link_->async_write(asio::buffer(request_), [self = self()](error_code ec) {
    // A server may answer (and close) before it has read everything: what it said counts, so read on.
    if (ec && !self->over_ && self->reused_ && !self->got_bytes_) self->closed_by_server(ec);
  });
  wait();
}

void HttpExchange::wait() {
  link_->async_wait_readable([self = self()](error_code ec) {
    if (self->over_) return;
    if (ec) return self->closed_by_server(ec);
    self->read();
    self->worker_.after_event();
  });
}

void HttpExchange::read() {
  error_code ec;
  size_t most = worker_.buffer.size();
  if (record_.slow)
    most = std::clamp<size_t>(static_cast<size_t>(worker_.spec->slow_bytes_per_second) / 10, 1, most);
  const size_t n = link_->read_some(worker_.buffer.data(), most, ec);
  if (ec == asio::error::would_block) return wait();
  if (ec) return closed_by_server(ec);
  got_bytes_ = true;
  last_byte_ = worker_.now();
  if (!take({worker_.buffer.data(), n})) return;
  if (!record_.slow) return wait();
  pause_.expires_after(std::chrono::milliseconds(100));
  pause_.async_wait([self = self()](error_code e) {
    if (!e && !self->over_) self->wait();
  });
}

void HttpExchange::note_kind() {
  event_stream_ = parser_->status_code() == 200 && parser_->content_type().starts_with("text/event-stream");
}

bool HttpExchange::take(std::string_view bytes) {
  if (Status s = parser_->push(bytes); !s.ok()) return fail(s.message()), false;
  if (!answer_.error().empty()) return fail(answer_.error()), false;
  if (parser_->done()) return complete(parser_->keep_alive()), false;
  if (cancel_after_ >= 0 && answer_.chunks() > cancel_after_) {
    record_.cancelled = true;
    return complete(false), false;
  }
  return true;
}

void HttpExchange::closed_by_server(error_code ec) {
  if (reused_ && !got_bytes_) {  // a kept connection that the server had given up meanwhile
    reused_ = false;
    return connect(0);
  }
  if (ec != asio::error::eof) return fail(cat("the connection broke: ", ec.message()));
  if (Status s = parser_->finish(); !s.ok()) return fail(s.message());
  complete(false);
}

void HttpExchange::fail(std::string why) {
  if (over_) return;
  record_.error = std::move(why);
  complete(false);
}

void HttpExchange::abort(const char* why) { fail(why); }

void HttpExchange::complete(bool reusable) {
  if (over_) return;
  over_ = true;
  record_.end = worker_.now();
  if (parser_) record_.http_status = parser_->status_code(), note_kind();
  if (record_.error.empty() && !record_.cancelled) {
    answer_.finish(record_.http_status, event_stream_);
    record_.error = answer_.error();
  }
  record_.chunks = answer_.chunks();
  record_.prompt_tokens = answer_.prompt_tokens();
  record_.output_tokens = answer_.output_tokens();
  record_.counted_by_server = answer_.counted_by_server();
  record_.text = std::move(answer_.text());
  if (!event_stream_ && record_.error.empty()) record_.first = record_.last = record_.end;
  timer_.cancel();
  pause_.cancel();
  error_code ignored;
  // After a refusal too, as clients do that come again: a server under load should not also open connections.
  if (reusable && !record_.cancelled && !record_.slow) {
    worker_.idle.push_back(std::move(link_));
  } else if (link_) {
    link_->socket().close(ignored);
  }
  done_(*this);
}

// Re-armed when it fires and not with every byte: a timer per chunk would cost more than the chunk.
void HttpExchange::arm() {
  const RunSpec& spec = *worker_.spec;
  int64_t next = deadline_;
  if (connecting_) next = std::min(next, last_byte_ + nanoseconds(spec.connect_timeout));
  else if (!record_.slow) next = std::min(next, last_byte_ + nanoseconds(spec.stall_timeout));
  timer_.expires_at(worker_.start + std::chrono::nanoseconds(next));
  timer_.async_wait([self = self()](error_code ec) {
    if (!ec && !self->over_) self->on_timer();
  });
}

void HttpExchange::on_timer() {
  const RunSpec& spec = *worker_.spec;
  const int64_t now = worker_.now();
  if (now >= deadline_) return fail(cat("no complete answer within ", spec.timeout, " s"));
  const int64_t silent = now - last_byte_;
  if (connecting_ && silent >= nanoseconds(spec.connect_timeout))
    return fail(cat("no connection within ", spec.connect_timeout, " s"));
  if (!connecting_ && !record_.slow && silent >= nanoseconds(spec.stall_timeout))
    return fail(cat("the server sent nothing for ", spec.stall_timeout, " s"));
  arm();
}

}  // namespace oar::loadtest
