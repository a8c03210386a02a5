// Batcher: which waiting requests of an ordinary model run together, and when. Pure logic: no thread, no
// clock, no tensors, so that its rules are tested by the million with a made-up time. BatchedPredictor drives
// it.
//
// Requests with the same key (equal shapes but for the batch axis) may share a run. Groups are served by the
// age of their oldest request, and within a group in order of arrival: nobody is overtaken by a later request
// that could have run with it, and no key starves another.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/status.h"
#include "engine/runtime/core/request.h"

namespace oar {

struct BatchPolicy {
  int64_t max_rows = 1;  // rows of one run; a request of more is never pushed
  std::vector<int64_t>
      preferred;  // ascending row counts, none above max_rows; reaching the largest, a group is due
  std::chrono::nanoseconds max_delay{0};  // how long the oldest request of a group may wait for company
  size_t max_queue = 1024;                // requests waiting; one more is refused
};

// Thread-compatible.
class Batcher {
 public:
  struct Item {
    uint64_t id = 0;   // unique among those waiting
    int64_t rows = 1;  // [1, max_rows]
    std::string key;
    Clock::time_point arrived;
    std::optional<Clock::time_point> deadline;
  };
  struct Decision {
    std::vector<uint64_t> run;              // together, in this order; empty: nothing is due
    std::vector<uint64_t> expired;          // their deadline passed while they waited
    std::optional<Clock::time_point> wake;  // when to ask again, unless something is pushed before
  };

  explicit Batcher(BatchPolicy policy);

  // RESOURCE_EXHAUSTED when the queue is full.
  Status push(Item item);
  // True when it was waiting.
  bool remove(uint64_t id);
  // What `run` and `expired` name is waiting no longer.
  Decision next(Clock::time_point now);
  size_t waiting() const { return where_.size(); }

 private:
  struct Group {
    std::deque<Item> items;
    int64_t rows = 0;
  };
  using Groups = std::map<std::string, Group>;

  // How many of the group's first requests run together now; 0: it is better to wait.
  size_t due(const Group& group, Clock::time_point now) const;
  Item take(uint64_t id);

  const BatchPolicy policy_;
  Groups groups_;  // none is empty
  std::unordered_map<uint64_t, Groups::iterator> where_;
  std::set<std::pair<Clock::time_point, uint64_t>> deadlines_;
};

}  // namespace oar
