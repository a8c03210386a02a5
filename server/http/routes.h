// The HTTP endpoints: OpenAI's, the Open Inference Protocol's, health, metrics. Handlers parse
// nothing themselves: bodies go to server/api on a worker thread, answers come back on the connection's.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/api/auth.h"
#include "server/api/batches.h"
#include "server/api/frontend.h"
#include "server/api/served_models.h"
#include "server/api/server_settings.h"
#include "server/api/shared_memory.h"
#include "server/api/worker_pool.h"
#include "server/http/http_server.h"

namespace oar::http {

// Borrowed parts; all outlive the HttpServer.
struct Services {
  api::Frontend* frontend = nullptr;
  api::ModelCatalog* catalog = nullptr;
  api::ServedModels* models = nullptr;  // the catalog, described
  api::WorkerPool* workers = nullptr;
  api::WorkerPool* loaders = nullptr;    // load models: seconds
  std::function<std::string()> metrics;  // Prometheus text
  std::shared_ptr<api::ApiKeys> keys;    // null: no authentication
  api::ModelControl control;
  Logger log;
  api::FileStore* files = nullptr;  // null: /v1/files and /v1/batches are off
  api::Batches* batches = nullptr;
  std::shared_ptr<api::SharedMemory> memory;
  std::shared_ptr<api::ServerSettings> settings;
  std::string predict_path, health_path;        // Vertex AI's; empty: it does not ask
  std::string owner = "oar";                    // what lists of models and /v2 call the server
  bool metrics_off = false, slots_off = false;  // those paths answer that they are
  bool adapter_paths = false;                   // /v1/models shows of adapters where they lie
};

// Every route. `services` must outlive the router's handlers.
Router make_router(const Services& services);
// Health and metrics alone, open to all: for a listener of their own.
Router make_monitoring_router(const Services& services);
void add_batch_routes(Router& router, const Services& services);
void add_openai_routes(Router& router, const Services& services);
void add_agent_routes(Router& router, const Services& services);
void add_llama_routes(Router& router, const Services& services);
void add_ollama_routes(Router& router, const Services& services);
void add_oip_routes(Router& router, const Services& services);
void add_embedding_routes(Router& router, const Services& services);
void add_settings_routes(Router& router, const Services& services);
void add_tensor_routes(Router& router, const Services& services);
void add_vertex_routes(Router& router, const Services& services);

// GET /openapi.json: every route registered so far, and itself.
void add_openapi(Router& router, const Services& services);

// What answers the requests of batches: `services` as they are for all others, on threads of their own.
api::BatchSend make_batch_send(const Services& services, api::WorkerPool& workers);

// The hooks of HttpServerOptions: the key check, and error bodies in the dialect of the path.
std::function<std::optional<Response>(const Request&, const Route&)> make_admission(const Services& services);
Response error_response(const Request* request, int status, const std::string& message);
// And for HttpServerOptions::reword: as Triton's frontend says it (api::ErrorStyle).
void word_as_triton(const Request& request, Response& error);

// ---- for the route files ----

// An error in the dialect of the request's path: OpenAI's object, or {"error": text} below /v2 and /api.
// `excess`: of a prompt that is too long, for dialects that say by how much.
Response error_answer(std::string_view path, const Status& status, const api::PromptExcess& excess = {});
Response json_answer(std::string body);
// What a path answers that the server was started without; `option` did that.
Handler switched_off(const char* what, const char* option);
// The version that the path names; empty: none.
std::string version_in(const Request& request);
// limit (up to `most`), order and after of a query, over `page`; whatever else it asks for is refused, but
// for `others`: their values go there.
struct QueryWord {
  std::string_view name;
  std::string* value;               // of NAME=VALUE,
  json::object* members = nullptr;  // or, where that is given, of any number of NAME[MEMBER]=VALUE
};
Result<api::ItemPage> read_page(std::string_view query, api::ItemPage page, int64_t most,
                                std::initializer_list<QueryWord> others = {});
// Whose shared memory a request of theirs may use.
api::MemoryAccess access_of(const Services& services, const api::RequestContext& context);
// Deadline and request id from the headers.
Result<api::RequestContext> context_of(const Services& services, const Request& request);

}  // namespace oar::http
