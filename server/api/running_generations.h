// The generations in flight: a server that stops can end them with words instead of a cut connection, and one
// whose caller has gone stays until the engine has told its end, so that it is counted, charged and logged.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/base/status.h"

namespace oar::api {

class Generation;

// Any thread.
class RunningGenerations {
 public:
  ~RunningGenerations() { forget(); }
  void add(const std::shared_ptr<Generation>& g);
  void remove(const Generation* g);
  size_t count();
  // Holds one, which was added, until it is let go.
  void keep(std::shared_ptr<Generation> g);
  void let_go(const Generation* g);
  // Lets go of all: whoever would run their events has stopped.
  void forget();
  // Ends all of them with an error that says why. Returns how many there were.
  size_t cancel_all(const Status& why);

 private:
  struct Entry {
    std::weak_ptr<Generation> running;
    std::shared_ptr<Generation> kept;  // null: its owner is there
  };
  std::mutex mutex_;
  std::unordered_map<const Generation*, Entry> all_;  // guarded by mutex_
};

}  // namespace oar::api
