#include "server/api/model_catalog.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include "engine/base/format.h"
#include "server/api/generation.h"
#include "server/api/model_reaper.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

// A fresh engine runs one real token before it is ready; requests would wait for it.
Status wait_until_ready(const ModelVersions& versions) {
  for (const auto& [version, model] : versions) {
    if (!model.language) continue;
    Engine& engine = *model.language->engine;
    while (engine.health() == EngineHealth::kStarting)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (engine.health() != EngineHealth::kReady)
      return unavailable(cat("the engine of ", model.name(), " has failed; see the log above"));
  }
  return ok_status();
}

constexpr const char* kLoading = "LOADING";

void add_name(std::string& names, std::string_view name) {
  if (!names.empty()) names += ", ";
  names += name;
}

}  // namespace

ModelCatalog::ModelCatalog(std::unique_ptr<ModelSource> source, Logger log)
    : source_(std::move(source)), log_(std::move(log)), reaper_(std::make_shared<ModelReaper>()) {
  if (source_) source_->find_steps_with([this](const EnsembleStep& step) { return find_step(step); });
}

ModelCatalog::~ModelCatalog() {
  {
    std::lock_guard lock(mutex_);
    idle_after_ = {};
  }
  idle_changed_.notify_all();
  if (idle_watch_.joinable()) idle_watch_.join();
  entries_.clear();
  if (!reaper_->finish()) log_(LogLevel::kWarning, "a model is still in use while the server ends");
}

// With its observer, and ending on the catalog's thread.
ServedModel ModelCatalog::published(const ServedModel& model) {
  ServedModel out;
  if (model.language) {
    auto handle = std::make_shared<ModelHandle>(*model.language);
    handle->observer = make_observer_ ? make_observer_(*handle) : nullptr;
    if (handle->observer)
      handle->engine->on_step([o = handle->observer](const StepInfo& step) { o->on_step(step); });
    else if (model.language->observer) handle->engine->on_step({});
    out.language = ModelReaper::hand_out<ModelHandle>(reaper_, std::move(handle));
  } else {
    model.tensor->runner->observe(make_infer_ ? make_infer_(*model.tensor) : nullptr);
    out.tensor = ModelReaper::hand_out(reaper_, model.tensor);
  }
  return out;
}

void ModelCatalog::observe(MakeObserver make, MakeInferObserver make_infer) {
  std::lock_guard one(loading_);
  make_observer_ = std::move(make);
  make_infer_ = std::move(make_infer);
  std::lock_guard lock(mutex_);
  for (auto& [name, entry] : entries_)
    for (auto& [version, model] : entry.versions)
      if (model.language) model = published(model);
      else model.tensor->runner->observe(make_infer_ ? make_infer_(*model.tensor) : nullptr);
}

Status ModelCatalog::add(ServedModel model) {
  std::lock_guard one(loading_);
  const std::string name = model.name();
  ServedModel ours = published(model);
  std::lock_guard lock(mutex_);
  Entry& e = entries_[name];
  if (!e.versions.empty())
    return {StatusCode::kAlreadyExists, cat("two models are called ", name, "; rename one of them"), "name"};
  e.versions.emplace(1, std::move(ours));
  woken(e);
  e.state = "READY";
  return ok_status();
}

Status ModelCatalog::load_all() {
  std::lock_guard one(loading_);
  const std::vector<std::string> names = source_ ? source_->names() : std::vector<std::string>();
  Status first;
  size_t failed = 0;
  size_t language = 0;
  std::set<std::string> tried;
  for (const std::string& name : names) {
    const ModelKind kind = source_->kind_of(name);
    std::unique_lock lock(mutex_);
    entries_[name].kind = kind;
    if (kind == ModelKind::kLanguage) {
      if (most_language_ > 0 && language == most_language_) {
        entries_[name].reason = kLoadedOnDemand;
        continue;
      }
      ++language;
    }
    lock.unlock();
    const Status s = open_with_steps(name, {}, {}, &tried);
    if (s.ok()) continue;
    if (first.ok()) first = s;
    ++failed;
    if (names.size() > 1) log_(LogLevel::kError, cat("model ", name, " is not served: ", s.message()));
  }
  return failed == names.size() ? first : ok_status();
}

