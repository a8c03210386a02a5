#include "server/repository/repository.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "engine/base/format.h"
#include "engine/runtime/batched_predictor.h"
#include "server/api/fields.h"
#include "server/api/tensor_wire.h"
#include "server/repository/config_fields.h"
#include "server/repository/ensemble_config.h"
#include "server/repository/text_config.h"

namespace oar {
namespace {

namespace fs = std::filesystem;
using api::ModelKind;

Result<std::string> read_text(const std::string& path) {
  constexpr size_t kMaxBytes = 1 << 20;
  std::ifstream in(path, std::ios::binary);
  if (!in) return not_found(cat("cannot read ", path));
  std::string out(kMaxBytes + 1, '\0');
  in.read(out.data(), static_cast<std::streamsize>(out.size()));
  out.resize(static_cast<size_t>(in.gcount()));
  if (out.size() > kMaxBytes) return invalid_argument(cat(path, " is larger than ", kMaxBytes, " bytes"));
  return out;
}

// protobuf's JSON says camelCase, the text format snake_case.
json::value snake_case(const json::value& v) {
  if (v.is_array()) {
    json::array out;
    for (const json::value& x : v.get_array()) out.push_back(snake_case(x));
    return out;
  }
  if (!v.is_object()) return v;
  json::object out;
  for (const auto& member : v.get_object()) {
    std::string name;
    for (const char c : member.key()) {
      if (c >= 'A' && c <= 'Z') name += {'_', static_cast<char>(c - 'A' + 'a')};
      else name += c;
    }
    // Keys of maps are names of tensors and parameters, not fields.
    const bool map = name == "input_map" || name == "output_map" || name == "parameters";
    out[name] = map ? member.value() : snake_case(member.value());
  }
  return out;
}

// Triton's map of `parameters`: a name and { string_value: "..." }.
Result<RepositoryOptions::Parameters> read_parameters(const json::object& config) {
  RepositoryOptions::Parameters out;
  OAR_ASSIGN(const auto all, config_fields::entries(config, "parameters"));
  for (const auto& [name, value] : all) {
    const json::value* text = value->is_object() ? value->get_object().if_contains("string_value") : nullptr;
    if (value->is_object() && !text) text = value->get_object().if_contains("stringValue");
    if (!text || !text->is_string())
      return invalid_argument(
          cat("config: the parameter '", name, "' of a built-in step must be { string_value: \"...\" }, got ",
              api::describe(*value)),
          "parameters");
    out.emplace(name, std::string(text->get_string()));
  }
  return out;
}

Result<json::object> read_config(const std::string& override_json, const std::string& file) {
  if (!override_json.empty()) {
    OAR_ASSIGN(json::value parsed, parse_json(override_json, "config"));
    if (!parsed.is_object()) return invalid_argument("config must be a JSON object", "config");
    return snake_case(parsed).get_object();
  }
  if (file.empty()) return json::object();
  OAR_ASSIGN(const std::string text, read_text(file));
  return parse_text_config(text, file);
}

std::string file_name_of(const json::object& config) {
  const json::value* v = config.if_contains("default_model_filename");
  return v && v->is_string() && is_model_name(std::string(v->get_string())) ? std::string(v->get_string())
                                                                            : std::string();
}

std::vector<int64_t> wanted_versions(const VersionPolicy& policy,
                                     const std::vector<std::pair<int64_t, std::string>>& there) {
  std::vector<int64_t> out;
  for (const auto& [version, path] : there) {
    if (policy.kind == VersionPolicy::Kind::kSpecific &&
        std::find(policy.versions.begin(), policy.versions.end(), version) == policy.versions.end())
      continue;
    out.push_back(version);
  }
  if (policy.kind == VersionPolicy::Kind::kLatest && out.size() > static_cast<size_t>(policy.count))
    out.erase(out.begin(), out.end() - policy.count);
  return out;
}

class Repository final : public api::ModelSource {
 public:
  Repository(FoundModels found, RepositoryOptions options);

  std::vector<std::string> names() const override;
  Status locate(const std::string& name) override;
  Result<api::ModelVersions> open(const std::string& name, const std::string& config) override;
  std::vector<std::string> steps_of(const std::string& name, const std::string& config) override;
  void find_steps_with(api::Ensemble::FindStep find) override { find_step_ = std::move(find); }
  ModelKind kind_of(const std::string& name) const override {
    const auto place = places_.find(name);
    return place == places_.end() ? ModelKind::kNone : place->second.first.kind;
  }

