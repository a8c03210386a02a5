// An Engine without a model: every running choice gets one token per step, spelling a scripted reply, on a
// thread of its own, so that the server is tested against the real contract (ordering, cancellation in any
// state, deadlines, refusals) at any speed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "engine/runtime/engine.h"

namespace oar_test {

struct FakeEngineOptions {
  std::string reply = "Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80";  // one token per byte, then the end token
  std::chrono::microseconds step{200};
  int64_t vocab_size = 260;
  int64_t max_context = 512;
  size_t max_running = 64;  // requests
  size_t max_waiting = 64;
  int32_t eos = 257;
  int32_t max_logprobs = 20;
  oar::EngineStats stats;  // what its counters begin with
};

class FakeEngine final : public oar::Engine {
 public:
  explicit FakeEngine(FakeEngineOptions options = {});
  ~FakeEngine() override;

  oar::Result<uint64_t> submit(oar::Request request) override;
  void cancel(uint64_t id) override;
  void finish_choice(uint64_t id, int32_t index, oar::FinishReason reason) override;
  oar::Status check_room() const override;
  void suspend(uint64_t id) override { set_suspended(id, true); }
  void resume(uint64_t id) override { set_suspended(id, false); }
  oar::EngineStats stats() const override;
  const oar::RequestLimits& request_limits() const override { return limits_; }
  oar::EngineHealth health() const override { return health_; }
  void on_step(std::function<void(const oar::StepInfo&)> observer) override;
  bool drain(std::chrono::milliseconds timeout) override;

  void set_health(oar::EngineHealth health) { health_ = health; }
  // Holds back all steps; requests can still be submitted and cancelled.
  void pause(bool paused) { paused_ = paused; }
  // Fails whatever runs next with this status.
  void fail_next(oar::Status status);
  // Waits until nothing runs or waits, at most 5 s.
  bool wait_idle() const;
  uint64_t submitted() const { return submitted_; }
  oar::Request last_request() const;

 private:
  struct Choice {
    size_t position = 0;                            // in the reply
    std::unique_ptr<oar::ConstraintCursor> cursor;  // null: no constraint
    int64_t produced = 0;
    oar::FinishReason asked = oar::FinishReason::kNone;
    bool finished = false;
    bool first_event = true;
  };
  struct Sequence {
    oar::Request request;
    std::vector<Choice> choices;
    oar::SequenceStats stats;
    bool suspended = false;
  };
  using Events = std::vector<std::pair<std::shared_ptr<oar::TokenSink>, oar::TokenEvent>>;

  void set_suspended(uint64_t id, bool suspended);
  void run();
  void step(Events& events);
  int32_t next_token(const Sequence& s, Choice& c) const;
  void advance(uint64_t id, Sequence& s, Events& events);
  void finish(uint64_t id, Sequence& s, size_t index, oar::FinishReason reason, int32_t stop_token,
              oar::Status status, Events& events);
  void tell_progress(uint64_t id, Sequence& s, Events& events);
  oar::TokenEvent token_event(uint64_t id, Sequence& s, size_t index, int32_t token);

  const FakeEngineOptions options_;
  oar::RequestLimits limits_;
  std::atomic<oar::EngineHealth> health_{oar::EngineHealth::kReady};
  std::atomic<bool> paused_{false};
  std::atomic<uint64_t> submitted_{0};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Sequence> running_;  // by id: also the order of admission
  std::map<uint64_t, Sequence> waiting_;
  uint64_t next_id_ = 1;
  bool stop_ = false;
  std::optional<oar::Status> failure_;
  oar::EngineStats stats_;
  oar::Request last_;
  std::function<void(const oar::StepInfo&)> observer_;
  std::thread thread_;
};

}  // namespace oar_test
