#include "kernels/fair_turns.h"

#include <algorithm>

namespace oar {

FairTurns::Party* FairTurns::next() const {
  return *std::min_element(waiting_.begin(), waiting_.end(),
                           [](const Party* a, const Party* b) { return a->used_ < b->used_; });
}

bool FairTurns::wait(Party& p) {
  std::unique_lock lock(mutex_);
  if (waiting_.empty()) {
    begun_ = Clock::now();
    idle_since_ = {};
    first_come_ = true;
  }
  // Who was away has no claim on that time: it is as if it had used what the others have.
  const auto* holder = reinterpret_cast<const Party*>(lease_.load() & ~uintptr_t{1});
  if (holder != nullptr || !waiting_.empty()) {
    auto least = holder != nullptr ? holder->used_ : std::chrono::nanoseconds::max();
    for (const Party* w : waiting_) least = std::min(least, w->used_);
    p.used_ = std::max(p.used_, least);
  }
  waiting_.push_back(&p);
  wanted_.store(true);
  for (bool slept = false;; slept = true) {
    const auto now = Clock::now();
    uintptr_t lease = lease_.load();
    auto* const had = reinterpret_cast<Party*>(lease);
    const bool free = lease == 0 || ((lease & 1) == 0 && now - idle_since_ >= kGrace);
    if (free && next() == &p && lease_.compare_exchange_strong(lease, busy(p))) {
      if (had != nullptr && idle_since_ > begun_) had->used_ += idle_since_ - begun_;
      std::erase(waiting_, &p);
      wanted_.store(!waiting_.empty());
      begun_ = now;
      idle_since_ = now;
      first_come_ = false;
      return slept;
    }
    passed_.wait_for(lock, kGrace);
  }
}

void FairTurns::pass_on(Party& p) {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty() || lease_.load() != idle(p)) return;
  idle_since_ = Clock::now();
  const auto used = idle_since_ - begun_;
  if (!first_come_ && used < kSlice) return;
  if (next()->used_ > p.used_ + used) return;
  uintptr_t mine = idle(p);
  if (!lease_.compare_exchange_strong(mine, 0)) return;
  p.used_ += used;
  passed_.notify_all();
}

void FairTurns::forget(Party& p) {
  const std::lock_guard lock(mutex_);
  uintptr_t mine = idle(p);
  lease_.compare_exchange_strong(mine, 0);
}

}  // namespace oar
