// Progress of long work on stderr: a bar on a terminal, a line now and then elsewhere, nothing at all for
// what is over within a second.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "engine/base/log.h"

namespace oar::cli {

class ProgressBar {
 public:
  // `stop` (may be empty) says whether the work should end.
  explicit ProgressBar(bool quiet = false, std::function<bool()> stop = {});
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // For the work; this object outlives it.
  Progress callback();
  // Takes the bar off the screen, so that other output may follow.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  bool update(std::string_view what, uint64_t done, uint64_t total);

  const bool quiet_, terminal_;
  const std::function<bool()> stop_;
  const Clock::time_point start_;
  Clock::time_point shown_;
  bool drawn_ = false;
};

}  // namespace oar::cli
