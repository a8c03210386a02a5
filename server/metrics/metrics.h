// Every Prometheus metric of the server. Fed by plain structs (EngineStats, StepInfo, SequenceStats), so no
// other room knows a metric's name; prometheus-cpp stays in metrics.cc. Names that start with "vllm:" carry
// vLLM's meaning and buckets, so that its dashboards and autoscaling rules work unchanged; names that start
// with "oar_" are ours, and "nv_inference_" names, Triton's, count ordinary models.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api/generation.h"
#include "server/api/model_handle.h"
#include "server/api/tensor_model.h"

namespace oar {

// Thread-safe throughout.
class Metrics {
 public:
  // Observes the engines' steps from now on (Engine::on_step), also after this object is gone.
  explicit Metrics(const std::vector<ModelHandle>& models);
  ~Metrics();

  // The observer to put into a model's GenerationSpecs; lives as long as this.
  api::GenerationObserver* observer(size_t model);
  api::RequestTotals totals(size_t model) const;

  void on_http_request(const std::string& route, const std::string& method, int status, double seconds);
  void on_grpc_request(const std::string& method, int code, double seconds);
  void set_connection_gauge(std::function<size_t()> connections);
  // Borrowed; null: none.
  void set_tensor_models(const api::TensorCatalog* tensors);

  // Prometheus' text format, of this moment.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oar
