// The server: HTTP and gRPC over a catalog of models, metrics, readiness and an orderly end. `oar serve` owns
// one.
//
//   ServerOptions options;  options.http_address = "127.0.0.1:0";
//   auto server = Server::start(options, catalog);
//   ... on SIGTERM:  (*server)->set_ready(false);  clean = (*server)->drain_and_stop(30s);
//
// Threads: start() makes all of them; every method may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "server/api/file_store.h"
#include "server/api/generation_request.h"
#include "server/api/model_catalog.h"
#include "server/api/server_settings.h"
#include "server/api/shared_memory.h"
#include "server/api/trace_file.h"
#include "server/api/triton_error.h"
#include "server/grpc/grpc_limits.h"
#include "server/http/http_server.h"
#include "server/tls/tls.h"

namespace oar {

struct ServerOptions {
  // host:port, or several with commas between; port 0 picks a free one; empty: no HTTP.
  std::string http_address = "127.0.0.1:8000";
  std::string grpc_address = "127.0.0.1:8001";  // the same; empty: no gRPC
  std::string api_key;                          // empty: none asked for; never for health checks
  std::string api_key_file;                     // more keys, one per line, read again when it changes
  std::string metrics_address;                  // HTTP with /metrics and health alone, without key or TLS
  std::string root_path;                        // before paths, as a proxy may pass them on; empty: nothing
  bool no_metrics = false;                      // /metrics answers 501, there and at http_address
  bool no_slots = false;                        // llama.cpp's /slots answers 501
  bool no_page = false;                         // neither / nor /docs
  bool adapter_paths = false;                   // /v1/models shows where adapters lie
  api::ErrorStyle error_style = api::ErrorStyle::kOpenAi;  // below OpenAI's paths
  std::string server_name = "oar";                         // in lists of models and in /v2
  std::string predict_path, health_path;  // where Vertex AI asks (http/vertex_routes.cc); empty: it does not
  bool model_control = false;             // whether clients load and unload models
  std::string admin_key_file;             // keys for that; empty: the API keys
  tls::Files tls;                         // of both; read again when they change
  // Origins whose pages may call, and names that Host may have beside loopback's (server/http/origin.h).
  std::vector<std::string> allowed_origins, allowed_hosts;
  http::CorsAnswer cors;  // what preflight requests of those origins are told
  int http_threads = 2;
  int worker_threads = 2;  // parse, template, tokenize
  int writer_threads = 1;  // detokenize and frame gRPC's streams
  http::Limits http_limits;
  GrpcLimits grpc_limits;
  api::ApiLimits api_limits;
  std::string request_log;  // file that a line per request is appended to, "-" standard output; empty: none
  std::string trace;        // file for what steps and requests took (api/trace_file.h); empty: none
  api::TraceKind trace_kind = api::TraceKind::kChrome;
  uint64_t trace_bytes = api::TraceFile::kDefaultBytes;  // it never has more
  std::string files;  // folder of /v1/files and /v1/batches (api/file_store.h); empty: they are off
  uint64_t files_bytes = api::FileStore::kDefaultBytes;  // it never has more
  int batch_concurrency = 8;                             // requests of batches under way at once
  // Keys of shared memory that clients may register begin with it (api/shared_memory.h); empty: it is off.
  std::string shared_memory;
  std::shared_ptr<api::ServerSettings> settings;  // null: start() makes them; filtered() has more to filter
  Logger log;
};

class Server {
 public:
  static Result<std::unique_ptr<Server>> start(ServerOptions options,
                                               std::shared_ptr<api::ModelCatalog> catalog);
  virtual ~Server() = default;  // stops at once if still running

  // What start() would refuse without a look at the models: addresses that cannot be had, key and TLS files
  // that cannot be used, a log or trace that cannot be written. To be asked before models are loaded, which
  // takes long.
  static Status check(const ServerOptions& options);

  virtual int http_port() const = 0;  // of the first address; 0 when not served
  virtual int grpc_port() const = 0;
  virtual int metrics_port() const = 0;
  // What the health endpoints say. True after start(); an engine that is not ready makes it false whatever is
  // set here. Requests are taken all the same: balancers need a moment to look elsewhere.
  virtual void set_ready(bool ready) = 0;
  virtual bool ready() const = 0;
  // The files of keys are read again with the next request, whatever their dates say.
  virtual void reload_keys() = 0;
  // Refuses new work, lets requests in flight finish until `timeout`, then ends the rest with an error that
  // says why (within a second; a timeout of 0 cuts them off), stops all threads. True when all had finished.
  // Idempotent.
  virtual bool drain_and_stop(std::chrono::milliseconds timeout) = 0;
};

}  // namespace oar
