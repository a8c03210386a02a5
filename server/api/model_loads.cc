// Models that come and go while the server runs: for requests that ask for them, and by themselves.
#include <algorithm>
#include <utility>

#include "engine/base/format.h"
#include "server/api/model_catalog.h"
#include "server/api/model_reaper.h"

namespace oar::api {

void ModelCatalog::keep_at_most(size_t language_models) {
  std::lock_guard lock(mutex_);
  most_language_ = language_models;
}

void ModelCatalog::load_on(Spawn spawn) {
  std::lock_guard lock(mutex_);
  spawn_ = std::move(spawn);
}

ModelKind ModelCatalog::kind_of(const Entry& entry) {
  return entry.versions.empty() ? entry.kind : entry.versions.rbegin()->second.kind();
}

bool ModelCatalog::is_language(const Entry& entry) { return kind_of(entry) == ModelKind::kLanguage; }

// Under mutex_. From here on nobody finds it, and a request for it finds that it is to be loaded.
ModelVersions ModelCatalog::take_out(Entry& entry, const std::string& reason) {
  ModelVersions out;
  out.swap(entry.versions);
  entry.state = "UNAVAILABLE";
  entry.reason = reason;
  return out;
}

ModelCatalog::Ends ModelCatalog::ends_of(const ModelVersions& models) {
  Ends ends;
  for (const auto& [version, model] : models) {
    if (model.language) ends.emplace_back(model.language);
    if (model.tensor) ends.emplace_back(model.tensor);
  }
  return ends;
}

bool ModelCatalog::await(const Ends& ends, std::chrono::milliseconds longest) {
  const auto until = std::chrono::steady_clock::now() + longest;
  const auto ended = [&] {
    return std::all_of(ends.begin(), ends.end(), [](const auto& end) { return end.expired(); });
  };
  while (!ended() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  reaper_->settle();
  return ended();
}

// What was taken out is waited for: its memory is what the next one needs.
void ModelCatalog::await_end(ModelVersions models) {
  const Ends ends = ends_of(models);
  models.clear();
  await(ends, std::chrono::seconds(60));
}

// A model that comes back would get what memory its last requests leave, and a context as short as that.
void ModelCatalog::await_former(const std::string& name) {
  Ends former;
  {
    std::lock_guard lock(mutex_);
    if (const auto it = entries_.find(name); it != entries_.end())
      former = std::exchange(it->second.former, {});
  }
  if (former.empty() || await(former, std::chrono::seconds(10))) return;
  log_(LogLevel::kWarning, cat("model ", name,
                               " is loaded beside its former life, whose requests still run: it "
                               "gets the memory that these leave"));
}

void ModelCatalog::make_room_for(const std::string& name) {
  for (;;) {
    std::string victim;
    ModelVersions old;
    {
      std::lock_guard lock(mutex_);
      const auto own = entries_.find(name);
      if (most_language_ == 0 || (own != entries_.end() && !own->second.versions.empty())) return;
      if (source_->kind_of(name) != ModelKind::kLanguage) return;
      size_t loaded = 0;
      const Entry* oldest = nullptr;
      for (const auto& [other, entry] : entries_) {
        if (entry.versions.empty() || !is_language(entry)) continue;
        ++loaded;
        if (oldest != nullptr && oldest->last_used <= entry.last_used) continue;
        oldest = &entry;
        victim = other;
      }
      if (loaded < most_language_) return;
      old = take_out(entries_.at(victim), kLoadedOnDemand);
    }
    log_(LogLevel::kInfo, cat("model ", victim, " makes room for ", name));
    await_end(std::move(old));
  }
}

const std::string* ModelCatalog::asked_for(std::string_view name, ModelKind kind) const {
  const auto only = [&]() -> const std::string* {
    const std::string* out = nullptr;
    for (const auto& [other, entry] : entries_) {
      if (kind_of(entry) != kind) continue;
      // One that clients have unloaded is none that could be meant.
      const bool comes = entry.card || entry.coming || (most_language_ > 0 && is_language(entry));
      if (entry.versions.empty() && !comes) continue;
      if (out != nullptr) return nullptr;
      out = &other;
    }
    return out;
  };
  if (name.empty()) return only();
  if (const auto it = entries_.find(name); it != entries_.end()) return &it->first;
  const auto has = [&](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (const auto it = entries_.find(renamed_); has(aliases_) && it != entries_.end()) return &it->first;
  for (const auto& [other, entry] : entries_)
    if (has(entry.adapters)) return &other;
  constexpr std::string_view kTag = ":latest";  // as find() has it
  if (name.ends_with(kTag)) return asked_for(name.substr(0, name.size() - kTag.size()), kind);
  return any_name_ ? only() : nullptr;
}

bool ModelCatalog::bring(std::string_view name, ModelKind kind) {
  std::lock_guard lock(mutex_);
  const std::string* const model = asked_for(name, kind);
  if (model == nullptr) return false;
  Entry& entry = entries_.at(*model);
  if (asleep_ && is_language(entry)) return false;
  entry.asked = std::chrono::steady_clock::now();
  const bool comes = entry.card || (most_language_ > 0 && is_language(entry));
  if (!entry.versions.empty() || !comes) return false;
  if (entry.coming) return true;
  if (!spawn_) return false;
  entry.coming = true;
  spawn_([this, wanted = *model] {
    const Status s = load(wanted, {});
    uint64_t before = 0;
    {
      std::lock_guard held(mutex_);
      Entry& e = entries_.at(wanted);
      e.coming = false;
      if (!s.ok()) e.reason = s.message();
      before = e.last_used;
    }
    // The next load may take its place: those that wait for it get hold of it first. They look every
    // millisecond.
    constexpr std::chrono::milliseconds kLook{2}, kOthers{20};
    const auto found = [&] {
      std::lock_guard held(mutex_);
      return entries_.at(wanted).last_used > before;
    };
    if (!s.ok()) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (!found() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kLook);
    std::this_thread::sleep_for(kOthers);
  });
  return true;
}

bool ModelCatalog::coming(std::string_view name, ModelKind kind) const {
  std::lock_guard lock(mutex_);
  const std::string* const model = asked_for(name, kind);
  return model != nullptr && entries_.at(*model).coming;
}

std::vector<std::string> ModelCatalog::loadable(ModelKind kind) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [name, entry] : entries_) {
    if (kind != ModelKind::kNone && kind_of(entry) != kind) continue;
    if (entry.card || (most_language_ > 0 && entry.versions.empty() && is_language(entry)))
      out.push_back(name);
  }
  return out;
}

Status ModelCatalog::sleep() {
  std::lock_guard one(loading_);
  if (!source_)
    return unimplemented("this server cannot load its models again; start it with `oar serve MODEL`");
  if (asleep_.exchange(true)) return ok_status();
  sleeping_.clear();
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, entry] : entries_)
      if (is_language(entry) && (entry.card || !entry.versions.empty())) sleeping_.push_back(name);
    for (auto& [name, entry] : entries_)
      if (is_language(entry)) entry.card.reset();
  }
  for (const std::string& name : sleeping_) {
    ModelVersions old;
    {
      std::lock_guard lock(mutex_);
      old = take_out(entries_.at(name), kServerAsleep);
    }
    await_end(std::move(old));
  }
  log_(LogLevel::kInfo, cat("asleep: ", sleeping_.size(), " models unloaded"));
  return ok_status();
}

