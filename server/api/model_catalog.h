// Every model a server has, of any kind, by name and version: the one owner of what is served. Models come
// and go while others, and they themselves, are asked.
//
//   With keep_at_most(), language models come when they are asked for (bring()), and those unused for longest
//   go before; requests that hold them are answered first. With sleep_when_idle() those go that nobody asks
//   for, encoders too, and come likewise (model_loads.cc).
//
//   Requests hold what find() gave them until they are answered, so a model that is unloaded or replaced
//   finishes what it has accepted. The last holder may be any thread, also one of the model's own. So models
//   end on a thread of the catalog. A load opens the new versions beside the old ones. Until they are ready,
//   and for good when that fails, the old ones answer.
//
// Threads: all methods from any thread. load() and unload() do their work on the caller's, one at a time, and
// may take long. Whoever holds a model lets go of it before the catalog ends.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/log.h"
#include "server/api/ensemble.h"
#include "server/api/model_card.h"
#include "server/api/model_handle.h"
#include "server/api/tensor_model.h"

namespace oar::api {

class ModelReaper;

// kNone: nothing that could be served. An encoder is a tensor model that also takes texts.
enum class ModelKind { kNone, kTensor, kEncoder, kLanguage };

// One version of a model; one of the two is there.
struct ServedModel {
  ModelHandlePtr language;
  TensorModelPtr tensor;

  ModelKind kind() const {
    if (language) return ModelKind::kLanguage;
    if (!tensor) return ModelKind::kNone;
    return tensor->encoder ? ModelKind::kEncoder : ModelKind::kTensor;
  }
  const std::string& name() const { return language ? language->name : tensor->config.name; }
  const std::string& version() const { return language ? language->version : tensor->config.version; }
};
using ModelVersions = std::map<int64_t, ServedModel>;

// Where models come from. Called by one thread at a time.
class ModelSource {
 public:
  virtual ~ModelSource() = default;
  virtual std::vector<std::string> names() const = 0;  // of the models that are there from the start
  // OK when there is something to open; NOT_FOUND otherwise.
  virtual Status locate(const std::string& name) = 0;
  // The versions that are to be served, from what lies there now. `config` in JSON, not empty, takes the
  // place of the model's own.
  virtual Result<ModelVersions> open(const std::string& name, const std::string& config) = 0;
  // The models that an ensemble needs, also when it cannot be opened; empty for others. `config` as in
  // open().
  virtual std::vector<std::string> steps_of(const std::string& /*name*/, const std::string& /*config*/) {
    return {};
  }
  // How ensembles find their steps; called once, before open().
  virtual void find_steps_with(Ensemble::FindStep /*find*/) {}
  // What `name` was when it was found; kNone when nobody knows.
  virtual ModelKind kind_of(const std::string& /*name*/) const { return ModelKind::kNone; }
};

struct ModelIndexEntry {
  std::string name, version;
  std::string state;  // "READY", "LOADING", "UNAVAILABLE"
  std::string reason;
};

class ModelCatalog {
 public:
  // Without a source there is what add() brings, and nothing can be loaded.
  explicit ModelCatalog(std::unique_ptr<ModelSource> source = nullptr, Logger log = {});
  ~ModelCatalog();

  // Loads all that the source has. The first error when nothing could be loaded; otherwise models that fail
  // are logged, and listed with the reason.
  Status load_all();
  // A model that was opened elsewhere. ALREADY_EXISTS when there is one of that name.
  Status add(ServedModel model);
  // Loads a model, also again, and before it those of an ensemble's steps that are not there. NOT_FOUND when
  // the source has none of that name, ALREADY_EXISTS when an adapter is called so. Up to 10 s it waits for
  // requests that a copy unloaded before still answers: theirs is the memory it needs.
  Status load(const std::string& name, const std::string& config);
  // A model, or an adapter. It takes no new requests from now on. Its memory, or its slot, is free when the
  // last request has been answered. With `dependents` an ensemble's steps go, too, unless another loaded
  // ensemble needs them.
  Status unload(const std::string& name, bool dependents = false);

