// Every Prometheus metric of the server. Fed by plain structs (EngineStats, StepInfo, SequenceStats), so no
// other room knows a metric's name; prometheus-cpp stays in metrics.cc. Names that start with "vllm:" carry
// vLLM's meaning and buckets, so that its dashboards and autoscaling rules work unchanged; names that start
// with "oar_" are ours, and "nv_inference_" names, Triton's, count ordinary models. "llamacpp:" names are
// llama.cpp's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/api/model_catalog.h"

namespace oar {

// Thread-safe throughout.
class Metrics {
 public:
  // Reports the catalog's models. `catalog` outlives this.
  explicit Metrics(const api::ModelCatalog& catalog);
  ~Metrics();

  // Counts a language model's requests and steps: for ModelCatalog::observe(). Its metrics come with it, and
  // go when its last request has been answered; what a model of the same name counts then begins anew. May
  // outlive this.
  std::shared_ptr<api::GenerationObserver> observe(const ModelHandle& model);

  void on_http_request(const std::string& route, const std::string& method, int status, double seconds);
  void on_grpc_request(const std::string& method, int code, double seconds);
  void set_connection_gauge(std::function<size_t()> connections);

  // Prometheus' text format, of this moment.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oar
