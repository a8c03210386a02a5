#include "clients/cli/serve_models.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "clients/cli/command.h"
#include "clients/cli/ocr_steps.h"
#include "clients/cli/progress.h"
#include "clients/cli/sizes.h"
#include "kernels/thread_pool.h"

namespace oar::cli {
namespace {

// What only one kind of model takes; given for others, it would be passed over.
constexpr const char* kOfLanguageModels[] = {"--kv",
                                             "--tune-seconds",
                                             "--rotate",
                                             "--mla",
                                             "--max-context",
                                             "--deterministic",
                                             "--max-batch-tokens",
                                             "--max-sequences",
                                             "--max-logprobs",
                                             "--no-prefix-cache",
                                             "--mixed-prefix",
                                             "--state-snapshots",
                                             "--snapshot-tokens",
                                             "--allow-special-in-text",
                                             "--speculative",
                                             "--draft-model",
                                             "--num-speculative-tokens",
                                             "--prompt-lookup-min",
                                             "--prompt-lookup-max",
                                             "--max-loaded",
                                             "--lora",
                                             "--lora-modules",
                                             "--enable-lora",
                                             "--max-loras",
                                             "--max-lora-rank",
                                             "--chat-template",
                                             "--request-default",
                                             "--tool-parser",
                                             "--reasoning-parser"};
constexpr const char* kOfOrdinaryModels[] = {"--max-batch", "--preferred-batch", "--max-queue-delay",
                                             "--instances", "--precision"};

constexpr const char* kOfEncoders[] = {"--pooling"};
constexpr const char* kOfBoth[] = {"--weights", "--sleep-idle"};

// What --pooling may say, and what vectors of texts are made of then.
const std::map<std::string, std::optional<Pooling>> kPoolings = {
    {"model", std::nullopt},  {"none", std::nullopt},   {"mean", Pooling::kMean},
    {"cls", Pooling::kFirst}, {"last", Pooling::kLast}, {"max", Pooling::kMax}};

// Of the files of a model, as far as they are there.
uint64_t bytes_of_files(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!fs::is_directory(path, ec)) {
    const auto size = fs::file_size(path, ec);
    return ec ? 0 : size;
  }
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path, ec)) {
    const auto size = entry.is_regular_file(ec) ? entry.file_size(ec) : 0;
    bytes += ec ? 0 : size;
  }
  return bytes;
}

// One budget for all: weights first, and of what they leave the caches of language models and the runs of the
// others take equal parts. Until a language model is loaded, a place is kept for its weights, as large as its
// files.
class Parts {
 public:
  // `more`: models that may come later. `most`: language models that are there at a time, which take equal
  // parts of what they find; 0: all.
  Parts(const FoundModels& found, MemoryBudget& budget, size_t more, size_t most) : others_(more) {
    if (most > 0) others_ += most - 1;
    for (const FoundModel& m : found.models) {
      if (most > 0 && m.kind == api::ModelKind::kLanguage) continue;
      if (m.kind != api::ModelKind::kLanguage) {
        ++others_;
        continue;
      }
      auto held = budget.reserve(m.versions.empty() ? 0 : bytes_of_files(m.versions.back().second),
                                 cat(m.name, ", to come"));
      to_come_[m.name] = held.ok() ? std::move(*held) : Reservation();
    }
  }
  // For a language model that is about to be loaded: its part of what is left when its weights are there.
  double take(const std::string& name) {
    const std::lock_guard lock(mutex_);
    to_come_.erase(name);
    // It is one of those that sleep, when it wakes.
    const size_t asleep = asleep_ ? std::max<size_t>(asleep_(), 1) - 1 : 0;
    return 1 / static_cast<double>(1 + to_come_.size() + others_ + asleep);
  }
  // Who sleeps gets its part when it wakes.
  void share_with(std::function<size_t()> asleep) {
    const std::lock_guard lock(mutex_);
    asleep_ = std::move(asleep);
  }
  // Gives up the places; false when none was kept. Files say too much where weights become smaller.
  bool give_up() {
    const std::lock_guard lock(mutex_);
    bool any = false;
    for (auto& [name, held] : to_come_) {
      any = any || held.bytes() > 0;
      held = Reservation();
    }
    return any;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Reservation> to_come_;
  std::function<size_t()> asleep_;
  size_t others_;
};

}  // namespace

FoundModels find_served(const std::string& path, const std::string& given_name, const std::string& name) {
  Result<FoundModels> found = find_models(path, given_name);
  if (found.ok()) {
    if (found->folder.empty() && found->models[0].kind == api::ModelKind::kLanguage)
      found->models[0].name = name;
    return std::move(*found);
  }
  // The embedded model; of all else the language models' loader says best why it is none.
  FoundModel model;
  model.kind = api::ModelKind::kLanguage;
  model.name = name;
  model.path = path;
  model.versions.emplace_back(1, path);
  return {{}, {std::move(model)}};
}