// Under loading_.
Status ModelCatalog::open(const std::string& name, const std::string& config) {
  {
    std::lock_guard lock(mutex_);
    Entry& e = entries_[name];
    if (e.versions.empty()) e.state = kLoading, e.reason.clear();
  }
  Result<ModelVersions> opened = source_->open(name, config);
  const Status status = opened.ok() ? wait_until_ready(*opened) : opened.status();
  ModelVersions fresh, old;  // both released outside the lock
  std::vector<std::string> steps;
  if (status.ok()) {
    for (const auto& [version, model] : *opened) {
      fresh.emplace(version, published(model));
      if (!model.tensor) continue;
      for (const EnsembleStep& step : model.tensor->config.steps) steps.push_back(step.model);
    }
  }
  std::lock_guard lock(mutex_);
  Entry& e = entries_[name];
  if (!status.ok()) {
    e.reason = status.message();
    if (e.versions.empty()) e.state = "UNAVAILABLE";  // otherwise what was loaded before goes on
    return status;
  }
  old.swap(e.versions);
  e.versions.swap(fresh);
  if (!e.versions.empty()) e.kind = e.versions.rbegin()->second.kind();
  woken(e);
  e.steps = std::move(steps);
  e.state = "READY";
  e.reason.clear();
  return ok_status();
}

Status ModelCatalog::open_with_steps(const std::string& name, const std::string& config,
                                     std::vector<std::string> above, std::set<std::string>* tried) {
  if (std::find(above.begin(), above.end(), name) != above.end()) {
    std::string circle;
    for (const std::string& one : above) circle += cat(one, " -> ");
    return invalid_argument(cat("config: the ensembles are steps of each other: ", circle, name));
  }
  const auto entry = [&](auto read) {
    std::lock_guard lock(mutex_);
    const auto it = entries_.find(name);
    return it == entries_.end() ? decltype(read(it->second))() : read(it->second);
  };
  const bool there = entry([](const Entry& e) { return !e.versions.empty(); });
  // At the top a model is loaded whether or not it is there; below, what is there stays.
  const bool stays = there && (!above.empty() || tried != nullptr);
  const std::vector<std::string> steps =
      stays ? entry([](const Entry& e) { return e.steps; }) : source_->steps_of(name, config);
  if (!stays && tried != nullptr && !tried->insert(name).second) {
    const std::string reason = entry([](const Entry& e) { return e.reason; });
    return unavailable(cat("the model ", in_quotes(name), " is not loaded: ", reason));
  }
  above.push_back(name);
  Status status;
  for (const std::string& step : steps) {
    if (!status.ok()) break;
    status = source_->locate(step);
    if (!status.ok()) {
      status = {status.code(), cat("config: the step '", step, "': ", status.message()), "model_name"};
    } else if (source_->kind_of(step) != ModelKind::kLanguage) {  // of those find_step() says more
      status = open_with_steps(step, {}, above, tried);
      if (!status.ok())
        status = {status.code(), cat("config: the step '", step, "': ", status.message()), status.param()};
    }
  }
  if (stays) return status;
  if (status.ok()) return open(name, config);
  std::lock_guard lock(mutex_);
  Entry& e = entries_[name];
  e.reason = status.message();
  if (e.versions.empty()) e.state = "UNAVAILABLE";
  return status;
}

Result<TensorModelPtr> ModelCatalog::find_step(const EnsembleStep& step) const {
  OAR_ASSIGN(const ServedModel model, find(step.model, step.version < 0 ? "" : cat(step.version)));
  if (model.tensor) return model.tensor;
  return unimplemented(cat("the model ", in_quotes(step.model),
                           " is a language model; steps of an ensemble are ordinary models and encoders"));
}

Status ModelCatalog::load(const std::string& name, const std::string& config) {
  std::lock_guard one(loading_);
  if (find_adapter(name))
    return {
        StatusCode::kAlreadyExists,
        cat("an adapter is called ", in_quotes(name), "; unload it first, or give lora_path to load another"),
        "model_name"};
  if (!source_) return unimplemented("this server has no model repository; start it with a folder of models");
  if (asleep_)
    return {StatusCode::kFailedPrecondition, "the server sleeps; POST /wake_up, then load models",
            "model_name"};
  OAR_RETURN_IF_ERROR(source_->locate(name));
  await_former(name);
  make_room_for(name);
  const Status s = open_with_steps(name, config, {}, nullptr);
  log_(s.ok() ? LogLevel::kInfo : LogLevel::kError,
       s.ok() ? cat("model ", name, " loaded") : cat("model ", name, " could not be loaded: ", s.message()));
  return s;
}

