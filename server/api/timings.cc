#include "server/api/timings.h"

#include <algorithm>

namespace oar::api {
namespace {

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double, std::milli>(to - from).count());
}

// `timed`: how many of the `count` tokens the time is of.
void write_rate(JsonWriter& w, const std::string& of, int64_t count, int64_t timed, double ms) {
  const auto n = static_cast<double>(timed);
  w.key(of + "_n").number(count).key(of + "_ms").number(ms);
  w.key(of + "_per_token_ms").number(timed > 0 ? ms / n : 0.0);
  w.key(of + "_per_second").number(timed > 0 && ms > 0 ? 1000 / ms * n : 0.0);
}

}  // namespace

void write_timings(JsonWriter& w, const SequenceStats& s) {
  w.key("timings").begin_object().key("cache_n").number(s.cached_tokens);
  const bool began = s.first_token != Clock::time_point{};
  const int64_t prompt = std::max<int64_t>(0, s.computed_tokens - s.cached_tokens);
  write_rate(w, "prompt", prompt, prompt,
             prompt > 0 ? milliseconds(s.scheduled, began ? s.first_token : s.finished) : 0.0);
  // The first token comes with the prompt's last step.
  write_rate(w, "predicted", s.completion_tokens, std::max<int64_t>(0, s.completion_tokens - 1),
             began ? milliseconds(s.first_token, s.finished) : 0.0);
  if (const int64_t drafts = s.accepted_drafts + s.rejected_drafts; drafts > 0)
    w.key("draft_n").number(drafts).key("draft_n_accepted").number(s.accepted_drafts);
  w.end_object();
}

void write_metrics(JsonWriter& w, const SequenceStats& s) {
  const bool began = s.first_token != Clock::time_point{};
  const double first = began ? milliseconds(s.submitted, s.first_token) : 0;
  const double more = began ? milliseconds(s.first_token, s.finished) : 0,
               whole = milliseconds(s.scheduled, s.finished);
  const auto tokens = static_cast<double>(s.completion_tokens);
  w.key("metrics").begin_object().key("time_to_first_token_ms").number(first);
  w.key("generation_time_ms").number(more);
  w.key("queue_time_ms").number(milliseconds(s.submitted, s.scheduled));
  if (s.completion_tokens > 1) w.key("mean_itl_ms").number(more / (tokens - 1));
  w.key("tokens_per_second").number(whole > 0 ? 1000 * tokens / whole : 0.0).end_object();
}

void write_progress(JsonWriter& w, const SequenceStats& s) {
  w.key("prompt_progress").begin_object().key("total").number(s.prompt_tokens);
  w.key("cache").number(s.cached_tokens).key("processed").number(s.computed_tokens);
  const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(s.finished - s.scheduled);
  w.key("time_ms").number(std::max<int64_t>(0, elapsed.count()));
  w.end_object();
}

}  // namespace oar::api
