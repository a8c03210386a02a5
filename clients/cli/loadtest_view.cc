#include "clients/cli/loadtest_view.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "engine/base/format.h"

namespace oar::cli {
namespace {

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789-_./:=,@%+") == std::string::npos;
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Of a header its name stays.
std::string hidden(const std::string& secret) {
  const size_t colon = secret.find(':');
  return cat(secret.substr(0, colon == std::string::npos ? 0 : colon + 1), "...");
}

}  // namespace

double seconds_left(const LoadGoal& goal, double elapsed, int64_t finished) {
  const bool timed = goal.seconds > 0;
  const double by_time = std::max(0.0, goal.seconds - elapsed);
  if (finished <= 0 || goal.requests <= 0) return timed ? by_time : -1;
  const double by_count =
      static_cast<double>(goal.requests - finished) * elapsed / static_cast<double>(finished);
  return timed ? std::min(by_time, by_count) : by_count;
}

std::string eta_text(double seconds) {
  if (seconds < 0) return {};
  const auto s = static_cast<long long>(std::ceil(seconds));
  if (s < 60) return cat("ETA ", s, " s");
  if (s < 3600) return cat("ETA ", s / 60, " min ", s % 60, " s");
  return cat("ETA ", s / 3600, " h ", s / 60 % 60, " min");
}

LiveView::LiveView(loadtest::LoadProgress& progress, LoadGoal goal, bool on)
    : progress_(progress), goal_(std::move(goal)) {
  if (on) thread_ = std::thread([this] { main(); });
}

LiveView::~LiveView() {
  done_ = true;
  if (!thread_.joinable()) return;
  thread_.join();
  std::fprintf(stderr, "\r\033[K");
}

void LiveView::main() {
  const auto begin = std::chrono::steady_clock::now();
  int64_t before = 0;
  for (int i = 0; !done_; ++i) {
    if (i % 10 == 0) {
      const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      const int64_t tokens = progress_.tokens, finished = progress_.finished;
      const std::string eta = eta_text(seconds_left(goal_, elapsed, finished));
      std::fprintf(stderr, "\r\033[K%s%lld sent, %lld in flight, %lld done, %lld failed, %lld chunks/s%s%s",
                   goal_.stage.c_str(), static_cast<long long>(progress_.dispatched),
                   static_cast<long long>(progress_.in_flight), static_cast<long long>(finished),
                   static_cast<long long>(progress_.failed), static_cast<long long>((tokens - before) * 2),
                   eta.empty() ? "" : ", ", eta.c_str());
      std::fflush(stderr);
      before = tokens;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string shown_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::string out;
  bool secret = false;
  for (size_t at = 0; at < all.size();) {
    const size_t end = std::min(all.find('\0', at), all.size());
    std::string word = all.substr(at, end - at);
    at = end + 1;
    if (out.empty()) word = word.substr(word.rfind('/') + 1);  // the program's name
    const bool secret_option = word.starts_with("--api-key") || word.starts_with("--header");
    const size_t equals = secret_option ? word.find('=') : std::string::npos;
    if (secret) word = hidden(word);
    else if (equals != std::string::npos) word = word.substr(0, equals + 1) + hidden(word.substr(equals + 1));
    secret = secret_option && !secret && equals == std::string::npos;
    out += (out.empty() ? "" : " ") + shell_word(word);
  }
  return out;
}

}  // namespace oar::cli
