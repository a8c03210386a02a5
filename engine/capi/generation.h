// What a generation handle stands for: one request on its way, read either by oar_generation_next() or by the
// delivery thread, which calls the callback. Knows nothing of handles.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/capi/oar.h"
#include "engine/runtime/text_stream.h"

namespace oar::capi {

class Model;
class Delivery;

// A TextEvent in C's terms. The pointers of `event` point into this object.
struct EventStorage {
  oar_event event;
  TextEvent text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<oar_tool_call> calls;
  void fill(TextEvent&& from, bool with_logprobs);
};

struct GenerationSpec {
  Request request;  // without a sink
  TextStreamOptions text;
  oar_event_callback callback = nullptr;
  void* user = nullptr;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  static Result<std::shared_ptr<Generation>> start(const std::shared_ptr<Model>& model, GenerationSpec spec);

  // The next event, nullopt when all are out, DEADLINE_EXCEEDED when none came in time (negative: no limit).
  Result<std::optional<TextEvent>> next(int64_t timeout_ms);
  // Until the callback has returned from the last event.
  Status wait(int64_t timeout_ms);
  void cancel();
  // No callback runs when this returns, nor begins later (called from a callback: once that has returned).
  void close();
  // Delivery thread: calls the callback with everything there is.
  void deliver();
  // The model goes: keeps the events that are there, ends open choices, lets the model go.
  void detach();
  // Callbacks stop with the one that is running; waits for nothing.
  void silence() { silent_ = true; }
  bool has_callback() const { return callback_ != nullptr; }
  bool logprobs() const { return logprobs_; }

 private:
  Generation() = default;
  std::optional<TextEvent> take();  // mutex_ held
  bool ended() const;               // mutex_ held: every event has been taken
  void call_back(TextEvent&& event);
  void signal();
  std::shared_ptr<Model> let_go();  // mutex_ held; the caller drops the model without it

  oar_event_callback callback_ = nullptr;
  void* user_ = nullptr;
  int32_t choices_ = 1;
  bool logprobs_ = false;
  std::atomic<bool> silent_{false};

  std::mutex mutex_;            // reading; held while the callback runs
  std::deque<TextEvent> left_;  // guarded by mutex_: what was there at detach()
  std::vector<bool> finished_;  // guarded by mutex_: choices whose last event was taken
  EventStorage storage_;        // of the callback
  std::atomic<std::thread::id> calling_{};

  // Written with both mutexes held, read with either, so that cancel() never waits for a callback. Null once
  // detached or closed.
  std::mutex source_mutex_;
  std::shared_ptr<Model> model_;
  std::shared_ptr<TextStream> stream_;

  std::mutex signal_mutex_;
  std::condition_variable changed_;
  uint64_t signals_ = 0;    // guarded by signal_mutex_, as is the next
  bool delivered_ = false;  // the callback has returned from the last event
};

}  // namespace oar::capi
