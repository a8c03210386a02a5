#include "engine/runtime/core/fair_shares.h"

#include <algorithm>
#include <cmath>

namespace oar {
namespace {

constexpr double kTagsPerToken = 1024;  // 2^63 tags: 285 years of a million tokens per second
constexpr double kNewest = 1.0 / 16;    // of the mean of answers

}  // namespace

FairShares::Ticket FairShares::arrive(const std::string& name, double weight, int32_t priority,
                                      int64_t prompt, int64_t choices, int64_t max_tokens) {
  if (shares_.size() >= sweep_at_) forget();
  FairShare& share = shares_[name];
  share.weight = weight;
  ++share.unfinished;
  Ticket t;
  t.share = &share;
  t.start = std::max(now_, share.finish);
  const double answer = std::min(answer_, static_cast<double>(max_tokens));
  t.tokens = static_cast<double>(prompt) + static_cast<double>(choices) * answer;
  share.finish = t.start + t.tokens / weight;
  t.tag = static_cast<int64_t>(std::llround((t.start + priority * kPriorityTokens) * kTagsPerToken));
  return t;
}

// The step beyond it is for callers without end, each with one request: they shall not all start in front of
// somebody who waits.
void FairShares::started(const Ticket& t) { now_ = std::max(now_, t.start) + 1; }

void FairShares::ended(const Ticket& t, int64_t computed, int64_t generated, int64_t choices) {
  FairShare& share = *t.share;
  share.finish += (static_cast<double>(computed + generated) - t.tokens) / share.weight;
  const double answer = static_cast<double>(generated) / static_cast<double>(choices);
  answer_ += (answer - answer_) * kNewest;
  --share.unfinished;
}

// Who starts at now_ anyway need not be known. What is left may be many: the next sweep waits for twice that.
void FairShares::forget() {
  std::erase_if(shares_, [&](const auto& s) { return s.second.unfinished == 0 && s.second.finish <= now_; });
  sweep_at_ = std::max<size_t>(256, 2 * shares_.size());
}

}  // namespace oar
