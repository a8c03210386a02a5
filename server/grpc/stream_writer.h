// The writing half of a server stream: one write outstanding, the rest queued within a budget of bytes,
// Finish exactly once after the last write has returned. While a client is behind() what is generated for it
// waits. One that does not read is cut off when the budget is spent or one message has not been taken for the
// write timeout; on_gone() then frees the engine's resources at once, never only when gRPC gets round to
// reporting the write.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <set>

#include "engine/base/format.h"
#include "server/grpc/call_support.h"

namespace oar::grpc_api {

// Base is grpc::ServerWriteReactor<Message> or grpc::ServerBidiReactor<Request, Message>. Made by
// std::make_shared and held by itself until OnDone, so that callbacks can keep weak references.
template <class Base, class Message>
class StreamWriter : public Base,
                     public WatchedStream,
                     public std::enable_shared_from_this<StreamWriter<Base, Message>> {
 public:
  StreamWriter(const Services& services, StreamRegistry& registry, grpc::CallbackServerContext* context,
               const char* method)
      : services_(services),
        registry_(registry),
        context_(context),
        peer_(context->peer()),
        timer_(services, method) {}

  // Call right after construction. The object deletes itself after the call.
  void begin() {
    self_ = this->shared_from_this();
    registry_.add(this);
    started();
  }

  void check(Clock::time_point now) final {
    {
      std::lock_guard lock(mutex_);
      if (!writing_ || dead_ || now - write_started_ < services_.limits.write_timeout) return;
    }
    give_up(grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the client did not read the stream in time"));
  }

 protected:
  // The first read, the first job: whatever the call begins with.
  virtual void started() = 0;
  // The client is gone or given up: cancel what runs for it. Called once, on any thread.
  virtual void on_gone() = 0;
  // Most of what the client was behind() by has been written. On any thread.
  virtual void on_drained() = 0;

  // Any thread: more is queued than the buffer is meant to hold; on_drained() follows.
  bool behind() {
    std::lock_guard lock(mutex_);
    behind_ |= queued_bytes_ > services_.limits.stream_buffer_bytes;
    return behind_ && !dead_;
  }

  // Any thread. Dropped after end() or when the client is gone.
  void enqueue(Message&& message) {
    bool over = false;
    {
      std::lock_guard lock(mutex_);
      if (dead_ || ending_) return;
      over = queued_bytes_ > services_.limits.write_budget_bytes;
      if (!over) {
        queued_bytes_ += message.ByteSizeLong();
        queue_.push_back(std::move(message));
      }
    }
    if (over) {
      return give_up(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                                  "the client reads too slowly: its stream's write budget is spent"));
    }
    pump();
  }

  // Any thread: finishes with `status` once everything queued has been written.
  void end(grpc::Status status) {
    {
      std::lock_guard lock(mutex_);
      if (dead_ || ending_) return;
      ending_ = true;
      final_ = std::move(status);
    }
    pump();
  }

  // Between a hold() that returns true and its release() the call is not finished, so gRPC's part of it may
  // be used.
  bool hold() {
    std::lock_guard lock(mutex_);
    if (finished_) return false;
    ++holds_;
    return true;
  }
  void release() {
    {
      std::lock_guard lock(mutex_);
      --holds_;
    }
    pump();
  }

  const Services& services_;
  // Valid in started(), in gRPC's own callbacks, and under hold().
  grpc::CallbackServerContext* context() const { return context_; }

 private:
  void OnWriteDone(bool ok) final {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (!ok) dead_ = true;
    }
    if (!ok) gone();
    pump();
  }
  void OnCancel() final {
    {
      std::lock_guard lock(mutex_);
      if (!dead_ && !ending_) final_ = grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
      dead_ = true;
    }
    gone();
    pump();
  }
  void OnDone() final {
    registry_.remove(this);
    gone();
    timer_.done(final_.error_code());
    self_.reset();
  }

  // Ends the call without waiting for the client to read what is queued. A write that is outstanding only
  // goes away with a cancelled call; without one, Finish can still tell the client why.
  void give_up(grpc::Status status) {
    if (!hold()) return;
    bool first, writing;
    {
      std::lock_guard lock(mutex_);
      first = !dead_;
      writing = writing_;
      dead_ = true;
      if (first) final_ = status;
    }
    if (first) {
      services_.log(LogLevel::kWarning, cat("grpc: stream of ", peer_, " dropped: ", status.error_message()));
      gone();
      if (writing) context_->TryCancel();
    }
    release();
  }

  void gone() {
    {
      std::lock_guard lock(mutex_);
      if (gone_) return;
      gone_ = true;
      queue_.clear();
      queued_bytes_ = 0;
    }
    on_gone();
  }

  // Starts the next write or the end, if it is time. Decides under the lock, calls gRPC outside it.
  void pump() {
    enum class Next { kNothing, kWrite, kFinish } next = Next::kNothing;
    bool drained = false;
    {
      std::lock_guard lock(mutex_);
      if (writing_ || finished_ || holds_ > 0) return;
      if (!dead_ && !queue_.empty()) {
        current_ = std::move(queue_.front());
        queue_.pop_front();
        queued_bytes_ -= current_.ByteSizeLong();
        drained = behind_ && queued_bytes_ <= services_.limits.stream_buffer_bytes / 4;
        if (drained) behind_ = false;
        writing_ = true;
        write_started_ = Clock::now();
        next = Next::kWrite;
      } else if (dead_ || ending_) {
        finished_ = true;
        next = Next::kFinish;
      }
    }
    if (drained) on_drained();  // while writing_ keeps this object alive
    if (next == Next::kWrite) this->StartWrite(&current_);
    if (next == Next::kFinish) this->Finish(final_);
  }

  StreamRegistry& registry_;
  grpc::CallbackServerContext* context_;
  std::string peer_;
  CallTimer timer_;
  std::shared_ptr<StreamWriter> self_;

  std::mutex mutex_;
  std::deque<Message> queue_;
  Message current_;  // being written; gRPC reads it until OnWriteDone
  size_t queued_bytes_ = 0;
  Clock::time_point write_started_;
  int holds_ = 0;
  bool writing_ = false;
  bool behind_ = false;    // the client, since more was queued than the buffer is meant to hold
  bool ending_ = false;    // end() was called
  bool dead_ = false;      // nothing more can reach the client
  bool gone_ = false;      // on_gone() was called
  bool finished_ = false;  // Finish was called
  grpc::Status final_;
};

}  // namespace oar::grpc_api
