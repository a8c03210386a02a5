// One API request in flight: its prompts submitted to the engine, its events delivered in order to one
// consumer, its cancellation. A request with several prompts is several engine requests; choices are numbered
// prompt * n + choice.
//
// Threads: the engine thread only wakes; all decoding and the consumer's callback run as jobs of the
// executor, one at a time. cancel() may be called from anywhere.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/text_stream.h"
#include "server/api/generation_params.h"
#include "server/api/worker_pool.h"

namespace oar::api {

// What the metrics room wants to know of a request. Called on executor threads.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void on_first_token(double seconds_since_submit) = 0;
  // `tokens` tokens arrived together, `seconds` after the ones before.
  virtual void on_next_tokens(double seconds, size_t tokens) = 0;
  virtual void on_finish(const SequenceStats& stats, FinishReason reason, const GenerationParams& params) = 0;
};

struct GenerationSpec {
  const ModelHandle* model = nullptr;
  std::vector<std::vector<int32_t>> prompts;
  GenerationParams params;
  std::string id;
  std::optional<Clock::time_point> deadline;
  GenerationObserver* observer = nullptr;  // may be null; outlives the generation
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // `choice` in [0, choices()); an event with finish != kNone is the choice's last.
  using OnEvent = std::function<void(Generation&, int32_t choice, TextEvent&&)>;

  // Submits everything or nothing. The first event may be delivered before this returns (on an executor
  // thread).
  static Result<std::shared_ptr<Generation>> start(GenerationSpec spec, Executor executor, OnEvent on_event);
  ~Generation();

  void cancel();
  bool done() const { return open_choices_ == 0; }  // executor thread only: every choice has finished
  int32_t choices() const { return static_cast<int32_t>(spec_.prompts.size()) * spec_.params.n; }
  const GenerationSpec& spec() const { return spec_; }

 private:
  Generation(GenerationSpec spec, Executor executor, OnEvent on_event)
      : spec_(std::move(spec)), executor_(std::move(executor)), on_event_(std::move(on_event)) {}
  Status submit();
  void wake();
  void deliver();
  void observe(int32_t choice, const TextEvent& event);

  GenerationSpec spec_;
  Executor executor_;
  OnEvent on_event_;                                  // executor thread only; released with the last event
  std::vector<std::shared_ptr<TextStream>> streams_;  // one per prompt
  std::atomic<uint32_t> wakeups_{0};
  std::atomic<int32_t> open_choices_{0};
  Clock::time_point submitted_;
  std::vector<Clock::time_point> last_token_;  // per choice; zero before the first
};

// Why a choice that ended without an answer did so; ok for kStop and kLength.
Status failure_of(const TextEvent& event);

}  // namespace oar::api
