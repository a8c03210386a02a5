// Engine: the facade that generates. Any thread submits and cancels; one engine thread owns all scheduling
// state (README.md beside this file is the contract). Destroying an Engine cancels what is left and joins its
// thread.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/log.h"
#include "engine/runtime/core/model_runner.h"
#include "engine/runtime/core/request.h"

namespace oar {

class Drafter;
class HostRunner;

// Speculation: several tokens of a sequence in one step, where what follows can be guessed. Texts do not
// change by it.
struct SpeculativeOptions {
  // Drafts are what followed the last tokens where they stood before, in the prompt or the output.
  bool prompt_lookup = false;
  int32_t lookup_min = 2, lookup_max = 4;  // last tokens that must be the same there, and are compared
  int64_t max_tokens = 8;                  // drafts of a sequence in one step at most
  std::shared_ptr<Drafter> drafter;        // takes the place of prompt lookup
  // A model of the same tokenizer that drafts, as LanguageModel::load() finds one; empty: none.
  std::string draft_model;
  // False: as many drafts as may be, whether they pay or not. For tests, whose steps take no time.
  bool paced = true;
  bool enabled() const { return prompt_lookup || drafter != nullptr || !draft_model.empty(); }
};

struct EngineOptions {
  SpeculativeOptions speculative;
  int64_t max_context = 0;       // 0: the runner's
  int64_t max_batch_tokens = 0;  // token budget of one step; 0: the runner's
  int64_t max_sequences = 0;     // running at once; 0: the runner's
  size_t max_waiting = 4096;     // queued requests; one more is refused with RESOURCE_EXHAUSTED
  bool prefix_cache = true;
  bool mixed_prefix = false;    // SchedulerOptions; refused where rows have no phases
  int64_t snapshot_tokens = 0;  // SchedulerOptions
  std::vector<int32_t> eos_token_ids;
  int32_t max_logprobs = 20;  // alternatives beside a token that a request may ask for; -1: all tokens
  uint64_t seed = 0;          // seeds requests without one; 0: from the clock
  std::chrono::milliseconds step_timeout{
      120'000};  // a step that takes longer: health() says kFailed until it ends
  Logger log;
};

enum class EngineHealth : uint8_t { kStarting, kReady, kDraining, kFailed };

// A consistent snapshot for metrics; counters only grow.
struct EngineStats {
  EngineHealth health = EngineHealth::kStarting;
  int64_t running = 0, waiting = 0, suspended = 0;
  // Of the first cache group, the one that ModelInfo::num_blocks counts.
  int64_t blocks_total = 0, blocks_used = 0, blocks_cached = 0;
  int32_t page_tokens = 0;
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0,
           generation_tokens = 0;  // computed prompt tokens (cached ones not counted), sampled
  uint64_t preemptions = 0;
  uint64_t accepted_drafts = 0, rejected_drafts = 0;   // draft tokens that were verified
  uint64_t verified_drafts = 0;                        // steps of a sequence that verified any
  std::array<uint64_t, kCountedDrafts> accepted_at{};  // of the first token of a draft, the second, ...
  uint64_t prefix_queries = 0, prefix_hits = 0;        // tokens
  uint64_t finished[6] = {};                           // by FinishReason
  double step_seconds = 0;                             // sum over steps
};

// What the engine thread did when, for one step. At depth 1 the next step is planned and submitted before
// this one's draws are collected. No two of these stretches overlap, of whatever steps, and each lies between
// the ends of two steps.
struct StepTimes {
  Clock::time_point since;              // the end of the step before; `began` when none was in flight
  Clock::time_point began, planned;     // drafts are proposed, rows and pages chosen
  Clock::time_point submitted;          // from `planned`: the rows go to the runner, which may compute them
  Clock::time_point sampling, sampled;  // the runner is told what to draw, and may do it
  Clock::time_point collecting, ended;  // draws are waited for, appended and delivered
};

// Called on the engine thread after each step; for histograms and traces. Must not block.
struct StepInfo {
  int64_t tokens = 0, prefill_tokens = 0, draft_tokens = 0, sequences = 0;
  double seconds = 0;            // from times.since to times.ended
  uint64_t number = 0;           // from 1
  int64_t generated_tokens = 0;  // appended: drawn, or all that a grammar left
  int64_t running = 0, waiting = 0, suspended = 0, blocks_used = 0;  // after it, as in EngineStats
  StepTimes times;
};

class Engine {
 public:
  // Starts the engine thread and returns; the thread runs one real token through the model before it reports
  // kReady (requests submitted meanwhile wait). FAILED_PRECONDITION or INVALID_ARGUMENT when options do not
  // fit the runner.
  // `draft` computes a draft model; null: none does. Its pages are beside the runner's in one block manager.
  static Result<std::unique_ptr<Engine>> create(std::unique_ptr<ModelRunner> runner, EngineOptions options,
                                                std::unique_ptr<HostRunner> draft = nullptr);
  virtual ~Engine() = default;

  // Validates and queues. The id is unique in this engine. UNAVAILABLE when draining or failed,
  // RESOURCE_EXHAUSTED when the queue is full, OUT_OF_RANGE when the prompt can never fit the pool.
  virtual Result<uint64_t> submit(Request request) = 0;
  // What submit() would say of a request that is as it should be: who asks first need not tokenize what
  // would be refused. Of a full queue, Status::retry_after() is when a place may be free. Any thread.
  virtual Status check_room() const = 0;
  // The same without words: to be asked of every request while many are refused.
  virtual bool has_room() const { return check_room().ok(); }
  // Cancels in any state; unknown or finished ids are ignored. Blocks are free by the next step. Each open
  // choice gets its finish event with kCancelled.
  virtual void cancel(uint64_t id) = 0;
  // Cancels one choice, reporting `reason` (a stop string found by the reader is kStop).
  virtual void finish_choice(uint64_t id, int32_t index, FinishReason reason) = 0;
  // The reader is behind: the request leaves its slots to others until resume(). Tokens in flight still
  // arrive. Its text is the same as without. Any thread; unknown or finished ids are ignored.
  virtual void suspend(uint64_t id) = 0;
  virtual void resume(uint64_t id) = 0;

  virtual EngineStats stats() const = 0;
  virtual const RequestLimits& request_limits() const = 0;
  // kReady only after a real token was produced, and only while the engine thread makes progress.
  virtual EngineHealth health() const = 0;
  // Observes steps from now on; set before serving.
  virtual void on_step(std::function<void(const StepInfo&)> observer) = 0;
  // No new requests; returns when all have finished or the timeout has passed (the rest is then cancelled).
  // True when everything finished by itself. What is cancelled has a second to deliver its last events.
  virtual bool drain(std::chrono::milliseconds timeout) = 0;
};

}  // namespace oar
