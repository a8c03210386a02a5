// SIGINT and SIGTERM as events. One SignalWatcher, made by the main thread before any other thread, so that
// all inherit the mask and only the watcher's thread sees the signals.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace oar::cli {

// The first signal sets requested(); the second ends the process at once with 128 + its number.
class SignalWatcher {
 public:
  SignalWatcher();
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

  bool requested() const { return signal_ != 0; }
  int signal() const { return signal_; }  // the first one's number, or 0
  // True as soon as one has come; false after the timeout.
  bool wait_for(std::chrono::milliseconds timeout);

 private:
  void watch();
  std::atomic<int> signal_{0};
  std::atomic<bool> closing_{false};
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::thread thread_;
};

}  // namespace oar::cli
