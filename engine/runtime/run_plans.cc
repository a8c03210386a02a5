#include "engine/runtime/run_plans.h"

#include "engine/base/format.h"

namespace oar {

std::string shapes_key(const std::vector<Datum>& inputs) {
  std::string key = "|";
  for (const Datum& d : inputs) {
    if (!d.is_tensor()) return {};
    key += d.to_string();
    key += '|';
  }
  return key;
}

RunPlans::Entry* RunPlans::touch(const std::string& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return &entries_.front();
}

RunPlans::Known RunPlans::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const Entry* e = touch(key);
  return e ? e->known : Known();
}

void RunPlans::learn(const std::string& key, std::vector<BlockLife> lives,
                     std::shared_ptr<const BoundCalls> calls) {
  bool settled = lives.empty();
  {
    const std::lock_guard lock(mutex_);
    if (Entry* e = touch(key)) {
      if (calls && !e->known.calls) e->known.calls = calls;
      settled =
          settled || (e->known.plan && (e->known.plan->blocks == lives || e->corrections >= kCorrections));
      if (!settled) ++e->corrections;
    }
  }
  if (settled) return;
  put(key, std::make_shared<const BlockPlan>(plan_blocks(std::move(lives))), std::move(calls));
}

void RunPlans::put(const std::string& key, std::shared_ptr<const BlockPlan> plan,
                   std::shared_ptr<const BoundCalls> calls) {
  const std::lock_guard lock(mutex_);
  if (Entry* e = touch(key)) {
    e->known.plan = std::move(plan);
    return;
  }
  if (capacity_ == 0) return;
  entries_.push_front({key, {std::move(plan), std::move(calls)}, 0});
  by_key_[key] = entries_.begin();
  if (entries_.size() <= capacity_) return;
  by_key_.erase(entries_.back().key);
  entries_.pop_back();
}

size_t RunPlans::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

void RunPlans::clear() {
  const std::lock_guard lock(mutex_);
  by_key_.clear();
  entries_.clear();
}

}  // namespace oar
