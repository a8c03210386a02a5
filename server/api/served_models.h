// The models of a server, of all kinds, as its protocols describe them: metadata, configuration, statistics.
// REST and gRPC write what stands here and know nothing of their own. Thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/api/frontend.h"
#include "server/api/model_catalog.h"

namespace oar::api {

struct ModelMetadata {
  TensorModelConfig config;
  std::vector<std::string> versions;
  std::vector<std::pair<std::string, std::string>> properties;
};

struct ModelStatistics {
  std::string name, version;
  InferStats stats;
};

// Of a language model, in the words of ordinary ones: a run is a step of its engine, a request a prompt.
InferStats statistics_of(const ModelHandle& model);

class ServedModels {
 public:
  // Borrowed parts, which outlive it.
  ServedModels(const ModelCatalog& catalog, const Frontend& frontend)
      : catalog_(catalog), frontend_(frontend) {}

  // ModelCatalog::find() for requests that must name a model.
  Result<ServedModel> find(const std::string& name, const std::string& version) const;
  // False for a model that is known and not loaded.
  Result<bool> ready(const std::string& name, const std::string& version) const;
  Result<ModelMetadata> metadata(const std::string& name, const std::string& version) const;
  Result<TensorModelConfig> config(const std::string& name, const std::string& version) const;
  // Of all models when `name` is empty, of all its versions when `version` is.
  Result<std::vector<ModelStatistics>> statistics(const std::string& name, const std::string& version) const;

 private:
  const ModelCatalog& catalog_;
  const Frontend& frontend_;
};

}  // namespace oar::api