Status ModelCatalog::unload(const std::string& name, bool dependents) {
  std::lock_guard one(loading_);
  std::vector<std::string> names{name};
  std::vector<ModelVersions> old;  // released outside the lock
  for (size_t k = 0; k < names.size(); ++k) {
    std::unique_lock lock(mutex_);
    const auto it = entries_.find(names[k]);
    if (it == entries_.end()) {
      lock.unlock();
      return drop_adapter(names[k], "model_name");
    }
    Entry& e = it->second;
    old.emplace_back().swap(e.versions);
    if (!old.back().empty()) e.former = ends_of(old.back());
    e.card.reset();
    e.state = "UNAVAILABLE";
    e.reason = "unloaded";
    const std::vector<std::string> steps = std::exchange(e.steps, {});
    const auto needed = [&](const std::string& step) {
      return std::any_of(entries_.begin(), entries_.end(), [&](const auto& other) {
        const std::vector<std::string>& all = other.second.steps;
        return std::find(all.begin(), all.end(), step) != all.end();
      });
    };
    for (const std::string& step : dependents ? steps : std::vector<std::string>())
      if (!needed(step) && std::find(names.begin(), names.end(), step) == names.end()) names.push_back(step);
  }
  for (const std::string& gone : names) log_(LogLevel::kInfo, cat("model ", gone, " unloaded"));
  return ok_status();
}

// ---- looking ----

namespace {
// The model with an adapter: the same engine under another name, kept by the model's own handle.
ModelHandlePtr with_adapter(const ModelHandlePtr& model, std::string name,
                            std::shared_ptr<const AdapterLease> adapter) {
  auto out = std::make_shared<ModelHandle>(*model);
  out->name = std::move(name);
  out->parent = model->name;
  out->adapter = std::move(adapter);
  out->owner = model;
  return out;
}
}  // namespace

std::vector<ModelHandlePtr> ModelCatalog::adapters_of(const ServedModel& model) {
  std::vector<ModelHandlePtr> out;
  if (!model.language || !model.language->adapters) return out;
  for (const AdapterInfo& info : model.language->adapters->list()) {
    if (auto lease = model.language->adapters->find(info.name))
      out.push_back(with_adapter(model.language, info.name, std::move(lease)));
  }
  return out;
}

ModelHandlePtr ModelCatalog::find_adapter(std::string_view name) const {
  for (const ServedModel& m : loaded()) {
    if (!m.language || !m.language->adapters) continue;
    if (auto lease = m.language->adapters->find(name))
      return with_adapter(m.language, std::string(name), std::move(lease));
  }
  return nullptr;
}

// The model that an adapter called `name` is to be of.
Result<ModelHandlePtr> ModelCatalog::base_for(const std::string& name, const std::string& parent) const {
  {
    std::lock_guard lock(mutex_);
    if (entries_.contains(name))
      return Status(StatusCode::kAlreadyExists,
                    cat("a model is called ", in_quotes(name), "; name the adapter otherwise"), "lora_name");
  }
  ModelHandlePtr model;
  std::string with_slots;
  bool several = false;
  for (const ServedModel& m : loaded()) {
    if (!m.language || !m.language->adapters) continue;
    add_name(with_slots, m.name());
    if (!parent.empty() && m.name() != parent) continue;
    several = several || (model && model->name != m.name());
    model = m.language;
  }
  if (several)
    return invalid_argument(cat("several models take adapters; name one of them: ", with_slots),
                            "base_model_name");
  if (model) return model;
  if (with_slots.empty())
    return invalid_argument("no model has slots for adapters; serve one with --max-loras", "base_model_name");
  return invalid_argument(
      cat("the model ", in_quotes(parent),
          " is not loaded or has no slots for adapters (--max-loras); there is: ", with_slots),
      "base_model_name");
}

Status ModelCatalog::load_adapter(const std::string& name, const std::string& folder,
                                  const std::string& parent) {
  std::lock_guard one(loading_);
  OAR_ASSIGN(const ModelHandlePtr model, base_for(name, parent));
  if (find_adapter(name))
    return {StatusCode::kAlreadyExists, cat("an adapter ", in_quotes(name), " is loaded; unload it first"),
            "lora_name"};
  const auto info = model->adapters->load(name, folder);
  if (info.ok()) {
    log_(LogLevel::kInfo, cat("adapter ", name, " of ", model->name, " loaded, rank ", info->rank));
    return ok_status();
  }
  const Status& s = info.status();
  std::string why = cat("adapter ", name, " could not be loaded: ", s.message());
  log_(LogLevel::kError, why);
  // A damaged file is the fault of who names its folder.
  const bool damaged = s.code() == StatusCode::kDataLoss;
  return {damaged ? StatusCode::kInvalidArgument : s.code(), std::move(why),
          damaged ? "lora_path" : s.param()};
}

