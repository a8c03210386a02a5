#include "engine/runtime/core/batcher.h"

#include <algorithm>

#include "engine/base/format.h"

namespace oar {

Batcher::Batcher(BatchPolicy policy) : policy_(std::move(policy)) {
  OAR_CHECK(policy_.max_rows >= 1, "a run has at least one row");
  OAR_CHECK(std::is_sorted(policy_.preferred.begin(), policy_.preferred.end()), "preferred sizes ascend");
}

Status Batcher::push(Item item) {
  OAR_CHECK(item.rows >= 1 && item.rows <= policy_.max_rows, "a request fits into one run");
  if (where_.size() >= policy_.max_queue) {
    return resource_exhausted(cat(where_.size(), " requests are waiting already (max_queue_size ",
                                  policy_.max_queue, "); try again later"));
  }
  const auto group = groups_.try_emplace(item.key).first;
  const bool fresh = where_.emplace(item.id, group).second;
  OAR_CHECK(fresh, "ids of waiting requests are unique");
  if (item.deadline) deadlines_.emplace(*item.deadline, item.id);
  group->second.rows += item.rows;
  group->second.items.push_back(std::move(item));
  return ok_status();
}

Batcher::Item Batcher::take(uint64_t id) {
  const auto found = where_.find(id);
  const Groups::iterator group = found->second;
  where_.erase(found);
  auto& items = group->second.items;
  const auto at = std::find_if(items.begin(), items.end(), [&](const Item& i) { return i.id == id; });
  Item item = std::move(*at);
  items.erase(at);
  group->second.rows -= item.rows;
  if (items.empty()) groups_.erase(group);
  if (item.deadline) deadlines_.erase({*item.deadline, id});
  return item;
}

bool Batcher::remove(uint64_t id) {
  if (where_.count(id) == 0) return false;
  take(id);
  return true;
}

size_t Batcher::due(const Group& group, Clock::time_point now) const {
  // The longest prefix that fits, and the longest whose size is a preferred one.
  size_t fitting = 0, preferred = 0;
  int64_t rows = 0;
  for (const Item& item : group.items) {
    if (rows + item.rows > policy_.max_rows) break;
    rows += item.rows;
    ++fitting;
    if (std::binary_search(policy_.preferred.begin(), policy_.preferred.end(), rows)) preferred = fitting;
  }
  const int64_t enough = policy_.preferred.empty() ? policy_.max_rows : policy_.preferred.back();
  const bool full = rows >= enough || fitting < group.items.size();
  if (!full && now < group.items.front().arrived + policy_.max_delay) return 0;
  return preferred > 0 ? preferred : fitting;
}

Batcher::Decision Batcher::next(Clock::time_point now) {
  Decision decision;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    decision.expired.push_back(deadlines_.begin()->second);
    take(decision.expired.back());
  }
  const Group* chosen = nullptr;
  size_t count = 0;
  for (const auto& [key, group] : groups_) {
    const Clock::time_point arrived = group.items.front().arrived;
    if (chosen && chosen->items.front().arrived <= arrived) continue;
    if (const size_t n = due(group, now); n > 0) {
      chosen = &group;
      count = n;
    } else if (const auto at = arrived + policy_.max_delay; !decision.wake || at < *decision.wake) {
      decision.wake = at;
    }
  }
  if (chosen) {
    for (size_t k = 0; k < count; ++k) decision.run.push_back(chosen->items[k].id);
    for (const uint64_t id : decision.run) take(id);
    decision.wake.reset();  // ask again as soon as this run is under way
  } else if (!deadlines_.empty() && (!decision.wake || deadlines_.begin()->first < *decision.wake)) {
    decision.wake = deadlines_.begin()->first;
  }
  return decision;
}

}  // namespace oar
