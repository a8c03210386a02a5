// The ordinary models of a server: loaded from a repository's folder or from one model's path, loaded again
// and unloaded while it serves. Language models are found here (language_models()) and opened by the caller,
// who owns their engines.
//
// Threads: all methods from any thread. Loading happens on the caller's thread, one load at a time; the
// models that serve go on meanwhile. A model replaced or unloaded finishes the requests it has accepted.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/api/tensor_model.h"
#include "server/repository/model_config.h"
#include "server/repository/scan.h"

namespace oar {

struct RepositoryOptions {
  PredictorOptions predictor;  // its pool is shared by all models; made when there is none
  ConfigDefaults defaults;
  Logger log;
};

class Repository final : public api::TensorCatalog {
 public:
  // Loads everything that `path` holds: one model (called `name`, when not empty) or a folder of models.
  // NOT_FOUND when it is neither; the first model's error when none could be loaded. Others that fail are
  // logged and listed by index() with the reason.
  static Result<std::unique_ptr<Repository>> open(const std::string& path, const std::string& name,
                                                  RepositoryOptions options);

  // What the caller is to open, by name.
  const std::vector<FoundModel>& language_models() const { return language_models_; }

  Result<api::TensorModelPtr> find(std::string_view name, std::string_view version) const override;
  bool has(std::string_view name) const override;
  std::vector<api::TensorModelPtr> loaded() const override;
  std::vector<api::ModelIndexEntry> index() const override;
  Status load(const std::string& name, const std::string& config) override;
  Status unload(const std::string& name) override;

 private:
  struct Entry {
    std::string path;                                 // of the model's folder or file
    std::map<int64_t, api::TensorModelPtr> versions;  // loaded
    std::string state = "UNAVAILABLE", reason;
  };
  explicit Repository(RepositoryOptions options) : options_(std::move(options)) {}
  Result<std::map<int64_t, api::TensorModelPtr>> load_versions(const std::string& name,
                                                               const std::string& path,
                                                               const std::string& config);
  Result<api::TensorModelPtr> load_version(const std::string& name, ModelKind kind, int64_t version,
                                           const std::string& path, const json::object& config);
  Status load_entry(const std::string& name, const std::string& path, const std::string& config);

  RepositoryOptions options_;
  std::string folder_;  // empty: single models
  std::vector<FoundModel> language_models_;
  std::mutex loading_;  // one load or unload at a time
  mutable std::mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_;  // guarded by mutex_
};

}  // namespace oar