Status ModelCatalog::unload_adapter(const std::string& name) {
  std::lock_guard one(loading_);
  return drop_adapter(name, "lora_name");
}

Status ModelCatalog::drop_adapter(const std::string& name, const std::string& field) {
  const ModelHandlePtr adapter = find_adapter(name);
  if (!adapter) {
    const char* what = field == "lora_name" ? "adapter " : "model or adapter ";
    return {StatusCode::kNotFound, cat("there is no ", what, in_quotes(name), "; there is: ", model_names()),
            field};
  }
  OAR_RETURN_IF_ERROR(adapter->adapters->unload(name));
  log_(LogLevel::kInfo, cat("adapter ", name, " unloaded"));
  return ok_status();
}

Result<ServedModel> ModelCatalog::find(std::string_view name, std::string_view version) const {
  std::unique_lock lock(mutex_);
  auto it = entries_.find(name);
  if (it == entries_.end() && std::find(aliases_.begin(), aliases_.end(), name) != aliases_.end())
    it = entries_.find(renamed_);
  if (it == entries_.end()) {
    lock.unlock();
    ModelHandlePtr adapter = find_adapter(name);
    if (adapter && (version.empty() || version == adapter->version))
      return ServedModel{std::move(adapter), nullptr};
    // The tag that Ollama's clients add to a name without one.
    constexpr std::string_view kTag = ":latest";
    if (name.ends_with(kTag)) {
      Result<ServedModel> untagged = find(name.substr(0, name.size() - kTag.size()), version);
      if (untagged.ok()) return untagged;
    }
    return Status(StatusCode::kNotFound,
                  cat("the model ", in_quotes(name), " is not served here; there is: ", model_names()),
                  "model");
  }
  const Entry& e = it->second;
  if (e.versions.empty()) {
    if (e.coming || e.state == kLoading)
      return Status(StatusCode::kUnavailable,
                    cat("the model ", in_quotes(name), " is being loaded; ask again in a second"), "model")
          .with_retry_after(1);
    const std::string reason = asleep_ && is_language(e) ? kServerAsleep : e.reason;
    return Status(StatusCode::kUnavailable,
                  cat("the model ", in_quotes(name), " is not loaded", reason.empty() ? "" : ": ", reason),
                  "model");
  }
  e.last_used = ++uses_;
  if (version.empty()) return e.versions.rbegin()->second;
  int64_t number = 0;
  const auto r = std::from_chars(version.data(), version.data() + version.size(), number);
  if (r.ec == std::errc() && r.ptr == version.data() + version.size()) {
    if (const auto found = e.versions.find(number); found != e.versions.end()) return found->second;
  }
  std::string versions;
  for (const auto& [known, model] : e.versions) add_name(versions, cat(known));
  return Status(StatusCode::kNotFound,
                cat("model ", name, " has no version ", in_quotes(version), "; there is: ", versions),
                "model_version");
}

namespace {
void add_adapters(std::string& names, const ModelVersions& versions) {
  for (const auto& [version, model] : versions) {
    if (!model.language || !model.language->adapters) continue;
    for (const AdapterInfo& info : model.language->adapters->list()) add_name(names, info.name);
  }
}
}  // namespace

// The names of the loaded models of a kind, with commas between.
std::string ModelCatalog::names_of(ModelKind kind) const {
  std::lock_guard lock(mutex_);
  std::string names;
  for (const auto& [name, entry] : entries_)
    if (!entry.versions.empty() && entry.versions.rbegin()->second.kind() == kind) {
      add_name(names, name);
      add_adapters(names, entry.versions);
    }
  return names;
}

std::string ModelCatalog::model_names() const {
  std::lock_guard lock(mutex_);
  std::string names;
  for (const auto& [name, entry] : entries_) {
    add_name(names, name);
    add_adapters(names, entry.versions);
  }
  return names;
}

