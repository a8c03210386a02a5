// What a terminal shows of a load test while it runs, and how its command line is kept.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "clients/loadtest/run.h"

namespace oar::cli {

// When a run will be over.
struct LoadGoal {
  std::string stage;     // in front of the line: "round 2 of 6, A: "
  int64_t requests = 0;  // at most
  double seconds = 0;    // nothing is sent after this; 0: until the requests are used up
};

// One line on a terminal, rewritten twice a second, gone with this object.
class LiveView {
 public:
  LiveView(loadtest::LoadProgress& progress, LoadGoal goal, bool on);
  ~LiveView();

 private:
  void main();
  loadtest::LoadProgress& progress_;
  LoadGoal goal_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

// Seconds until the goal, going on as in the first `elapsed` ones, in which `finished` requests ended;
// negative when nothing can be said yet.
double seconds_left(const LoadGoal& goal, double elapsed, int64_t finished);
// "ETA 12 s", "ETA 3 min 20 s", "ETA 2 h 5 min"; nothing when `seconds` is negative.
std::string eta_text(double seconds);

// This process's command line, quoted for a shell. Keys and the values of headers are hidden.
std::string shown_command();

}  // namespace oar::cli
