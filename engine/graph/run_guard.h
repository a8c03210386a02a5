// Ending a run from outside. Whoever starts a run says what to ask; what runs asks it between steps, those of
// branches and loops included, and ends the run with what it answers. A thread's own state:
// evaluators nest, and the ops between them know nothing of it.
#pragma once

#include <functional>
#include <utility>

#include "engine/base/status.h"

namespace oar {

// While it lives, runs of this thread are guarded by `ask`, which must be cheap. One inside another takes its
// place.
class RunGuard {
 public:
  explicit RunGuard(std::function<Status()> ask) : ask_(std::move(ask)), outer_(current_) { current_ = this; }
  ~RunGuard() { current_ = outer_; }
  RunGuard(const RunGuard&) = delete;
  RunGuard& operator=(const RunGuard&) = delete;

  // OK where there is none.
  static Status check() { return current_ == nullptr ? ok_status() : current_->ask_(); }

 private:
  inline static thread_local const RunGuard* current_ = nullptr;
  const std::function<Status()> ask_;
  const RunGuard* const outer_;
};

}  // namespace oar
