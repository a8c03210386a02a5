// The answer to a request that came in another one: handed to whoever made it, instead of to a connection.
#pragma once

#include <charconv>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "server/api/batches.h"
#include "server/api/worker_pool.h"
#include "server/http/message.h"

namespace oar::http {

class CollectedAnswer final : public ResponseWriter, public api::BatchCall {
 public:
  CollectedAnswer(api::Executor executor, std::function<void(api::BatchAnswer)> done)
      : executor_(std::move(executor)), done_(std::move(done)) {}
  ~CollectedAnswer() override {
    if (done_) deliver({500, R"({"error":{"message":"the request was dropped without an answer"}})", 0});
  }

  void send(Response response) override {
    double retry = 0;
    for (const Header& h : response.headers)
      if (h.name == "Retry-After") std::from_chars(h.value.data(), h.value.data() + h.value.size(), retry);
    deliver({static_cast<unsigned>(response.status), std::move(response.body), retry});
  }
  // A batch has whole answers; a stream is collected all the same.
  void start_stream(Response response) override { stream_ = std::move(response); }
  void write(std::string_view bytes) override { stream_.body += bytes; }
  void finish() override { send(std::move(stream_)); }
  bool behind() override { return false; }
  void on_drain(std::function<void()>) override {}
  void on_disconnect(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!left_) {
        if (done_) on_leave_ = std::move(callback);
        return;
      }
    }
    callback();
  }
  void post(std::function<void()> work) override { executor_(std::move(work)); }

  void cancel() override {
    std::function<void()> leave;
    {
      const std::lock_guard lock(mutex_);
      if (!done_) return;
      done_ = nullptr;
      left_ = true;
      leave.swap(on_leave_);
    }
    if (leave) leave();
  }

 private:
  // Within the lock: nobody hears of it any more once cancel() has returned.
  void deliver(api::BatchAnswer answer) {
    std::function<void()> held;  // holds this too, and so ends behind the lock
    const std::lock_guard lock(mutex_);
    if (!done_) return;
    held.swap(on_leave_);
    std::exchange(done_, nullptr)(std::move(answer));
  }

  const api::Executor executor_;
  Response stream_;
  std::mutex mutex_;
  std::function<void(api::BatchAnswer)>
      done_;  // guarded by mutex_, as is the rest; null once there is an end
  std::function<void()> on_leave_;
  bool left_ = false;
};

}  // namespace oar::http
