// The Open Inference Protocol over REST: server and model metadata, readiness, and for language models
// generate and generate_stream. Tensors (infer) are tensor_routes.cc's.
#include "engine/base/format.h"
#include "server/api/json_writer.h"
#include "server/api/oip_request.h"
#include "server/api/tensor_json.h"
#include "server/api/version.h"
#include "server/http/routes.h"

namespace oar::http {
namespace {

using api::Generation;
using WriterPtr = std::shared_ptr<ResponseWriter>;

// The answer to generate or generate_stream; touched by the connection's thread only.
struct Answer {
  std::string id, model;
  bool streaming = false;
  std::string prefix;  // the input, when it is to be repeated before the output
  WriterPtr writer;
  std::string text = {};
  bool opened = false, closed = false;

  std::string document(std::string_view output) const {
    std::string out;
    api::JsonWriter w(out);
    w.begin_object();
    if (!id.empty()) w.key("id").string(id);
    w.key("model_name").string(model).key("model_version").string("1").key("text_output").string(output);
    w.end_object();
    return out;
  }
  void open_stream() {
    if (!streaming || opened) return;
    opened = true;
    writer->start_stream({200, "text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}}, ""});
  }
  void on_event(const TextEvent& event) {
    if (closed) return;
    const bool last = event.finish != FinishReason::kNone;
    const Status failure = api::failure_of(event);
    closed = last;
    if (!streaming) {
      text += event.text;
      if (last)
        writer->send(failure.ok() ? json_answer(document(prefix + text)) : error_answer("/v2", failure));
      return;
    }
    open_stream();
    if (!failure.ok()) {
      Response error = error_answer("/v2", failure);
      writer->write(cat("data: ", error.body, "\n\n"));
    } else if (!event.text.empty()) {
      writer->write(cat("data: ", document(event.text), "\n\n"));
    }
    if (last) writer->finish();
  }
};

Status start_generation(const Services& services, const Request& request, bool stream,
                        const WriterPtr& writer) {
  OAR_ASSIGN(const ModelHandle* model, services.frontend->find(request.params[0]));
  OAR_ASSIGN(const api::RequestContext context, context_of(request));
  OAR_ASSIGN(const json::object body, api::parse_body(request.body));
  OAR_ASSIGN(const api::OipTextRequest parsed, api::parse_generate_body(body, stream));
  OAR_ASSIGN(api::GenerationSpec spec,
             services.frontend->prepare_text(*model, parsed.text, parsed.fields, context));
  if (spec.params.n != 1)
    return invalid_argument("n must be 1 here; /v1/completions offers several choices", "n");
  auto answer = std::make_shared<Answer>(
      Answer{parsed.id, model->name, stream, parsed.prepends_input() ? parsed.text : "", writer});
  OAR_ASSIGN(const std::shared_ptr<Generation> generation,
             Generation::start(
                 std::move(spec), [writer](api::Job job) { writer->post(std::move(job)); },
                 [answer](Generation&, int32_t, TextEvent&& event) { answer->on_event(event); }));
  writer->post([answer] { answer->open_stream(); });
  writer->on_disconnect([generation] { generation->cancel(); });
  return ok_status();
}

Handler generate(const Services& services, bool stream) {
  return [&services, stream](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    services.workers->post([&services, stream, shared, writer = std::move(writer)] {
      const Status s = start_generation(services, *shared, stream, writer);
      if (!s.ok()) writer->send(error_answer(shared->path, s));
    });
  };
}

// Metadata and readiness of either kind of model.
void metadata(const Services& services, Request&& request, const WriterPtr& writer) {
  const std::string& name = request.params[0];
  const std::string version = request.params.size() > 1 ? request.params[1] : std::string();
  if (!services.tensors->has(name)) {
    const Result<const ModelHandle*> model = services.frontend->find(name);
    return writer->send(model.ok() ? json_answer(api::metadata_json(**model))
                                   : error_answer(request.path, model.status()));
  }
  const Result<api::TensorModelPtr> model = services.tensors->find(name, version);
  writer->send(model.ok() ? json_answer(api::metadata_json(
                                (*model)->config, api::versions_of(services.tensors->loaded(), name)))
                          : error_answer(request.path, model.status()));
}

void readiness(const Services& services, Request&& request, const WriterPtr& writer) {
  const std::string& name = request.params[0];
  const std::string version = request.params.size() > 1 ? request.params[1] : std::string();
  Status status;
  bool ready = services.frontend->accepting();
  if (services.tensors->has(name)) {
    status = services.tensors->find(name, version).status();
    if (status.code() == StatusCode::kUnavailable) ready = false, status = ok_status();
  } else {
    const Result<const ModelHandle*> model = services.frontend->find(name);
    status = model.status();
    if (model.ok()) ready = ready && api::Frontend::ready(**model);
  }
  writer->send(status.ok() ? Response{ready ? 200 : 503, "", {}, ""} : error_answer(request.path, status));
}

}  // namespace

void add_oip_routes(Router& router, const Services& services) {
  router.add("GET", "/v2", [](Request&&, WriterPtr writer) {
    std::string out;
    api::JsonWriter w(out);
    w.begin_object()
        .key("name")
        .string("oar")
        .key("version")
        .string(api::kVersion)
        .key("extensions")
        .begin_array();
    for (const char* extension : {"generate", "parameters", "statistics", "model_configuration",
                                  "model_repository", "binary_tensor_data", "schedule_policy"}) {
      w.string(extension);
    }
    w.end_array().end_object();
    writer->send(json_answer(std::move(out)));
  });
  for (const std::string model : {"/v2/models/{model}", "/v2/models/{model}/versions/{version}"}) {
    router.add("GET", model, [&services](Request&& request, WriterPtr writer) {
      metadata(services, std::move(request), writer);
    });
    router.add("GET", model + "/ready", [&services](Request&& request, WriterPtr writer) {
      readiness(services, std::move(request), writer);
    });
    router.add("POST", model + "/generate", generate(services, false));
    router.add("POST", model + "/generate_stream", generate(services, true));
  }
}

}  // namespace oar::http