Result<ModelHandlePtr> ModelCatalog::find_language(std::string_view name) const {
  const auto there = [this] {
    const std::string names = names_of(ModelKind::kLanguage);
    return names.empty() ? std::string("there is no language model") : cat("there is: ", names);
  };
  if (name.empty()) {
    if (names_required_)
      return invalid_argument(cat("model is missing; name a language model (", there(), ")"), "model");
    ModelHandlePtr only;
    for (const ServedModel& m : loaded()) {
      if (!m.language) continue;
      if (only && only->name != m.language->name)
        return invalid_argument(cat("model is missing; name a language model (", there(), ")"), "model");
      only = m.language;
    }
    // Which one of them is there at the moment is not the caller's choice.
    const auto others = loadable(ModelKind::kLanguage);
    if (!others.empty() && (only || others.size() > 1))
      return invalid_argument(cat("model is missing; name a language model (", there(),
                                  "; a request also loads ", others[0], others.size() > 1 ? ", ...)" : ")"),
                              "model");
    if (only) return only;
    if (!others.empty()) return find_language(others[0]);
    return Status(StatusCode::kNotFound, "model is missing, and there is no language model", "model");
  }
  Result<ServedModel> found = find(name, {});
  if (found.ok() && found->language) return found->language;
  if (found.status().code() == StatusCode::kUnavailable) return found.status();
  if (any_name_) {
    if (Result<ModelHandlePtr> only = find_language({}); only.ok()) return only;
  }
  return Status(StatusCode::kNotFound,
                found.ok() ? cat("the model ", in_quotes(name), " generates no text; ", there())
                           : cat("the model ", in_quotes(name), " is not served here; ", there()),
                "model");
}

Result<TensorModelPtr> ModelCatalog::find_encoder(std::string_view name) const {
  const auto there = [this] {
    const std::string names = names_of(ModelKind::kEncoder);
    return names.empty() ? std::string("none is served here") : cat("there is: ", names);
  };
  if (name.empty()) {
    if (names_required_)
      return invalid_argument(cat("model is missing; name an encoder (", there(), ")"), "model");
    TensorModelPtr only;
    bool several = false;
    for (const ServedModel& m : loaded()) {
      if (m.kind() != ModelKind::kEncoder) continue;
      several = several || (only && only->config.name != m.name());
      only = m.tensor;
    }
    const auto others = loadable(ModelKind::kEncoder);
    if (only && !several && others.empty()) return only;
    if (!only && others.size() == 1) return find_encoder(others[0]);
    return invalid_argument(cat("model is missing; name an encoder (", there(), ")"), "model");
  }
  Result<ServedModel> found = find(name, {});
  if (found.ok() && found->kind() == ModelKind::kEncoder) return found->tensor;
  if (any_name_ && !found.ok()) {
    if (Result<TensorModelPtr> only = find_encoder({}); only.ok()) return only;
  }
  if (found.ok())
    return invalid_argument(cat("the model ", in_quotes(name), " encodes no text; encoders: ", there()),
                            "model");
  if (found.status().code() == StatusCode::kUnavailable) return found.status();
  return Status(StatusCode::kNotFound, cat("no encoder ", in_quotes(name), " is served here; ", there()),
                "model");
}

std::vector<ServedModel> ModelCatalog::loaded() const {
  std::lock_guard lock(mutex_);
  std::vector<ServedModel> out;
  for (const auto& [name, entry] : entries_)
    for (const auto& [version, model] : entry.versions) out.push_back(model);
  return out;
}

bool ModelCatalog::crowded() const {
  std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : entries_)
    for (const auto& [version, model] : entry.versions)
      if (model.language && !model.language->engine->has_room()) return true;
  return false;
}

std::vector<ModelIndexEntry> ModelCatalog::index(bool ready_only) const {
  // Ensembles look for their steps, which takes the lock.
  std::map<const TensorModel*, std::string> waiting;
  for (const ServedModel& m : loaded()) {
    if (!m.tensor) continue;
    if (const Status s = m.tensor->runner->ready(); !s.ok()) waiting[m.tensor.get()] = s.message();
  }
  std::lock_guard lock(mutex_);
  std::vector<ModelIndexEntry> out;
  for (const auto& [name, entry] : entries_) {
    for (const auto& [version, model] : entry.versions) {
      const bool ready = !model.language || model.language->engine->health() == EngineHealth::kReady;
      if (const auto why = waiting.find(model.tensor.get()); model.tensor && why != waiting.end()) {
        out.push_back({name, cat(version), "UNAVAILABLE", why->second});
        continue;
      }
      const auto add = [&](const std::string& listed, const std::string& reason) {
        if (ready) out.push_back({listed, cat(version), "READY", reason});
        else out.push_back({listed, cat(version), "UNAVAILABLE", "the engine is not ready"});
      };
      add(name, entry.reason);
      if (!model.language || !model.language->adapters) continue;
      for (const AdapterInfo& info : model.language->adapters->list()) add(info.name, "");
    }
    if (entry.card) out.push_back({name, entry.version, "READY", entry.reason});
    else if (entry.versions.empty()) out.push_back({name, "", entry.state, entry.reason});
  }
  if (ready_only) std::erase_if(out, [](const ModelIndexEntry& e) { return e.state != "READY"; });
  return out;
}

}  // namespace oar::api
