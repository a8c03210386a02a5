// The tensor requests and answers of the Open Inference Protocol over REST: JSON, with the binary tensor
// extension (raw tensors behind the JSON, whose length a header gives). Also the JSON of models' metadata,
// configuration and statistics.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/served_models.h"
#include "server/api/shared_memory.h"

namespace oar::api {

struct JsonInferRequest {
  struct Output {
    std::string name;
    bool binary = false;
    int64_t classification = 0;  // classify(); 0: as it is
    RegionSpan place;            // in shared memory
  };
  std::string id;
  std::vector<NamedTensor> inputs;
  std::vector<Output> outputs;     // empty: all of the model's
  bool binary_by_default = false;  // of outputs that do not say
  uint64_t timeout_us = 0;
  json::object parameters;  // of a language model's request: as they came
  MemoryAccess memory;      // where outputs with a place go
};

// The parameter `timeout` of an infer request in microseconds, 0 when absent. Refuses parameters that would
// change the answer in a way no model here offers.
Result<uint64_t> read_timeout(const json::object& parameters);

// `json_bytes`: how much of the body is JSON, from the header Inference-Header-Content-Length; absent: all of
// it; 0: none, then the body is the one input of `config`. Tensors view the body where they can, which
// `owner` keeps alive.
Result<JsonInferRequest> parse_infer_body(const TensorModelConfig& config, std::string_view body,
                                          std::optional<size_t> json_bytes, std::shared_ptr<const void> owner,
                                          MemoryAccess memory = {});

struct JsonInferAnswer {
  std::string body;
  std::optional<size_t> json_bytes;  // what of it is JSON, when raw tensors follow
};
Result<JsonInferAnswer> write_infer_body(const TensorModelConfig& config, const JsonInferRequest& request,
                                         const std::vector<Datum>& results,
                                         const std::vector<size_t>& wanted);

std::string metadata_json(const ModelMetadata& metadata);
std::string config_json(const TensorModelConfig& config);
std::string statistics_json(const std::vector<ModelStatistics>& models);
std::string index_json(const std::vector<ModelIndexEntry>& entries);

}  // namespace oar::api
