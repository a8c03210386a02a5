// A handler's hold on one request: forwards to the connection's thread, where the connection checks that the
// request is still the present one. Private to connection.cc.
#pragma once

#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime/event_round.h"
#include "server/http/compression.h"
#include "server/http/connection.h"

namespace oar::http {

inline constexpr size_t kLeastCompressed = 1024;  // below it a packet is sent either way

class Exchange final : public ResponseWriter {
 public:
  Exchange(std::shared_ptr<Connection> connection, uint64_t id, Coding accepted)
      : connection_(std::move(connection)), id_(id), accepted_(accepted) {}
  ~Exchange() override {
    if (ended_) return;
    const auto host = connection_->host_;
    host->hand([&] { asio::post(connection_->io_, [c = connection_, id = id_] { c->abandon(id); }); });
  }
  void send(Response response) override {
    ended_ = true;
    // On the thread of whoever answers.
    if (accepted_ != Coding::kIdentity && response.status == 200 &&
        response.body.size() >= kLeastCompressed) {
      response.body = compress(response.body, accepted_);
      response.headers.push_back({"Content-Encoding", coding_name(accepted_)});
      response.headers.push_back({"Vary", "Accept-Encoding"});
    }
    on_thread([r = std::move(response), id = id_](Connection& c) mutable { c.send(id, std::move(r)); });
  }
  void start_stream(Response response) override {
    on_thread(
        [r = std::move(response), id = id_](Connection& c) mutable { c.start_stream(id, std::move(r)); });
  }
  void write(std::string_view bytes) override {
    if (connection_->io_.get_executor().running_in_this_thread()) {
      connection_->write_chunk(id_, bytes);
    } else {
      on_thread([b = std::string(bytes), id = id_](Connection& c) { c.write_chunk(id, b); });
    }
  }
  void finish() override {
    ended_ = true;
    on_thread([id = id_](Connection& c) { c.finish_stream(id); });
  }
  void on_disconnect(std::function<void()> callback) override {
    on_thread(
        [cb = std::move(callback), id = id_](Connection& c) mutable { c.set_disconnect(id, std::move(cb)); });
  }
  bool behind() override { return connection_->behind(id_); }
  void on_drain(std::function<void()> callback) override {
    on_thread(
        [cb = std::move(callback), id = id_](Connection& c) mutable { c.set_drain(id, std::move(cb)); });
  }
  void post(std::function<void()> work) override {
    EventRound::gather(
        &connection_->io_, std::move(work),
        [host = connection_->host_, &io = connection_->io_](std::vector<EventRound::Job> jobs) {
          host->hand([&] {
            asio::post(io, [jobs = std::move(jobs)] {
              for (const EventRound::Job& job : jobs) job();
            });
          });
        });
  }

 private:
  template <class F>
  void on_thread(F f) {
    const auto host = connection_->host_;  // what runs may be the last that knows of this
    host->hand(
        [&] { asio::dispatch(connection_->io_, [c = connection_, f = std::move(f)]() mutable { f(*c); }); });
  }
  std::shared_ptr<Connection> connection_;
  uint64_t id_;
  Coding accepted_;  // of the answer
  bool ended_ = false;
};

}  // namespace oar::http
