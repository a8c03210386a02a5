// What llama.cpp's server counts, since the server began: of all language models together, also of those that
// have gone, and of the texts that encoders read.
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "engine/runtime/core/request.h"

namespace oar {

class LlamaTotals {
 public:
  struct Counts {
    double prompt = 0, cached = 0, generated = 0, drafts = 0, drafted = 0, accepted = 0, longest = 0,
           steps = 0;
    double prompt_seconds = 0, decode_seconds = 0;
  };
  void finished(const SequenceStats& s) {
    const auto seconds = [](Clock::time_point from, Clock::time_point to) {
      return from == Clock::time_point{} || to < from ? 0 : std::chrono::duration<double>(to - from).count();
    };
    const auto d = [](int64_t n) { return static_cast<double>(n); };
    const std::lock_guard lock(mutex_);
    if (s.scheduled != Clock::time_point{}) counts_.prompt += d(s.prompt_tokens - s.cached_tokens);
    counts_.cached += d(s.cached_tokens);
    counts_.generated += d(s.completion_tokens);
    counts_.drafts += d(s.verified_drafts);
    counts_.drafted += d(s.accepted_drafts + s.rejected_drafts);
    counts_.accepted += d(s.accepted_drafts);
    counts_.longest = std::max(counts_.longest, d(s.prompt_tokens + s.completion_tokens));
    counts_.prompt_seconds += seconds(s.scheduled, s.first_token);
    counts_.decode_seconds += seconds(s.first_token, s.finished);
  }
  void stepped() {
    const std::lock_guard lock(mutex_);
    ++counts_.steps;
  }
  // And what they were when they were last read.
  Counts read(Counts& before) {
    const std::lock_guard lock(mutex_);
    before = std::exchange(read_, counts_);
    return counts_;
  }

 private:
  std::mutex mutex_;
  Counts counts_, read_;  // guarded by mutex_
};

}  // namespace oar