  // Before the first request: any name stands for the only language model, and for the only encoder.
  void answer_any_name() { any_name_ = true; }
  // Before the first request: one that names no model is INVALID_ARGUMENT, also where there is only one.
  void require_names() { names_required_ = true; }
  // Before the first request: further names of the model `name`, for every protocol, and words that lists of
  // models show with it. It may be loaded later.
  void call_also(std::string name, std::vector<std::string> aliases, std::vector<std::string> tags) {
    renamed_ = std::move(name), aliases_ = std::move(aliases), tags_ = std::move(tags);
  }
  // The model that has them; empty: none.
  const std::string& renamed() const { return renamed_; }
  const std::vector<std::string>& aliases() const { return aliases_; }
  const std::vector<std::string>& tags() const { return tags_; }
  // Before load_all(): so many language models are in memory at most; 0: all. load_all() then leaves the
  // others out.
  void keep_at_most(size_t language_models);
  // Before the first request: a language model or an encoder that no request has asked for so long goes to
  // sleep, and the next one wakes it. It stays where clients have brought it an adapter, or taken one, and
  // where a loaded ensemble needs it.
  void sleep_when_idle(std::chrono::milliseconds idle);
  // What is known of one that sleeps so; null: it does not. By any of its names, an empty one as bring().
  std::optional<ModelCard> sleeper(std::string_view name) const;
  size_t sleepers() const;  // how many do
  // Where loads that requests ask for run, which take long. Empty: there are none.
  using Spawn = std::function<void(std::function<void()>)>;
  void load_on(Spawn spawn);
  // A request asks for a language model, or an encoder: begins the load of one that is not there, if that is
  // what it does; false otherwise. It goes on while coming(). The only one of its kind may go by no name, or
  // by any (answer_any_name()).
  bool bring(std::string_view name, ModelKind kind = ModelKind::kLanguage);
  bool coming(std::string_view name, ModelKind kind = ModelKind::kLanguage) const;
  // Models that a request would load, or wake, by name; of one kind, or (kNone) of any.
  std::vector<std::string> loadable(ModelKind kind = ModelKind::kNone) const;

  // Unloads every language model until wake(), which also wakes those that sleep by themselves, and which
  // loads those again; the memory is free when their last requests have been answered. Meanwhile they are
  // UNAVAILABLE, and load() is FAILED_PRECONDITION.
  Status sleep();
  Status wake();
  bool asleep() const { return asleep_; }

  // An adapter of a language model, which is served as a model called `name` from then on (adapters.h). An
  // empty `parent` means the only language model with slots for adapters. ALREADY_EXISTS when there is a
  // model or an adapter of that name.
  Status load_adapter(const std::string& name, const std::string& folder, const std::string& parent);
  // Requests that run with it end as they would.
  Status unload_adapter(const std::string& name);

  // A model, or an adapter as its model with another name. The newest version when `version` is empty.
  // A name with ":latest" behind it is that name, unless a model is called so.
  // NOT_FOUND lists the names or versions there are; UNAVAILABLE when the model is known but not loaded.
  Result<ServedModel> find(std::string_view name, std::string_view version) const;
  // A language model; an empty name means the only one, and is INVALID_ARGUMENT when there are several.
  Result<ModelHandlePtr> find_language(std::string_view name) const;
  // The same for encoders. INVALID_ARGUMENT when the model is none.
  Result<TensorModelPtr> find_encoder(std::string_view name) const;
  std::vector<ServedModel> loaded() const;  // by name, then version
  // Some loaded engine takes no more requests at the moment (Engine::has_room()).
  bool crowded() const;
  // The adapters of a loaded model, by name, each as a model.
  static std::vector<ModelHandlePtr> adapters_of(const ServedModel& model);
  // By name; adapters behind the version of their model.
  std::vector<ModelIndexEntry> index(bool ready_only = false) const;

