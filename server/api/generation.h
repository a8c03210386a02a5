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
#include <mutex>
#include <string>
#include <vector>

#include "engine/runtime/text_stream.h"
#include "server/api/generation_request.h"
#include "server/api/request_log.h"
#include "server/api/running_generations.h"
#include "server/api/tenant.h"
#include "server/api/worker_pool.h"

namespace oar::api {

// How the n choices of one prompt ended.
struct PromptOutcome {
  SequenceStats stats;  // from the earliest start to the latest end; completion tokens of all choices
  size_t prompt = 0;    // which of the request's
  FinishReason finish = FinishReason::kNone;  // a failed choice's, if there is one
  double seconds_per_token = 0;  // after the first, mean over the choices with several tokens; 0: none has
};

// Sums over a model's finished requests, for protocols that report statistics themselves.
struct RequestTotals {
  uint64_t success = 0, failure = 0;  // counts
  uint64_t cancelled = 0;             // of the failures: by callers, or by the server
  uint64_t refused = 0;               // no part of the failures: the engine did not take them
  uint64_t success_ns = 0, failure_ns = 0, queue_ns = 0, compute_ns = 0;
  uint64_t last_finish_ms = 0;  // since the epoch; 0: none yet
  int64_t longest = 0;          // tokens of the longest prompt and answer
};

struct GenerationSpec;

// What metrics and traces want to know of a model's requests and steps. A request's prompts count one by one,
// and each once, whatever its choices. Called on executor threads, but for on_step().
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void on_step(const StepInfo& step) = 0;                // on the engine's thread, as StepInfo says
  virtual void on_first_token(double seconds_since_submit) = 0;  // of any choice
  // `tokens` tokens of a choice arrived together, `seconds` after the ones before.
  virtual void on_next_tokens(double seconds, size_t tokens) = 0;
  virtual void on_finish(const PromptOutcome& outcome, const GenerationSpec& spec) = 0;
  // The engine did not take it. No on_finish() follows.
  virtual void on_refused(const GenerationSpec& spec, StatusCode why) = 0;
  virtual RequestTotals totals() const = 0;
};

struct GenerationSpec {
  ModelHandlePtr model;
  std::vector<std::vector<int32_t>> prompts;
  GenerationRequest request;  // settled: id, stop.max_tokens, deadline; its own prompts are gone
  AdmissionPtr admission;     // null: no key is asked for
  std::string trace;          // the caller's traceparent; empty: none
  // Both outlive the generation; null: nobody ends it from outside, nobody logs it.
  RunningGenerations* running = nullptr;
  RequestLog* log = nullptr;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // `choice` in [0, choices()); an event with finish != kNone is the choice's last.
  using OnEvent = std::function<void(Generation&, int32_t choice, TextEvent&&)>;
  // Whether the consumer takes events now; asked on the executor's thread. Once it does again, it calls
  // wake(). What waits beyond kUnreadTokens makes the request leave its slots. Empty: it always does.
  using Ready = std::function<bool()>;
  static constexpr size_t kUnreadTokens = 64;  // of each choice

  // Submits everything or nothing. The first event may be delivered before this returns (on an executor
  // thread).
  static Result<std::shared_ptr<Generation>> start(GenerationSpec spec, Executor executor, OnEvent on_event,
                                                   Ready ready = {});
  // One that is refused before its prompts are known: told to the observer as start() tells it.
  static void refuse(GenerationSpec spec, StatusCode why);
  ~Generation();

  // Ends it early. `why` is what choices that have no end yet are told; ok: that the server cancelled them.
  // It lives on until the engine has told their ends, if `running` is there to keep it.
  void cancel(const Status& why = {});
  void wake();                                      // any thread: looks for events
  bool done() const { return open_choices_ == 0; }  // executor thread only: every choice has finished
  int32_t choices() const { return static_cast<int32_t>(spec_.prompts.size()) * spec_.request.n; }
  const GenerationSpec& spec() const { return spec_; }

 private:
  Generation(GenerationSpec spec, Executor executor, OnEvent on_event, Ready ready)
      : spec_(std::move(spec)),
        executor_(std::move(executor)),
        on_event_(std::move(on_event)),
        ready_(std::move(ready)) {}
  Status submit();
  void deliver();
  void observe(size_t prompt, int32_t choice, const TextEvent& event);
  void write_log(StatusCode refused) const;  // kOk: it ran
  void tell_refused(StatusCode why) const;

  GenerationSpec spec_;
  Executor executor_;
  OnEvent on_event_;  // executor thread only; released with the last event, as is
  Ready ready_;
  std::vector<std::shared_ptr<TextStream>> streams_;  // one per prompt
  std::atomic<uint32_t> wakeups_{0};
  std::atomic<int32_t> open_choices_{0};
  std::atomic<bool> cancelled_{false};
  Clock::time_point submitted_;
  std::mutex why_mutex_;
  Status why_;      // of cancel()
  Status failure_;  // of the first choice that failed; executor thread only
  // For the observer.
  struct Progress {
    bool began = false;  // a choice has a token
    int32_t open = 0;    // choices
    int32_t timed = 0;   // choices in outcome.seconds_per_token, which is their sum until the end
    PromptOutcome outcome;
  };
  std::vector<Progress> progress_;             // per prompt
  std::vector<Clock::time_point> last_token_;  // per choice; zero before the first
};

// What a generation is cancelled with when its caller is gone.
Status caller_left();

// Why a choice that ended without an answer did so; ok for kStop and kLength.
Status failure_of(const TextEvent& event);

}  // namespace oar::api
