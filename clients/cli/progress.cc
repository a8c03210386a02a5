#include "clients/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "engine/base/format.h"

namespace oar::cli {
namespace {

constexpr std::chrono::milliseconds kQuietStart{700};
constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kLine{5};
constexpr int kWidth = 30;

// Time left, as far as the pace so far tells; empty for what is soon over.
std::string time_left(std::chrono::duration<double> spent, double part) {
  if (part <= 0 || spent < std::chrono::seconds(3)) return {};
  const double seconds = spent.count() * (1 - part) / part;
  if (seconds < 2) return {};
  if (seconds < 120) return cat(", ", static_cast<int64_t>(seconds), " s left");
  return cat(", ", static_cast<int64_t>(seconds / 60 + 0.5), " min left");
}

// The end of a path says more than its beginning.
std::string shortened(std::string_view what) {
  if (const size_t slash = what.rfind('/'); slash != std::string_view::npos) what.remove_prefix(slash + 1);
  return std::string(what.substr(0, 40));
}

}  // namespace

ProgressBar::ProgressBar(bool quiet, std::function<bool()> stop)
    : quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) != 0),
      stop_(std::move(stop)),
      start_(Clock::now()),
      shown_(start_) {}

Progress ProgressBar::callback() {
  return [this](std::string_view what, uint64_t done, uint64_t total) { return update(what, done, total); };
}

bool ProgressBar::update(std::string_view what, uint64_t done, uint64_t total) {
  if (stop_ && stop_()) return false;
  const auto now = Clock::now();
  if (quiet_ || total == 0 || now - start_ < kQuietStart ||
      now - shown_ < (terminal_ ? Clock::duration(kRedraw) : kLine))
    return true;
  shown_ = now;
  const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  if (terminal_) {
    const int filled = static_cast<int>(part * kWidth);
    const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                            std::string(static_cast<size_t>(kWidth - filled), ' ');
    std::fprintf(stderr, "\r\x1b[K[%s] %3.0f%% %s%s", bar.c_str(), part * 100, shortened(what).c_str(),
                 time_left(now - start_, part).c_str());
    std::fflush(stderr);
    drawn_ = true;
  } else {
    std::fprintf(stderr, "%s: %.0f%%%s\n", shortened(what).c_str(), part * 100,
                 time_left(now - start_, part).c_str());
  }
  return true;
}

void ProgressBar::clear() {
  if (drawn_) std::fprintf(stderr, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace oar::cli
