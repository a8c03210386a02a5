#include "server/api/served_models.h"

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

constexpr const char* kVersion1 = "1";

TensorSpec one(const char* name, DType dtype, bool optional) {
  TensorSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  spec.dims = {1};
  spec.optional = optional;
  return spec;
}

// A language model in the words of tensors, as Triton's vLLM backend names them (oip_request.h).
TensorModelConfig text_config(const ModelHandle& model) {
  TensorModelConfig c;
  c.name = model.name;
  c.version = kVersion1;
  c.platform = "oar";
  c.path = model.info.path;
  c.decoupled = true;
  c.inputs = {one("text_input", DType::kString, false), one("stream", DType::kBool, true),
              one("sampling_parameters", DType::kString, true),
              one("exclude_input_in_output", DType::kBool, true)};
  c.outputs = {one("text_output", DType::kString, false)};
  return c;
}

InferStats text_stats(const ModelHandle& model, const RequestTotals& t) {
  InferStats s;
  s.success = s.inferences = t.success;
  s.failure = t.failure;
  s.success_ns = t.success_ns;
  s.failure_ns = t.failure_ns;
  s.times.queue = t.queue_ns;
  s.times.compute = t.compute_ns;
  s.executions = model.engine->stats().steps;
  s.last_ms = t.last_finish_ms;
  return s;
}

}  // namespace

Result<ServedModel> ServedModels::find(const std::string& name, const std::string& version) const {
  if (name.empty()) return invalid_argument("model_name is missing", "model_name");
  ServedModel out;
  if (tensors_.has(name)) {
    OAR_ASSIGN(out.tensor, tensors_.find(name, version));
    return out;
  }
  const Result<const ModelHandle*> language = frontend_.find(name);
  if (!language.ok()) {
    std::string names, last;  // of several versions of a model
    for (const ModelIndexEntry& e : index())
      if (e.name != last) names += cat(names.empty() ? "" : ", ", last = e.name);
    return Status(StatusCode::kNotFound,
                  cat("the model ", in_quotes(name), " is not served here; there is: ", names), "model");
  }
  out.language = *language;
  if (!version.empty() && version != kVersion1) {
    return Status(StatusCode::kNotFound,
                  cat("model ", name, " has no version ", in_quotes(version), "; leave it out or say \"1\""),
                  "model_version");
  }
  return out;
}

Result<bool> ServedModels::ready(const std::string& name, const std::string& version) const {
  const Result<ServedModel> model = find(name, version);
  if (model.status().code() == StatusCode::kUnavailable) return false;
  if (!model.ok()) return model.status();
  return frontend_.accepting() && (model->tensor || Frontend::ready(*model->language));
}

Result<TensorModelConfig> ServedModels::config(const std::string& name, const std::string& version) const {
  OAR_ASSIGN(const ServedModel model, find(name, version));
  return model.language ? text_config(*model.language) : model.tensor->config;
}

Result<ModelMetadata> ServedModels::metadata(const std::string& name, const std::string& version) const {
  OAR_ASSIGN(const ServedModel model, find(name, version));
  if (model.tensor) return ModelMetadata{model.tensor->config, versions_of(tensors_.loaded(), name), {}};
  return ModelMetadata{text_config(*model.language),
                       {kVersion1},
                       {{"architecture", model.language->info.architecture},
                        {"max_context", cat(model.language->engine->request_limits().max_context)}}};
}

Result<std::vector<ModelStatistics>> ServedModels::statistics(const std::string& name,
                                                              const std::string& version) const {
  if (!name.empty()) OAR_RETURN_IF_ERROR(find(name, version).status());
  const auto wanted = [&](const std::string& n, const std::string& v) {
    return (name.empty() || name == n) && (version.empty() || version == v);
  };
  std::vector<ModelStatistics> out;
  const std::vector<ModelHandle>& language = frontend_.models();
  for (size_t i = 0; i < language.size(); ++i) {
    if (wanted(language[i].name, kVersion1))
      out.push_back({language[i].name, kVersion1, text_stats(language[i], totals_(i))});
  }
  for (const TensorModelPtr& m : tensors_.loaded()) {
    if (wanted(m->config.name, m->config.version))
      out.push_back({m->config.name, m->config.version, m->runner->stats()});
  }
  return out;
}

std::vector<ModelIndexEntry> ServedModels::index() const {
  std::vector<ModelIndexEntry> out;
  for (const ModelHandle& m : frontend_.models()) {
    const bool ready = Frontend::ready(m);
    out.push_back(
        {m.name, kVersion1, ready ? "READY" : "UNAVAILABLE", ready ? "" : "the engine is not ready"});
  }
  for (ModelIndexEntry& e : tensors_.index()) out.push_back(std::move(e));
  return out;
}

}  // namespace oar::api
