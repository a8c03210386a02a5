// What a caller asks of an Engine and what it gets back: Request in, TokenEvents out. Token ids only; text
// lives in engine/text and TextStream. Values were validated by validate_request(); the engine thread trusts
// them afterwards.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/constraint.h"
#include "engine/base/status.h"
#include "engine/runtime/core/adapter.h"

namespace oar {

using Clock = std::chrono::steady_clock;

// Applied in this order to a copy of the logits: logit_bias, repetition / presence / frequency penalties,
// temperature, top_k, top_p, min_p. temperature 0 is greedy: the largest logit, ties to the lower id.
struct SamplingParams {
  float temperature = 1.f;         // >= 0
  int32_t top_k = 0;               // keep the k largest; 0: all
  float top_p = 1.f;               // (0, 1]: smallest set whose probability reaches p
  float min_p = 0.f;               // [0, 1]: drop tokens below min_p * the largest probability
  float repetition_penalty = 1.f;  // > 0, over prompt and output, https://arxiv.org/abs/1909.05858
  float presence_penalty = 0.f;    // [-2, 2], over output
  float frequency_penalty = 0.f;   // [-2, 2], over output
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::optional<uint64_t> seed;  // choice i draws from the stream of seed + i; absent: drawn by the engine
  int32_t logprobs = -1;  // alternatives to report beside the chosen token; -1: report no log-probability
  int32_t prompt_logprobs = -1;  // the same for every prompt position but the first
  // Those beside a chosen token are of what it was drawn from, after all of the above. A token that could not
  // be drawn is no alternative.
  bool drawn_logprobs = false;
  // The alternatives beside a chosen token, which is then the first of them; empty: the likeliest.
  std::vector<int32_t> logprob_tokens;
};

struct StopParams {
  int64_t max_tokens = 16;              // >= 0; the engine also stops at the context's end
  int64_t min_tokens = 0;               // end-of-sequence and stop tokens are not sampled before
  std::vector<int32_t> stop_token_ids;  // beside the model's own end tokens
  bool ignore_eos = false;              // the model's own end tokens do not stop
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kDeadline, kError };
const char* finish_reason_name(FinishReason reason);  // "stop", "length", ...

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0.f;
};

inline constexpr size_t kCountedDrafts = 64;  // places in a draft that statistics tell apart

// Counters of one sequence, complete on its last event. Times are from submit.
struct SequenceStats {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;                         // of the prompt, found in the prefix cache
  int64_t computed_tokens = 0;                       // of the prompt, those found among them
  int64_t completion_tokens = 0;                     // sampled, the stop token included
  int64_t accepted_drafts = 0, rejected_drafts = 0;  // draft tokens that were verified; no part of the above
  int64_t verified_drafts = 0;                       // steps that verified any
  int64_t preemptions = 0;
  Clock::time_point submitted, scheduled, first_token, finished;
};

// One per produced token, plus exactly one with finish != kNone per choice, which carries no token unless
// has_token. The event of a stop token has has_token = false: the token is not part of the text. Before the
// first token, where the request asks: one as its prompt begins to be computed, and one per piece of it.
struct TokenEvent {
  uint64_t request = 0;
  int32_t index = 0;  // choice, [0, n)
  bool has_token = false;
  int32_t token = 0;
  float logprob = 0.f;  // of `token` or `stop_token`, after temperature-free log-softmax of the raw logits
  std::vector<TokenLogprob> top_logprobs;  // descending, when asked
  // On the request's first event, when asked: one list per prompt position, the prompt's own token first,
  // then the alternatives, descending. [0] is empty.
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  int32_t stop_token = -1;  // the token that stopped it, when finish == kStop
  Status status;            // why, when finish is kError or kDeadline
  bool progress = false;    // of the prompt, which has neither token nor finish
  SequenceStats stats;      // meaningful when finish != kNone, and where the request asks for more
};

// Receives a request's events on the engine thread, in order per choice. on_event must return quickly and not
// block: push into a queue and wake the writer. After the last choice's finish event nothing more comes.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_event(TokenEvent&& event) noexcept = 0;
};

// Far enough apart for any policy, near enough for tags that never overflow (fair_shares.h).
inline constexpr double kMinWeight = 0.01, kMaxWeight = 1000;
inline constexpr int32_t kMaxPriority = 1000;

struct Request {
  std::string id;               // for logs; not interpreted
  std::vector<int32_t> prompt;  // at least one token, each in [0, vocabulary)
  SamplingParams sampling;
  StopParams stop;
  int32_t n = 1;  // choices; they share the prompt's blocks
  std::optional<Clock::time_point> deadline;
  // Who asks, and how much of the model is theirs beside others who ask at once: requests of callers are
  // served by weight, those of one caller in the order of their arrival. Lower priorities go first
  // (fair_shares.h).
  std::string caller;
  double weight = 1;                            // [kMinWeight, kMaxWeight]
  int32_t priority = 0;                         // [-kMaxPriority, kMaxPriority]
  std::string cache_salt;                       // prefix-cache entries are shared only between equal salts
  std::shared_ptr<const AdapterLease> adapter;  // and equal adapters; null: the model without one
  // What the text of every choice must be; null: anything. A text that it ends is kStop, whatever min_tokens
  // and ignore_eos say. Before that, tokens at which the request stops are drawn only where the text is
  // whole.
  std::shared_ptr<const Constraint> constraint;
  std::string constraint_field = "response_format";  // where the caller wrote it, for messages
  bool prompt_progress = false;                      // events of the prompt's progress, with statistics
  bool running_stats = false;                        // statistics so far with every event
  std::shared_ptr<TokenSink> sink;
};

// Bounds a request is checked against.
struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t max_context = 0;
  int32_t max_n = 128;
  int32_t max_logprobs = 20;
  size_t max_logit_bias = 1024;
  size_t max_stop_tokens = 64;
  size_t max_logprob_tokens = 128;
  bool host_draws = true;  // who draws sees all logits
};

// INVALID_ARGUMENT naming the field (Status::param), its value and the remedy; NaN, infinities and
// out-of-range ids are refused here so that nothing downstream has to.
Status validate_request(const Request& request, const RequestLimits& limits);
// Its part on sampling alone: also for what a model's files recommend.
Status validate_sampling(const SamplingParams& sampling, const RequestLimits& limits);

}  // namespace oar
