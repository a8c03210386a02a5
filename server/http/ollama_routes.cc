// Ollama's endpoints but for the embeddings (embedding_routes.cc). Those that would change which models there
// are answer what to do instead.
#include "engine/base/format.h"
#include "server/api/json_writer.h"
#include "server/api/ollama_models.h"
#include "server/api/version.h"
#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

bool is_shown(const api::ServedModel& m) { return m.language || m.kind() == api::ModelKind::kEncoder; }

Result<std::string> show(const Services& services, const Request& request) {
  OAR_ASSIGN(const json::object body, api::parse_body(request.body));
  OAR_ASSIGN(const api::OllamaShowRequest asked, api::parse_ollama_show(body));
  if (asked.model.empty()) return invalid_argument("model is missing; name one of /api/tags", "model");
  OAR_ASSIGN(const api::ServedModel model, services.catalog->find(asked.model, {}));
  if (!is_shown(model))
    return Status(StatusCode::kNotFound,
                  cat("the model ", asked.model, " takes tensors; GET /v2/models/", asked.model), "model");
  return api::ollama_show(model, asked);
}

}  // namespace

void add_ollama_routes(Router& router, const Services& services) {
  router.add("POST", "/api/chat", generation_route(services, &api::Frontend::prepare_ollama_chat));
  router.add("POST", "/api/generate", generation_route(services, &api::Frontend::prepare_ollama_generate));
  for (const bool running : {false, true})
    router.add("GET", running ? "/api/ps" : "/api/tags", [&services, running](Request&&, WriterPtr writer) {
      writer->send(json_answer(api::ollama_list(services.catalog->loaded(), running)));
    });
  router.add("POST", "/api/show", [&services](Request&& request, WriterPtr writer) {
    Result<std::string> answer = show(services, request);
    writer->send(answer.ok() ? json_answer(std::move(*answer)) : error_answer(request.path, answer.status()));
  });
  router.add("GET", "/api/version", [](Request&&, WriterPtr writer) {
    std::string out;
    api::JsonWriter w(out);
    w.begin_object().key("version").string(api::kVersion).end_object();
    writer->send(json_answer(std::move(out)));
  });

  const auto refuse = [&router](const char* method, const char* path, const char* remedy) {
    router.add(method, path, [method, remedy](Request&& request, WriterPtr writer) {
      writer->send(error_answer(
          request.path, unimplemented(cat(method, " ", request.path, " is not offered here; ", remedy))));
    });
  };
  constexpr const char* kFiles =
      "put its files into the folder that `oar serve` was given, and load it by /v2/repository";
  refuse("POST", "/api/pull", kFiles);
  refuse("POST", "/api/create", kFiles);
  refuse("POST", "/api/copy", kFiles);
  refuse("POST", "/api/push", "the server sends no models anywhere");
  refuse("DELETE", "/api/delete", "POST to /v2/repository/models/{model}/unload; files are left alone");
  refuse("POST", "/api/blobs/{digest}", kFiles);
}

}  // namespace oar::http