Status check_options(const ServeOptions& o, const FoundModels& found) {
  const bool folder = !found.folder.empty();
  const auto given = [&](const char* name) { return was_given(o, name); };
  if (folder && given("--name"))
    return invalid_argument(cat("--name: ", o.model.model,
                                " is a folder of models, each called as its own folder; "
                                "rename that, or leave --name out"));
  if (!folder && given("--max-loaded"))
    return invalid_argument(cat("--max-loaded: ", o.model.model, " is one model; serve a folder of models"));
  for (const char* name : {"--lora", "--lora-modules"}) {
    if (!folder || !given(name)) continue;
    return invalid_argument(cat(name, ": ", o.model.model,
                                " is a folder of models; serve one, or give --max-loras "
                                "and load the adapter into a model with POST /v1/load_lora_adapter"));
  }
  if (folder && o.model_control == "explicit") return ok_status();
  const auto check = [&](const auto& options, bool there, const char* kinds) -> Status {
    if (there) return ok_status();
    for (const char* name : options) {
      if (given(name))
        return invalid_argument(
            cat(name, ": ", kinds, " take it, and ", o.model.model, " holds none; leave it out"));
    }
    return ok_status();
  };
  const bool language = found.has(api::ModelKind::kLanguage);
  OAR_RETURN_IF_ERROR(
      check(kOfBoth, language || found.has(api::ModelKind::kEncoder), "language models and encoders"));
  OAR_RETURN_IF_ERROR(check(kOfLanguageModels, language, "language models"));
  OAR_RETURN_IF_ERROR(check(kOfEncoders, found.has(api::ModelKind::kEncoder), "encoders"));
  return check(kOfOrdinaryModels, found.has(api::ModelKind::kTensor) || found.has(api::ModelKind::kEncoder),
               "ordinary models and encoders");
}

Result<std::shared_ptr<api::ModelCatalog>> open_models(const ServeOptions& o,
                                                       const LanguageModelOptions& facts, FoundModels found,
                                                       SignalWatcher& signals) {
  if (found.models.size() != 1 && !(o.aliases.empty() && o.tags.empty())) {
    const char* option = o.aliases.empty() ? "tag" : "alias";
    return invalid_argument(cat("--", option, ": it belongs to the only model, and there are ",
                                found.models.size(), "; leave it out"),
                            option);
  }
  const std::string first = found.models.empty() ? "" : found.models.front().name;
  const auto stop = [&signals] { return signals.requested(); };
  RepositoryOptions r;
  r.predictor.threads = o.model.engine.threads;
  r.predictor.reference = o.model.engine.reference;
  r.predictor.device = o.model.engine.device;
  r.predictor.cache_dir = o.model.cache_dir;
  r.predictor.cache_bytes = o.model.cache_bytes;
  OAR_ASSIGN(r.predictor.precision, parse_precision(o.precision));
  r.predictor.weights = o.model.engine.weights;
  r.predictor.log = facts.log;
  r.predictor.import.mmap = !o.model.no_mmap;
  r.predictor.disabled_passes = {o.model.engine.disabled_passes.begin(),
                                 o.model.engine.disabled_passes.end()};
  r.defaults = o.batching;
  r.defaults.max_queue = static_cast<int64_t>(o.model.engine.max_waiting);
  r.vectors.pooling = kPoolings.at(o.pooling);
  r.token_vectors = o.pooling == "none";
  r.built_in = ocr_steps();
  r.stop = stop;
  r.log = facts.log;
  Resources resources;
  resources.pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = facts.threads});
  resources.memory = MemoryBudget::make(
      facts.memory_bytes > 0 ? facts.memory_bytes : share_of(available_memory(), facts.memory_percent));
  r.predictor.resources = resources;
  const auto parts =
      std::make_shared<Parts>(found, *resources.memory, o.model_control == "explicit" ? 1 : 0, o.max_loaded);
  r.open_language = [&o, stop, resources, parts, log = facts.log](
                        const std::string& name,
                        const std::string& path) -> Result<std::unique_ptr<LanguageModel>> {
    ModelOptions one = o.model;
    one.model = path;
    one.engine.name = name;
    std::string where;
    OAR_ASSIGN(LanguageModelOptions engine, engine_options(one, LogLevel::kInfo, where));
    engine.resources = resources;
    engine.log = log;
    // As a default it must not take attention away from a device that has no kernels for it.
    if (!was_given(o, "--kv")) engine.preferred_kv = std::exchange(engine.kv, "auto");
    ProgressBar bar(one.quiet, stop);
    OAR_RETURN_IF_ERROR(settle_kv(one, where, engine, bar.callback()));
    engine.kv_share = parts->take(name);
    auto model = LanguageModel::load(where, engine, bar.callback());
    if (model.status().code() == StatusCode::kResourceExhausted && parts->give_up())
      model = LanguageModel::load(where, engine, bar.callback());
    return model;
  };
  r.adjust_language = [&o](ModelHandle& model) {
    return apply_language_settings(o.language, o.model.engine.tool_parser, o.model.engine.reasoning_parser,
                                   model);
  };
  std::shared_ptr<api::ModelCatalog> catalog = make_catalog(std::move(found), std::move(r));
  catalog->keep_at_most(o.max_loaded);
  if (o.any_name) catalog->answer_any_name();
  if (o.require_model) catalog->require_names();
  catalog->call_also(first, o.aliases, o.tags);
  OAR_RETURN_IF_ERROR(catalog->load_all());
  parts->give_up();  // of what could not be loaded
  parts->share_with([weak = std::weak_ptr(catalog)] {
    const auto all = weak.lock();
    return all ? all->sleepers() : 0;
  });
  catalog->sleep_when_idle(std::chrono::seconds(o.sleep_idle));
  return catalog;
}

}  // namespace oar::cli