 private:
  struct Place {
    std::string path;  // of the model's folder or file
    FoundModel first;  // what was there when it was found
  };
  Result<api::ServedModel> open_version(const std::string& name, ModelKind kind, int64_t version,
                                        const std::string& path, const json::object& config);
  Result<ModelHandlePtr> open_language(const std::string& name, int64_t version, const std::string& path,
                                       const json::object& config);
  Result<api::TensorModelPtr> open_tensors(const std::string& name, ModelKind kind, int64_t version,
                                           const std::string& path, const json::object& config);

  Result<api::TensorModelPtr> open_ensemble(const std::string& name, int64_t version, const std::string& path,
                                            const json::object& config);
  Result<api::ModelVersions> open_without_file(const std::string& name, const std::string& path,
                                               const json::object& config);
  const RepositoryOptions::MakeStep* built_in(const json::object& config) const;
  // Behind a model's own queue, as `made` says.
  Result<api::TensorModelPtr> served(api::TensorModelConfig made, std::unique_ptr<TensorRunner> runner,
                                     std::shared_ptr<const TextEncoder> encoder, Clock::time_point start);

  void warn_of_fields(const std::string& name, const json::object& config, bool built_in) const;

  RepositoryOptions options_;
  api::Ensemble::FindStep find_step_;
  const std::string folder_;             // empty: single models
  std::map<std::string, Place> places_;  // by name
};

Repository::Repository(FoundModels found, RepositoryOptions options)
    : options_(std::move(options)), folder_(std::move(found.folder)) {
  for (FoundModel& m : found.models) {
    Place& place = places_[m.name];
    place.path = m.path;
    place.first = std::move(m);
  }
}

std::vector<std::string> Repository::names() const {
  std::vector<std::string> out;
  for (const auto& [name, place] : places_) out.push_back(name);
  return out;
}

Status Repository::locate(const std::string& name) {
  if (places_.find(name) != places_.end()) return ok_status();
  // A folder that came after the start.
  if (folder_.empty() || !is_model_name(name) || !fs::is_directory(fs::path(folder_) / name)) {
    return Status(
        StatusCode::kNotFound,
        cat("there is no model ", api::in_quotes(name), folder_.empty() ? "" : " in the model repository"),
        "model_name");
  }
  Place& place = places_[name];
  place.path = (fs::path(folder_) / name).string();
  place.first = find_model_at(place.path);
  return ok_status();
}

// The one way from a path to a model, of any kind.
Result<api::ServedModel> Repository::open_version(const std::string& name, ModelKind kind, int64_t version,
                                                  const std::string& path, const json::object& config) {
  api::ServedModel out;
  if (kind == ModelKind::kLanguage) {
    OAR_ASSIGN(out.language, open_language(name, version, path, config));
  } else {
    OAR_ASSIGN(out.tensor, open_tensors(name, kind, version, path, config));
  }
  return out;
}

Result<ModelHandlePtr> Repository::open_language(const std::string& name, int64_t version,
                                                 const std::string& path, const json::object& config) {
  OAR_RETURN_IF_ERROR(check_language_config(name, config));
  if (!options_.open_language)
    return unimplemented(cat("'", name, "' is a language model, and this server opens none"));
  OAR_ASSIGN(std::unique_ptr<LanguageModel> model, options_.open_language(name, path));
  ModelHandle handle = make_handle(std::shared_ptr<LanguageModel>(std::move(model)));
  handle.name = name;
  handle.version = cat(version);
  if (options_.adjust_language) OAR_RETURN_IF_ERROR(options_.adjust_language(handle));
  return ModelHandlePtr(std::make_shared<ModelHandle>(std::move(handle)));
}

Result<api::TensorModelPtr> Repository::open_tensors(const std::string& name, ModelKind kind, int64_t version,
                                                     const std::string& path, const json::object& config) {
  const auto start = Clock::now();
  if (!options_.predictor.resources.pool && options_.predictor.threads != 1) {
    options_.predictor.resources.pool =
        std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = options_.predictor.threads});
  }
  PredictorOptions options = options_.predictor;
  options.name = name;
  OAR_ASSIGN(options.device, device_of(config, options.device));
  std::unique_ptr<TensorRunner> model_runner;
  std::shared_ptr<const TextEncoder> encoder;
  if (kind == ModelKind::kEncoder) {
    Result<LoadedEncoder> loaded = load_text_encoder(path, options);
    if (!loaded.ok() && loaded.status().param() == "weights" && !is_encoder_checkpoint(path)) {
      // One --weights is for all models of a server, also for those it cannot be for.
      options_.log(LogLevel::kWarning, cat("model ", name, ": ", loaded.status().message()));
      options.weights.clear();
      loaded = load_text_encoder(path, options);
    }
    const std::string graph = find_graph_in(path);
    if (!loaded.ok() && (graph.empty() || is_text_encoder(path))) return loaded.status();
    if (loaded.ok()) {
      model_runner = std::move(loaded->runner);
      encoder = std::move(loaded->encoder);
    } else {
      // A graph beside a tokenizer need not be an encoder: its tensors are served all the same.
      options_.log(LogLevel::kWarning,
                   cat("model ", name, " is served without texts: ", loaded.status().message()));
      OAR_ASSIGN(model_runner, Predictor::open(graph, options));
    }
  } else {
    OAR_ASSIGN(model_runner, Predictor::open(path, options));
  }
  OAR_ASSIGN(api::TensorModelConfig made, make_model_config(name, config, *model_runner, options_.defaults));
  made.version = cat(version);
  made.path = path;
  return served(std::move(made), std::move(model_runner), std::move(encoder), start);
}