Status ModelCatalog::wake() {
  std::lock_guard one(loading_);
  if (!asleep_) {
    std::lock_guard lock(mutex_);
    for (const auto& [name, entry] : entries_)
      if (entry.card) sleeping_.push_back(name);
    if (sleeping_.empty()) return ok_status();
  }
  Status first;
  for (const std::string& name : sleeping_) {
    const Status s = open(name, {});
    if (s.ok()) continue;
    log_(LogLevel::kError, cat("model ", name, " could not be loaded: ", s.message()));
    if (first.ok()) first = s;
  }
  sleeping_.clear();
  asleep_ = false;
  log_(LogLevel::kInfo, "awake");
  return first;
}

// ---- sleeping by itself ----

// Under mutex_, as is the next.
void ModelCatalog::woken(Entry& entry) {
  entry.asked = std::chrono::steady_clock::now();
  entry.card.reset();
  entry.adapters.clear();
  if (entry.versions.empty()) return;
  for (const ModelHandlePtr& adapter : adapters_of(entry.versions.rbegin()->second))
    entry.adapters.push_back(adapter->name);
}

// Who runs or waits asks for it still.
bool ModelCatalog::is_idle(const std::string& name, Entry& entry) const {
  if (entry.versions.empty() || entry.coming) return false;
  const ModelKind kind = kind_of(entry);
  if (kind == ModelKind::kLanguage ? asleep_.load() : kind != ModelKind::kEncoder) return false;
  const auto now = std::chrono::steady_clock::now();
  for (const auto& [version, model] : entry.versions) {
    if (model.tensor) {
      const InferStats s = model.tensor->runner->stats();
      if (s.running + s.waiting > 0) entry.asked = now;
      continue;
    }
    const EngineStats s = model.language->engine->stats();
    if (s.running + s.waiting + s.suspended > 0) entry.asked = now;
  }
  if (now - entry.asked < idle_after_) return false;
  if (kind == ModelKind::kEncoder)  // whose ensembles find it loaded, or not at all
    return std::none_of(entries_.begin(), entries_.end(), [&](const auto& other) {
      const std::vector<std::string>& steps = other.second.steps;
      return std::find(steps.begin(), steps.end(), name) != steps.end();
    });
  std::vector<std::string> adapters;
  for (const ModelHandlePtr& adapter : adapters_of(entry.versions.rbegin()->second))
    adapters.push_back(adapter->name);
  return adapters == entry.adapters;
}

