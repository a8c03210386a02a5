// The way of one model's files into memory: read, quantized if asked, what it takes reserved, planned. A
// language model goes it once, and once more for its draft model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/base/resources.h"
#include "engine/runtime/serving_plan.h"

namespace oar {

struct ModelSource {
  Checkpoint checkpoint;
  ModelConfig config;
  uint64_t parameters = 0;
  TensorMap stored;  // tensors as they lie in mapped files
};
Result<ModelSource> read_model_source(const std::string& path, const LanguageModelOptions& options,
                                      Backend& backend, const Progress& progress);

// Where its bytes are counted.
struct ModelMemory {
  std::shared_ptr<MemoryBudget> budget;
  bool on_device = false;  // the device's memory, in which nothing is mapped
  Reservation& reserved;   // what is made
  uint64_t others_kv = 0;  // the least of a KV cache that is to be there beside this model's own
};

struct ModelPlan {
  ServingPlan serving;
  Reservation mapped;       // pages of files; not on a device
  std::string kv, weights;  // for people
  uint64_t weight_bytes = 0, scratch_bytes = 0;
};
// RESOURCE_EXHAUSTED, before anything large is made, where the budget does not hold the weights and one page
// of KV cache.
Result<ModelPlan> plan_model(const ModelSource& source, const std::string& name,
                             const LanguageModelOptions& options, const std::shared_ptr<Backend>& backend,
                             const ModelMemory& memory, const Progress& progress);

}  // namespace oar
