// From what a model file declares, and what a config.pbtxt (or its JSON) says over it, to a
// TensorModelConfig. Fields that would change what a model answers, and are not honoured, are refused by
// name, and so are unknown fields; tuning for other back ends has no effect.
#pragma once

#include <span>
#include <string_view>

#include "engine/base/json.h"
#include "server/api/tensor_model.h"

namespace oar {

struct ConfigDefaults {
  int64_t max_batch =
      0;  // for models without a config whose first axes are variable; 0: see has_batch_axis()
  int64_t auto_max_batch = 32;  // what then is the most rows of a run
  int64_t max_queue_delay_us = 0;
  std::vector<int64_t> preferred_batches;
  int instances = 1;
  int64_t max_queue = 1024;
};

// Which of a model's folders of versions a config asks for.
struct VersionPolicy {
  enum class Kind { kLatest, kAll, kSpecific } kind = Kind::kLatest;
  int64_t count = 1;              // of kLatest
  std::vector<int64_t> versions;  // of kSpecific
};
Result<VersionPolicy> read_version_policy(const json::object& config);

// True when the first axis of every input and output can only be a batch: variable everywhere, and called so
// by the file ("batch", "batch_size", "N", "B", "bs"). A Paddle file may leave it without a name: its
// exporters put the batch first. False when a run's rows may depend on each other (dynamic quantization takes
// its range from the whole batch).
bool has_batch_axis(const TensorRunner& model);

// Refuses what a language model's config says beyond its name and version: flags say how those are served.
Status check_language_config(const std::string& name, const json::object& config);

// Where the config's instances run: `given` is the server's device (empty: the processor), which KIND_GPU
// needs and KIND_CPU leaves. INVALID_ARGUMENT where there is none, and where instances differ.
Result<std::string> device_of(const json::object& config, const std::string& given);

// The fields of `config` that Triton knows and that have no effect here, for a line in the log.
std::vector<std::string> fields_without_effect(const json::object& config);

// Refuses another name than the model's, and fields that are neither in `read` nor without effect.
Status check_fields(const std::string& name, const json::object& config,
                    std::span<const std::string_view> read);
// What the config's list `field` ("input" or "output") says of tensors, over what their model says. Names
// that `specs` has not are refused, and what does not agree.
Status override_specs(const json::object& config, const char* field, bool input, bool batched,
                      std::vector<api::TensorSpec>& specs);

// `config` empty: there is none. `built_in`: a step of an ensemble that may take and make lists; its requests
// run alone.
Result<api::TensorModelConfig> make_model_config(const std::string& name, const json::object& config,
                                                 const TensorRunner& model, const ConfigDefaults& defaults,
                                                 bool built_in = false);

}  // namespace oar
