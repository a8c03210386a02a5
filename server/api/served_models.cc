#include "server/api/served_models.h"

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

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
  c.version = model.version;
  c.platform = "oar";
  c.path = model.info.path;
  c.decoupled = true;
  c.inputs = {one("text_input", DType::kString, false), one("stream", DType::kBool, true),
              one("sampling_parameters", DType::kString, true),
              one("exclude_input_in_output", DType::kBool, true)};
  c.outputs = {one("text_output", DType::kString, false)};
  return c;
}

}  // namespace

InferStats statistics_of(const ModelHandle& model) {
  const RequestTotals t = model.observer ? model.observer->totals() : RequestTotals{};
  const EngineStats engine = model.engine->stats();
  InferStats s;
  s.success = s.inferences = t.success;
  s.failure = t.failure;
  s.cancelled = t.cancelled;
  s.refused = t.refused;
  s.success_ns = t.success_ns;
  s.failure_ns = t.failure_ns;
  s.times.queue = t.queue_ns;
  s.times.compute = t.compute_ns;
  s.executions = engine.steps;
  s.waiting = engine.waiting;
  s.running = engine.running;
  s.last_ms = t.last_finish_ms;
  return s;
}

Result<ServedModel> ServedModels::find(const std::string& name, const std::string& version) const {
  if (name.empty()) return invalid_argument("model_name is missing", "model_name");
  return catalog_.find(name, version);
}

Result<bool> ServedModels::ready(const std::string& name, const std::string& version) const {
  const Result<ServedModel> model = find(name, version);
  // A request wakes one that sleeps.
  if (model.status().code() == StatusCode::kUnavailable)
    return frontend_.accepting() && catalog_.sleeper(name).has_value();
  if (!model.ok()) return model.status();
  return frontend_.accepting() &&
         (model->tensor ? model->tensor->runner->ready().ok() : Frontend::ready(*model->language));
}

Result<TensorModelConfig> ServedModels::config(const std::string& name, const std::string& version) const {
  OAR_ASSIGN(const ServedModel model, find(name, version));
  return model.language ? text_config(*model.language) : model.tensor->config;
}

Result<ModelMetadata> ServedModels::metadata(const std::string& name, const std::string& version) const {
  OAR_ASSIGN(const ServedModel model, find(name, version));
  ModelMetadata out;
  for (const ServedModel& m : catalog_.loaded())
    if (m.name() == name) out.versions.push_back(m.version());
  if (out.versions.empty()) out.versions.push_back(model.version());  // an adapter: its model's
  out.config = model.language ? text_config(*model.language) : model.tensor->config;
  if (model.language) {
    out.properties = {{"architecture", model.language->info.architecture},
                      {"max_context", cat(model.language->engine->request_limits().max_context)}};
  }
  return out;
}

Result<std::vector<ModelStatistics>> ServedModels::statistics(const std::string& name,
                                                              const std::string& version) const {
  if (!name.empty()) OAR_RETURN_IF_ERROR(find(name, version).status());
  const auto wanted = [&](const std::string& n, const std::string& v) {
    return (name.empty() || name == n) && (version.empty() || version == v);
  };
  std::vector<ModelStatistics> out;
  for (const ServedModel& m : catalog_.loaded()) {
    if (wanted(m.name(), m.version()))
      out.push_back(
          {m.name(), m.version(), m.language ? statistics_of(*m.language) : m.tensor->runner->stats()});
  }
  return out;
}

}  // namespace oar::api
