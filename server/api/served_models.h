// The models of a server, of both kinds, as its protocols describe them: which one a request means, metadata,
// configuration, statistics. REST and gRPC write what stands here and know nothing of their own. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/api/frontend.h"
#include "server/api/tensor_model.h"

namespace oar::api {

// The model a request means: one of the two is there. A language model has the one version "1".
struct ServedModel {
  const ModelHandle* language = nullptr;
  TensorModelPtr tensor;
};

struct ModelMetadata {
  TensorModelConfig config;
  std::vector<std::string> versions;
  std::vector<std::pair<std::string, std::string>> properties;
};

struct ModelStatistics {
  std::string name, version;
  InferStats stats;
};

class ServedModels {
 public:
  // Borrowed parts, which outlive it. `totals` gives what language model i has answered.
  ServedModels(const Frontend& frontend, const TensorCatalog& tensors,
               std::function<RequestTotals(size_t)> totals)
      : frontend_(frontend), tensors_(tensors), totals_(std::move(totals)) {}

  // An empty version means the newest. NOT_FOUND lists what there is; UNAVAILABLE when the model is known but
  // not loaded.
  Result<ServedModel> find(const std::string& name, const std::string& version) const;
  // False for a model that is known and not loaded.
  Result<bool> ready(const std::string& name, const std::string& version) const;
  Result<ModelMetadata> metadata(const std::string& name, const std::string& version) const;
  Result<TensorModelConfig> config(const std::string& name, const std::string& version) const;
  // Of all models when `name` is empty, of all its versions when `version` is.
  Result<std::vector<ModelStatistics>> statistics(const std::string& name, const std::string& version) const;
  std::vector<ModelIndexEntry> index() const;

 private:
  const Frontend& frontend_;
  const TensorCatalog& tensors_;
  const std::function<RequestTotals(size_t)> totals_;
};

}  // namespace oar::api
