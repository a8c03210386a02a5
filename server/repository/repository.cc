#include "server/repository/repository.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"
#include "server/repository/text_config.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

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
    out[name] = snake_case(member.value());
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

}  // namespace

Result<std::unique_ptr<Repository>> Repository::open(const std::string& path, const std::string& name,
                                                     RepositoryOptions options) {
  if (!options.predictor.pool && options.predictor.threads != 1) {
    options.predictor.pool =
        std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = options.predictor.threads});
  }
  auto out = std::unique_ptr<Repository>(new Repository(std::move(options)));
  FoundModel single = find_model_at(path);
  std::vector<FoundModel> found;
  if (single.kind != ModelKind::kNone) {
    if (!name.empty()) single.name = name;
    found.push_back(std::move(single));
  } else {
    found = find_models_in(path);
    out->folder_ = path;
    if (found.empty()) {
      return not_found(
          cat("no model in ", path,
              ": neither a model file, nor a model's folder, nor a repository NAME/VERSION/model.onnx"));
    }
  }
  Status first;
  bool any = false;
  for (FoundModel& m : found) {
    if (m.kind == ModelKind::kLanguage) {
      out->language_models_.push_back(std::move(m));
      any = true;
      continue;
    }
    const std::string where = out->folder_.empty() ? path : (fs::path(path) / m.name).string();
    if (const Status s = out->load_entry(m.name, where, {}); s.ok()) {
      any = true;
    } else {
      if (first.ok()) first = s;
      if (!out->folder_.empty())
        out->options_.log(LogLevel::kError, cat("model ", m.name, " is not served: ", s.message()));
    }
  }
  if (!any) return first;
  return out;
}

Result<api::TensorModelPtr> Repository::load_version(const std::string& name, ModelKind kind, int64_t version,
                                                     const std::string& path, const json::object& config) {
  const auto start = Clock::now();
  std::unique_ptr<Predictor> predictor;
  std::shared_ptr<const TextEncoder> encoder;
  if (kind == ModelKind::kEncoder) {
    Result<LoadedEncoder> loaded = load_text_encoder(path, options_.predictor);
    const std::string graph = find_graph_in(path);
    if (!loaded.ok() && (graph.empty() || is_text_encoder(path))) return loaded.status();
    if (loaded.ok()) {
      predictor = std::move(loaded->predictor);
      encoder = std::move(loaded->encoder);
    } else {
      // A graph beside a tokenizer need not be an encoder: its tensors are served all the same.
      options_.log(LogLevel::kWarning,
                   cat("model ", name, " is served without texts: ", loaded.status().message()));
      OAR_ASSIGN(predictor, Predictor::open(graph, options_.predictor));
    }
  } else {
    OAR_ASSIGN(predictor, Predictor::open(path, options_.predictor));
  }
  OAR_ASSIGN(api::TensorModelConfig made, make_model_config(name, config, *predictor, options_.defaults));
  for (const std::string& field : fields_without_effect(config)) {
    options_.log(LogLevel::kWarning,
                 cat("model ", name, ": '", field, "' of its config.pbtxt has no effect here"));
  }
  made.version = cat(version);
  made.path = path;
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
  model->config = std::move(made);
  model->runner = std::make_unique<BatchedPredictor>(std::move(predictor), std::move(o));
  model->load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return api::TensorModelPtr(std::move(model));
}

Result<std::map<int64_t, api::TensorModelPtr>> Repository::load_versions(const std::string& name,
                                                                         const std::string& path,
                                                                         const std::string& config_json) {
  const FoundModel seen = find_model_at(path);
  OAR_ASSIGN(const json::object config, read_config(config_json, seen.config));
  const std::string file = file_name_of(config);
  const FoundModel found = file.empty() ? seen : find_model_at(path, file);
  if (found.kind == ModelKind::kLanguage)
    return unimplemented(cat("'", name, "' is a language model; those are loaded when the server starts"));
  if (found.kind == ModelKind::kNone) {
    return not_found(cat("no model in ", path, ": expected VERSION/", file.empty() ? "model.onnx" : file,
                         " or a Paddle model"));
  }
  OAR_ASSIGN(const VersionPolicy policy, read_version_policy(config));
  std::map<int64_t, api::TensorModelPtr> out;
  for (const int64_t version : wanted_versions(policy, found.versions)) {
    for (const auto& [number, where] : found.versions) {
      if (number != version) continue;
      OAR_ASSIGN(out[version], load_version(name, found.kind, version, where, config));
    }
  }
  if (out.empty())
    return not_found(cat("the version_policy of '", name, "' selects none of the versions there are"));
  return out;
}

