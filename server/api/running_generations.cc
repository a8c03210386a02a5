#include "server/api/running_generations.h"

#include <utility>
#include <vector>

#include "server/api/generation.h"

namespace oar::api {

void RunningGenerations::add(const std::shared_ptr<Generation>& g) {
  const std::lock_guard lock(mutex_);
  all_[g.get()].running = g;
}

void RunningGenerations::remove(const Generation* g) {
  const std::lock_guard lock(mutex_);
  all_.erase(g);
}

size_t RunningGenerations::count() {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

void RunningGenerations::keep(std::shared_ptr<Generation> g) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Generation>& kept = all_[g.get()].kept;
  kept = std::move(g);
}

void RunningGenerations::let_go(const Generation* g) {
  std::shared_ptr<Generation> last;  // which removes itself: not under the lock
  const std::lock_guard lock(mutex_);
  if (const auto it = all_.find(g); it != all_.end()) last.swap(it->second.kept);
}

void RunningGenerations::forget() {
  std::vector<std::shared_ptr<Generation>> last;
  const std::lock_guard lock(mutex_);
  for (auto& [raw, entry] : all_) {
    if (entry.kept) last.push_back(std::move(entry.kept));
  }
}

size_t RunningGenerations::cancel_all(const Status& why) {
  std::vector<std::shared_ptr<Generation>> now;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [raw, entry] : all_) {
      if (auto g = entry.running.lock()) now.push_back(std::move(g));
    }
  }
  for (const auto& g : now) g->cancel(why);
  return now.size();
}

}  // namespace oar::api