Result<api::TensorModelPtr> Repository::served(api::TensorModelConfig made,
                                               std::unique_ptr<TensorRunner> runner,
                                               std::shared_ptr<const TextEncoder> encoder,
                                               Clock::time_point start) {
  BatchedPredictorOptions o;
  o.max_batch = made.max_batch;
  o.merge = made.merge;
  o.preferred_batches = made.preferred_batches;
  o.max_queue_delay = std::chrono::microseconds(made.max_queue_delay_us);
  o.max_queue = static_cast<size_t>(made.max_queue);
  o.instances = made.instances;
  o.log = options_.log;
  auto model = std::make_shared<api::TensorModel>();
  model->encoder = std::move(encoder);
  model->vectors = options_.vectors;
  model->token_vectors = options_.token_vectors;
  model->config = std::move(made);
  model->runner = std::make_unique<BatchedPredictor>(std::move(runner), std::move(o));
  model->load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return api::TensorModelPtr(std::move(model));
}

Result<api::TensorModelPtr> Repository::open_ensemble(const std::string& name, int64_t version,
                                                      const std::string& path, const json::object& config) {
  const auto start = Clock::now();
  OAR_ASSIGN(api::TensorModelConfig made, make_ensemble_config(name, config, find_step_));
  made.version = cat(version);
  made.path = path;
  auto model = std::make_shared<api::TensorModel>();
  model->config = std::move(made);
  model->runner = std::make_unique<api::Ensemble>(model->config, find_step_);
  model->load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return api::TensorModelPtr(std::move(model));
}

// What makes the built-in step that a config names; null where it names none.
const RepositoryOptions::MakeStep* Repository::built_in(const json::object& config) const {
  const Result<std::string> backend = config_fields::read_string(config, "backend");
  const auto it = options_.built_in.find(backend.ok() ? *backend : std::string());
  return it == options_.built_in.end() ? nullptr : &it->second;
}

// An ensemble or a built-in step: its config is all there is. A folder with a number is its version.
Result<api::ModelVersions> Repository::open_without_file(const std::string& name, const std::string& path,
                                                         const json::object& config) {
  const auto start = Clock::now();
  for (const char* field : {"version_policy", "default_model_filename"}) {
    if (config.if_contains(field))
      return invalid_argument(
          cat("config: '", field, "' is for models with files, and '", name, "' has none; leave it out"),
          field);
  }
  const int64_t version = newest_version_in(path);
  api::ModelVersions out;
  const RepositoryOptions::MakeStep* make = built_in(config);
  if (make == nullptr) {
    OAR_ASSIGN(out[version].tensor, open_ensemble(name, version, path, config));
    return out;
  }
  OAR_ASSIGN(const RepositoryOptions::Parameters parameters, read_parameters(config));
  OAR_ASSIGN(std::unique_ptr<TensorRunner> runner, (*make)(parameters, path));
  OAR_ASSIGN(api::TensorModelConfig made, make_model_config(name, config, *runner, options_.defaults, true));
  made.version = cat(version);
  made.path = path;
  OAR_ASSIGN(out[version].tensor, served(std::move(made), std::move(runner), nullptr, start));
  return out;
}