Status Repository::load_entry(const std::string& name, const std::string& path, const std::string& config) {
  {
    std::lock_guard lock(mutex_);
    Entry& e = entries_[name];
    e.path = path;
    if (e.versions.empty()) e.state = "LOADING";
  }
  Result<std::map<int64_t, api::TensorModelPtr>> loaded = load_versions(name, path, config);
  std::map<int64_t, api::TensorModelPtr> old;  // released outside the lock
  std::lock_guard lock(mutex_);
  Entry& e = entries_[name];
  if (!loaded.ok()) {
    e.reason = loaded.status().message();
    if (e.versions.empty()) e.state = "UNAVAILABLE";  // otherwise what was loaded before goes on
    return loaded.status();
  }
  old.swap(e.versions);
  e.versions = std::move(*loaded);
  e.state = "READY";
  e.reason.clear();
  return ok_status();
}

bool Repository::has(std::string_view name) const {
  std::lock_guard lock(mutex_);
  return entries_.find(name) != entries_.end();
}

Result<api::TensorModelPtr> Repository::find(std::string_view name, std::string_view version) const {
  std::lock_guard lock(mutex_);
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    std::string names;
    for (const auto& [known, entry] : entries_) names += cat(names.empty() ? "" : ", ", known);
    return Status(StatusCode::kNotFound,
                  cat("the model ", api::in_quotes(name), " is not served here; there is: ", names), "model");
  }
  const Entry& e = it->second;
  if (e.versions.empty()) {
    return unavailable(
        cat("the model ", api::in_quotes(name), " is not loaded", e.reason.empty() ? "" : ": ", e.reason));
  }
  if (version.empty()) return e.versions.rbegin()->second;
  int64_t number = 0;
  const auto r = std::from_chars(version.data(), version.data() + version.size(), number);
  if (r.ec == std::errc() && r.ptr == version.data() + version.size()) {
    if (const auto found = e.versions.find(number); found != e.versions.end()) return found->second;
  }
  std::string versions;
  for (const auto& [known, model] : e.versions) versions += cat(versions.empty() ? "" : ", ", known);
  return Status(StatusCode::kNotFound,
                cat("model ", name, " has no version ", api::in_quotes(version), "; there is: ", versions),
                "model_version");
}

std::vector<api::TensorModelPtr> Repository::loaded() const {
  std::lock_guard lock(mutex_);
  std::vector<api::TensorModelPtr> out;
  for (const auto& [name, entry] : entries_)
    for (const auto& [version, model] : entry.versions) out.push_back(model);
  return out;
}

std::vector<api::ModelIndexEntry> Repository::index() const {
  std::lock_guard lock(mutex_);
  std::vector<api::ModelIndexEntry> out;
  for (const auto& [name, entry] : entries_) {
    for (const auto& [version, model] : entry.versions)
      out.push_back({name, cat(version), "READY", entry.reason});
    if (entry.versions.empty()) out.push_back({name, "", entry.state, entry.reason});
  }
  return out;
}

Status Repository::load(const std::string& name, const std::string& config) {
  std::lock_guard one(loading_);
  std::string path;
  {
    std::lock_guard lock(mutex_);
    if (const auto it = entries_.find(name); it != entries_.end()) path = it->second.path;
  }
  if (path.empty()) {
    // A folder that came after the start.
    if (folder_.empty() || !is_model_name(name) || !fs::is_directory(fs::path(folder_) / name)) {
      return Status(
          StatusCode::kNotFound,
          cat("there is no model ", api::in_quotes(name), folder_.empty() ? "" : " in the model repository"),
          "model_name");
    }
    path = (fs::path(folder_) / name).string();
  }
  const Status s = load_entry(name, path, config);
  options_.log(
      s.ok() ? LogLevel::kInfo : LogLevel::kError,
      s.ok() ? cat("model ", name, " loaded") : cat("model ", name, " could not be loaded: ", s.message()));
  return s;
}

Status Repository::unload(const std::string& name) {
  std::lock_guard one(loading_);
  std::map<int64_t, api::TensorModelPtr> old;  // released outside the lock
  {
    std::lock_guard lock(mutex_);
    const auto it = entries_.find(name);
    if (it == entries_.end())
      return Status(StatusCode::kNotFound, cat("there is no model ", api::in_quotes(name)), "model_name");
    old.swap(it->second.versions);
    it->second.state = "UNAVAILABLE";
    it->second.reason = "unloaded";
  }
  options_.log(LogLevel::kInfo, cat("model ", name, " unloaded"));
  return ok_status();
}

}  // namespace oar