  // Who is told what language models answer and which steps their engines make: asked once for each that is
  // loaded, and for those that are. Null: nobody, from now on.
  using MakeObserver = std::function<std::shared_ptr<GenerationObserver>(const ModelHandle&)>;
  // The same of ordinary models and encoders.
  using MakeInferObserver = std::function<std::shared_ptr<InferObserver>(const TensorModel&)>;
  void observe(MakeObserver make, MakeInferObserver make_infer = nullptr);

 private:
  using Ends = std::vector<std::weak_ptr<const void>>;  // expired: nobody holds it any more
  struct Entry {
    ModelVersions versions;  // loaded
    std::string state = "UNAVAILABLE", reason;
    ModelKind kind = ModelKind::kNone;  // what it was when it was found
    std::vector<std::string> steps;     // of an ensemble that is loaded
    bool coming = false;                // a request's load is under way
    mutable uint64_t last_used = 0;     // of uses_
    // For sleep_when_idle().
    std::chrono::steady_clock::time_point asked;  // when it was loaded, or asked for since
    std::vector<std::string> adapters;            // that it was loaded with
    std::optional<ModelCard> card;                // it sleeps
    std::string version;                          // in the version
    Ends former;                                  // unloaded; their last requests may run
  };
  Status open(const std::string& name, const std::string& config);
  // open() of a model and of the steps that it needs and that are not there. `above`: the ensembles that need
  // it. `tried`: models that are not tried again, as at the start; null: all are.
  Status open_with_steps(const std::string& name, const std::string& config, std::vector<std::string> above,
                         std::set<std::string>* tried);
  Result<TensorModelPtr> find_step(const EnsembleStep& step) const;
  static ModelKind kind_of(const Entry& entry);
  static bool is_language(const Entry& entry);
  // Its own name, null: none; mutex_ held, as is for the next two.
  const std::string* asked_for(std::string_view name, ModelKind kind) const;
  static void woken(Entry& entry);
  bool is_idle(const std::string& name, Entry& entry) const;
  void watch_idle();
  void make_room_for(const std::string& name);  // loading_ held
  static ModelVersions take_out(Entry& entry, const std::string& reason);
  static Ends ends_of(const ModelVersions& models);
  // Whether all have ended within the time. loading_ held, mutex_ not, as for the next two.
  bool await(const Ends& ends, std::chrono::milliseconds longest);
  void await_end(ModelVersions models);
  void await_former(const std::string& name);
  ServedModel published(const ServedModel& model);
  std::string names_of(ModelKind kind) const;
  std::string model_names() const;  // adapters too
  Result<ModelHandlePtr> base_for(const std::string& name, const std::string& parent) const;
  Status drop_adapter(const std::string& name, const std::string& field);  // loading_ held
  ModelHandlePtr find_adapter(std::string_view name) const;                // null: there is none

  const std::unique_ptr<ModelSource> source_;
  const Logger log_;
  const std::shared_ptr<ModelReaper> reaper_;
  std::mutex loading_;          // one load, unload, add or observe at a time
  MakeObserver make_observer_;  // guarded by loading_, as is the next
  MakeInferObserver make_infer_;
  bool any_name_ = false, names_required_ = false;
  std::string renamed_;
  std::vector<std::string> aliases_, tags_;
  std::atomic<bool> asleep_{false};
  std::vector<std::string> sleeping_;  // what wake() loads; guarded by loading_
  mutable std::mutex mutex_;
  size_t most_language_ = 0;  // guarded by mutex_, as is all below
  Spawn spawn_;
  mutable uint64_t uses_ = 0;
  std::map<std::string, Entry, std::less<>> entries_;
  std::chrono::milliseconds idle_after_{0};  // 0: models stay
  std::condition_variable idle_changed_;
  std::thread idle_watch_;
};

// Why a language model is not there, as ModelIndexEntry says it.
inline constexpr const char* kLoadedOnDemand = "a request for it loads it";
inline constexpr const char* kServerAsleep = "the server sleeps; POST /wake_up wakes it";
inline constexpr const char* kIdleAsleep = "asleep; a request for it wakes it";

}  // namespace oar::api
