// Models from disk: what a path holds, and the source that a ModelCatalog opens them from. A folder of
// models, or one model; ordinary models, ensembles of them, encoders and language models go the same way, at
// the start and while the server runs.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/language_model.h"
#include "server/api/model_catalog.h"
#include "server/repository/model_config.h"
#include "server/repository/scan.h"

namespace oar {

struct FoundModels {
  std::string folder;  // of the repository; empty: a single model
  std::vector<FoundModel> models;

  bool has(api::ModelKind kind) const;
};
// What `path` holds: one model (called `name`, when not empty) or a folder of models. NOT_FOUND when it is
// neither.
Result<FoundModels> find_models(const std::string& path, const std::string& name);

struct RepositoryOptions {
  PredictorOptions predictor;  // its pool and budget are shared by all models; made when there is none
  ConfigDefaults defaults;
  VectorOptions vectors;       // of encoders (TensorModel), as is
  bool token_vectors = false;  // the next
  // Opens a language model; the only place where an Engine comes from. Empty: language models are refused.
  std::function<Result<std::unique_ptr<LanguageModel>>(const std::string& name, const std::string& path)>
      open_language;
  // What is changed of a language model before it is served; may be empty.
  std::function<Status(ModelHandle&)> adjust_language;
  // Steps of ensembles that are built in, by the `backend` of their config: made of its `parameters`. Refuses
  // parameters that it does not know, by name. `folder` is that of the model's config.
  using Parameters = std::map<std::string, std::string>;
  using MakeStep = std::function<Result<std::unique_ptr<TensorRunner>>(const Parameters& parameters,
                                                                       const std::string& folder)>;
  std::map<std::string, MakeStep> built_in;
  std::function<bool()> stop;  // asked before each model is opened: true ends the loading; may be empty
  Logger log;
};

// A catalog over what was found, nothing loaded yet (ModelCatalog::load_all()). A folder's models may come
// and change later.
std::unique_ptr<api::ModelCatalog> make_catalog(FoundModels found, RepositoryOptions options);
// All of the above: find, make, load.
Result<std::unique_ptr<api::ModelCatalog>> open_repository(const std::string& path, const std::string& name,
                                                           RepositoryOptions options);

}  // namespace oar