void ModelCatalog::sleep_when_idle(std::chrono::milliseconds idle) {
  if (!source_ || idle.count() <= 0) return;
  std::lock_guard lock(mutex_);
  idle_after_ = idle;
  if (!idle_watch_.joinable()) idle_watch_ = std::thread([this] { watch_idle(); });
}

void ModelCatalog::watch_idle() {
  constexpr std::chrono::milliseconds kLook{100};
  std::unique_lock lock(mutex_);
  for (;;) {
    if (idle_changed_.wait_for(lock, kLook, [this] { return idle_after_.count() == 0; })) return;
    std::vector<std::string> idle;
    for (auto& [name, entry] : entries_)
      if (spawn_ && is_idle(name, entry)) idle.push_back(name);
    lock.unlock();
    for (const std::string& name : idle) {
      std::lock_guard one(loading_);
      std::unique_lock held(mutex_);
      Entry& entry = entries_.at(name);
      // Somebody has asked meanwhile, or nobody could load it again.
      if (!is_idle(name, entry) || !source_->locate(name).ok()) continue;
      const ServedModel& newest = entry.versions.rbegin()->second;
      entry.card = newest.language ? card_of(*newest.language) : card_of(*newest.tensor);
      entry.card->asleep = true;
      entry.version = newest.version();
      ModelVersions old = take_out(entry, kIdleAsleep);
      held.unlock();
      log_(LogLevel::kInfo, cat("model ", name, " sleeps: nobody has asked for it"));
      await_end(std::move(old));
    }
    lock.lock();
  }
}

size_t ModelCatalog::sleepers() const {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(),
                                           [](const auto& e) { return e.second.card.has_value(); }));
}

std::optional<ModelCard> ModelCatalog::sleeper(std::string_view name) const {
  std::lock_guard lock(mutex_);
  const std::string* const model = asked_for(name, ModelKind::kLanguage);
  return model != nullptr ? entries_.at(*model).card : std::nullopt;
}

}  // namespace oar::api
