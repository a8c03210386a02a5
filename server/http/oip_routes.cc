// The Open Inference Protocol over REST: what there is to ask about the server and its models, and for
// language models generate and generate_stream. Tensors (infer) are tensor_routes.cc's.
#include "engine/base/format.h"
#include "server/api/fields.h"
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
  std::string id;
  ModelHandlePtr model;
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
    w.key("model_name")
        .string(model->name)
        .key("model_version")
        .string(model->version)
        .key("text_output")
        .string(output);
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

struct Prepared {
  api::OipTextRequest parsed;
  ModelHandlePtr model;
  api::GenerationSpec spec;
};
Result<Prepared> prepare(const Services& services, const Request& request, bool stream,
                         const api::RequestContext& context) {
  services.frontend->wait_for_model(request.params[0], std::nullopt);
  OAR_ASSIGN(const api::ServedModel served, services.models->find(request.params[0], version_in(request)));
  const ModelHandlePtr& model = served.language;
  if (model == nullptr)
    return unimplemented(cat("the model ", request.params[0], " takes tensors: POST to infer"));
  OAR_ASSIGN(const json::object body, api::parse_body(request.body));
  OAR_ASSIGN(api::OipTextRequest parsed, api::parse_generate_body(body, stream));
  OAR_ASSIGN(api::GenerationRequest wanted,
             api::text_generation(parsed, *model, services.frontend->limits()));
  OAR_ASSIGN(api::GenerationSpec spec, services.frontend->prepare(model, std::move(wanted), context));
  return Prepared{std::move(parsed), model, std::move(spec)};
}

Status start_generation(const Services& services, const Request& request, bool stream,
                        const WriterPtr& writer) {
  OAR_ASSIGN(api::RequestContext context, context_of(services, request));
  context.gone = watch_leaving(*writer);
  Result<Prepared> made = prepare(services, request, stream, context);
  if (!made.ok()) return services.frontend->refused(made.status(), request.params[0], context);
  const api::OipTextRequest& parsed = made->parsed;
  auto answer = std::make_shared<Answer>(
      Answer{parsed.id, made->model, stream, parsed.prepends_input() ? parsed.text : "", writer});
  OAR_ASSIGN(const std::shared_ptr<Generation> generation,
             Generation::start(
                 std::move(made->spec), [writer](api::Job job) { writer->post(std::move(job)); },
                 [answer](Generation&, int32_t, TextEvent&& event) { answer->on_event(event); },
                 reads_along(stream, writer)));
  writer->post([answer] { answer->open_stream(); });
  writer->on_drain([generation] { generation->wake(); });
  writer->on_disconnect([generation] { generation->cancel(api::caller_left()); });
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

// The body of a question for the index, which may be empty.
Result<bool> asks_for_ready_only(const Request& request) {
  bool ready = false;
  if (request.body.empty()) return ready;
  const Result<json::object> body = api::parse_body(request.body);
  if (!body.ok())
    return invalid_argument(
        cat("Invalid value for 'ready': expected a boolean, or no body; ", body.status().message()), "ready");
  api::Fields f(*body);
  f.boolean("ready", ready);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return ready;
}

// What there is to ask about a model of either kind, written by `write`.
template <class Ask, class Write>
Handler about(Ask ask, Write write) {
  return [ask, write](Request&& request, WriterPtr writer) {
    const auto answer = ask(request.params[0], version_in(request));
    writer->send(answer.ok() ? write(*answer) : error_answer(request.path, answer.status()));
  };
}

}  // namespace

std::string version_in(const Request& request) {
  return request.params.size() > 1 ? request.params[1] : std::string();
}

void add_oip_routes(Router& router, const Services& services) {
  // Before the patterns that would take "stats" for a model's name.
  router.add("GET", "/v2/models/stats", [&services](Request&&, WriterPtr writer) {
    writer->send(json_answer(api::statistics_json(*services.models->statistics({}, {}))));
  });
  router.add("POST", "/v2/repository/index", [&services](Request&& request, WriterPtr writer) {
    const auto ready_only = asks_for_ready_only(request);
    writer->send(ready_only.ok() ? json_answer(api::index_json(services.catalog->index(*ready_only)))
                                 : error_answer(request.path, ready_only.status()));
  });
  router.add("GET", "/v2", [&services](Request&&, WriterPtr writer) {
    std::string out;
    api::JsonWriter w(out);
    w.begin_object()
        .key("name")
        .string(services.owner)
        .key("version")
        .string(api::kVersion)
        .key("extensions")
        .begin_array();
    w.string("generate");
    for (const char* extension : api::kExtensions) w.string(extension);
    if (services.memory->enabled()) w.string(api::kMemoryExtension);
    w.end_array().end_object();
    writer->send(json_answer(std::move(out)));
  });
  for (const std::string model : {"/v2/models/{model}", "/v2/models/{model}/versions/{version}"}) {
    const auto asks = [&services](auto method) {
      return [&services, method](const std::string& name, const std::string& version) {
        return (services.models->*method)(name, version);
      };
    };
    const auto as_json = [](auto write) {
      return [write](const auto& answer) { return json_answer(write(answer)); };
    };
    router.add("GET", model, about(asks(&api::ServedModels::metadata), as_json(api::metadata_json)));
    router.add("GET", model + "/ready", about(asks(&api::ServedModels::ready), [](bool ready) {
                 return Response{ready ? 200 : 503, "", {}, ""};
               }));
    router.add("GET", model + "/config", about(asks(&api::ServedModels::config), as_json(api::config_json)));
    router.add("GET", model + "/stats",
               about(asks(&api::ServedModels::statistics), as_json(api::statistics_json)));
    router.add("POST", model + "/generate", generate(services, false));
    router.add("POST", model + "/generate_stream", generate(services, true));
  }
}

}  // namespace oar::http
