// The gRPC endpoint: Open Inference Protocol, oar.v1, grpc.health.v1 and reflection on one port. No gRPC
// header is included here, so only this room pays for them.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "engine/base/log.h"
#include "engine/base/status.h"
#include "server/api/auth.h"
#include "server/api/frontend.h"
#include "server/api/served_models.h"
#include "server/api/server_settings.h"
#include "server/api/shared_memory.h"
#include "server/api/worker_pool.h"
#include "server/grpc/grpc_limits.h"
#include "server/metrics/metrics.h"
#include "server/tls/tls.h"

namespace oar::grpc_api {

// Borrowed parts; all outlive the GrpcServer.
struct Services {
  api::Frontend* frontend = nullptr;
  api::ModelCatalog* catalog = nullptr;
  api::ServedModels* models = nullptr;  // the catalog, described
  api::WorkerPool* workers = nullptr;   // prepare requests: a long prompt may take a while
  api::WorkerPool* writers = nullptr;   // turn tokens into messages: always short
  api::WorkerPool* loaders = nullptr;   // load models: seconds
  Metrics* metrics = nullptr;
  std::shared_ptr<api::ApiKeys> keys;  // null: no authentication
  api::ModelControl control;
  std::shared_ptr<tls::ServerContext> tls;  // null: plain text
  GrpcLimits limits;
  Logger log;
  std::shared_ptr<api::SharedMemory> memory;
  std::shared_ptr<api::ServerSettings> settings;
  std::string name = "oar";  // what ServerMetadata says
};

class GrpcServer {
 public:
  // `address` is host:port; port 0 picks a free one.
  static Result<std::unique_ptr<GrpcServer>> start(const std::string& address, Services services);
  virtual ~GrpcServer() = default;

  virtual int port() const = 0;
  // Health checks turn NOT_SERVING by themselves when the frontend is not ready; this only makes them look
  // now.
  virtual void update_health() = 0;
  // Calls in flight may finish until `timeout`, then they are cancelled. Idempotent. True when none had to
  // be.
  virtual bool stop(std::chrono::milliseconds timeout) = 0;
};

}  // namespace oar::grpc_api