std::vector<std::string> Repository::steps_of(const std::string& name, const std::string& config_json) {
  const auto place = places_.find(name);
  if (place == places_.end()) return {};
  const auto config = read_config(config_json, find_model_at(place->second.path).config);
  return config.ok() && is_ensemble(*config) ? models_of_steps(*config) : std::vector<std::string>();
}

Result<api::ModelVersions> Repository::open(const std::string& name, const std::string& config_json) {
  const Place& place = places_.at(name);
  if (options_.stop && options_.stop()) return Status(StatusCode::kCancelled, "interrupted");
  FoundModel seen = find_model_at(place.path);
  // The embedded model lies nowhere, and what only looks like a language model its loader explains best.
  if (seen.kind == ModelKind::kNone && place.first.kind == ModelKind::kLanguage) seen = place.first;
  OAR_ASSIGN(const json::object config, read_config(config_json, seen.config));
  if (is_ensemble(config) || built_in(config)) {
    OAR_ASSIGN(api::ModelVersions made, open_without_file(name, place.path, config));
    warn_of_fields(name, config, built_in(config) != nullptr);
    return made;
  }
  const std::string file = file_name_of(config);
  const FoundModel found = file.empty() ? seen : find_model_at(place.path, file);
  if (found.kind == ModelKind::kNone) {
    return not_found(cat("no model in ", place.path, ": expected VERSION/",
                         file.empty() ? "model.onnx" : file, " or a Paddle model"));
  }
  OAR_ASSIGN(const VersionPolicy policy, read_version_policy(config));
  api::ModelVersions out;
  for (const int64_t version : wanted_versions(policy, found.versions)) {
    for (const auto& [number, where] : found.versions) {
      if (number != version) continue;
      OAR_ASSIGN(out[version], open_version(name, found.kind, version, where, config));
    }
  }
  if (out.empty())
    return not_found(cat("the version_policy of '", name, "' selects none of the versions there are"));
  warn_of_fields(name, config, false);
  return out;
}

void Repository::warn_of_fields(const std::string& name, const json::object& config, bool built_in) const {
  for (const std::string& field : fields_without_effect(config)) {
    if (built_in && field == "parameters") continue;
    options_.log(LogLevel::kWarning,
                 cat("model ", name, ": '", field, "' of its config.pbtxt has no effect here"));
  }
}

}  // namespace

bool FoundModels::has(api::ModelKind kind) const {
  return std::any_of(models.begin(), models.end(), [&](const FoundModel& m) { return m.kind == kind; });
}

Result<FoundModels> find_models(const std::string& path, const std::string& name) {
  FoundModels out;
  FoundModel single = find_model_at(path);
  if (single.kind != ModelKind::kNone) {
    if (!name.empty()) single.name = name;
    out.models.push_back(std::move(single));
    return out;
  }
  out.folder = path;
  out.models = find_models_in(path);
  if (!out.models.empty()) return out;
  return not_found(
      cat("no model in ", path,
          ": neither a model file, nor a model's folder, nor a repository NAME/VERSION/model.onnx"));
}

std::unique_ptr<api::ModelCatalog> make_catalog(FoundModels found, RepositoryOptions options) {
  const Logger log = options.log;
  return std::make_unique<api::ModelCatalog>(
      std::make_unique<Repository>(std::move(found), std::move(options)), log);
}

Result<std::unique_ptr<api::ModelCatalog>> open_repository(const std::string& path, const std::string& name,
                                                           RepositoryOptions options) {
  OAR_ASSIGN(FoundModels found, find_models(path, name));
  std::unique_ptr<api::ModelCatalog> catalog = make_catalog(std::move(found), std::move(options));
  OAR_RETURN_IF_ERROR(catalog->load_all());
  return catalog;
}

}  // namespace oar
