// Validation: everything a caller can get wrong, found before a request is queued.
#include "engine/runtime/core/request.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"

namespace oar {
namespace {

Status refuse(std::string_view field, std::string message) {
  return invalid_argument(cat(field, ": ", message), std::string(field));
}

template <class T>
Status outside(std::string_view field, T value, std::string_view range) {
  return refuse(field, cat("must be ", range, ", got ", value));
}

Status check_token(std::string_view field, size_t position, int32_t token, int64_t vocab) {
  if (token >= 0 && token < vocab) return ok_status();
  return refuse(field, cat("token id ", token, " at position ", position, " is outside the vocabulary [0, ",
                           vocab, ")"));
}

// NaN fails every comparison, so it is refused with the range.
template <class T>
bool within(T v, T low, T high) {
  return v >= low && v <= high;
}

}  // namespace

Status validate_sampling(const SamplingParams& s, const RequestLimits& limits) {
  if (!(s.temperature >= 0.f) || std::isinf(s.temperature))
    return outside("temperature", s.temperature, "a finite number >= 0");
  if (s.top_k < 0) return outside("top_k", s.top_k, ">= 0 (0 keeps all)");
  if (!(s.top_p > 0.f && s.top_p <= 1.f)) return outside("top_p", s.top_p, "in (0, 1]");
  if (!within(s.min_p, 0.f, 1.f)) return outside("min_p", s.min_p, "in [0, 1]");
  if (!(s.repetition_penalty > 0.f) || std::isinf(s.repetition_penalty))
    return outside("repetition_penalty", s.repetition_penalty, "a finite number > 0");
  if (!within(s.presence_penalty, -2.f, 2.f))
    return outside("presence_penalty", s.presence_penalty, "in [-2, 2]");
  if (!within(s.frequency_penalty, -2.f, 2.f))
    return outside("frequency_penalty", s.frequency_penalty, "in [-2, 2]");
  if (!within(s.logprobs, -1, limits.max_logprobs))
    return outside("logprobs", s.logprobs, cat("between 0 and ", limits.max_logprobs, " (or absent)"));
  if (!limits.host_draws && (s.drawn_logprobs || !s.logprob_tokens.empty()))
    return refuse(s.drawn_logprobs ? "post_sampling_probs" : "logprob_token_ids",
                  "tokens are drawn on a device here, which tells of the likeliest alone; leave it out");
  if (s.logprob_tokens.size() > limits.max_logprob_tokens)
    return refuse("logprob_token_ids",
                  cat("at most ", limits.max_logprob_tokens, " ids, got ", s.logprob_tokens.size()));
  for (size_t i = 0; i < s.logprob_tokens.size(); ++i)
    OAR_RETURN_IF_ERROR(check_token("logprob_token_ids", i, s.logprob_tokens[i], limits.vocab_size));
  if (!within(s.prompt_logprobs, -1, limits.max_logprobs))
    return outside("prompt_logprobs", s.prompt_logprobs,
                   cat("between 0 and ", limits.max_logprobs, " (or absent)"));
  if (s.logit_bias.size() > limits.max_logit_bias)
    return refuse("logit_bias",
                  cat("at most ", limits.max_logit_bias, " entries, got ", s.logit_bias.size()));
  for (size_t i = 0; i < s.logit_bias.size(); ++i) {
    OAR_RETURN_IF_ERROR(check_token("logit_bias", i, s.logit_bias[i].first, limits.vocab_size));
    if (!std::isfinite(s.logit_bias[i].second))
      return refuse("logit_bias",
                    cat("the bias of token ", s.logit_bias[i].first, " must be a finite number"));
  }
  return ok_status();
}

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone: return "none";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kDeadline: return "deadline";
    case FinishReason::kError: return "error";
  }
  return "unknown";
}

Status validate_request(const Request& r, const RequestLimits& limits) {
  if (r.sink == nullptr) return refuse("sink", "a request needs one to deliver its tokens to");
  if (r.prompt.empty()) return refuse("prompt", "must hold at least one token");
  const StopParams& stop = r.stop;
  if (stop.max_tokens < 0) return outside("max_tokens", stop.max_tokens, ">= 0");
  if (!within<int64_t>(stop.min_tokens, 0, stop.max_tokens))
    return refuse("min_tokens",
                  cat("must be between 0 and max_tokens (", stop.max_tokens, "), got ", stop.min_tokens));
  const int64_t prompt = static_cast<int64_t>(r.prompt.size());
  const int64_t room = limits.max_context - (stop.max_tokens > 0 ? 1 : 0);
  if (prompt > room)
    return refuse("prompt", cat("has ", prompt, " tokens, but the context of ", limits.max_context,
                                " holds a prompt of at most ", room, "; shorten it"));
  for (size_t i = 0; i < r.prompt.size(); ++i)
    OAR_RETURN_IF_ERROR(check_token("prompt", i, r.prompt[i], limits.vocab_size));
  if (!within(r.n, 1, limits.max_n)) return outside("n", r.n, cat("between 1 and ", limits.max_n));
  if (stop.stop_token_ids.size() > limits.max_stop_tokens)
    return refuse("stop_token_ids",
                  cat("at most ", limits.max_stop_tokens, " ids, got ", stop.stop_token_ids.size()));
  for (size_t i = 0; i < stop.stop_token_ids.size(); ++i)
    OAR_RETURN_IF_ERROR(check_token("stop_token_ids", i, stop.stop_token_ids[i], limits.vocab_size));
  if (!within(r.weight, kMinWeight, kMaxWeight))
    return outside("weight", r.weight, cat("between ", kMinWeight, " and ", kMaxWeight));
  if (!within(r.priority, -kMaxPriority, kMaxPriority))
    return outside("priority", r.priority, cat("between ", -kMaxPriority, " and ", kMaxPriority));
  return validate_sampling(r.sampling, limits);
}

}  // namespace oar
