// The Open Inference Protocol over REST: infer, load and unload.
#include <charconv>

#include "engine/base/format.h"
#include "server/api/classification.h"
#include "server/api/fields.h"
#include "server/api/repository_load.h"
#include "server/api/tensor_json.h"
#include "server/api/text_infer.h"
#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

Result<std::optional<size_t>> json_length(const Request& request) {
  const std::string_view text = trim(request.header("Inference-Header-Content-Length"));
  if (!request.has_header("Inference-Header-Content-Length")) return std::optional<size_t>();
  size_t length = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), length);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return invalid_argument("the header Inference-Header-Content-Length must be a number of bytes",
                            "Inference-Header-Content-Length");
  }
  return std::optional<size_t>(length);
}

Response tensor_answer(Result<api::JsonInferAnswer> answer) {
  if (!answer.ok()) return error_answer("/v2", answer.status());
  Response r = json_answer(std::move(answer->body));
  if (answer->json_bytes) {
    r.content_type = "application/octet-stream";
    r.headers.push_back({"Inference-Header-Content-Length", cat(*answer->json_bytes)});
  }
  return r;
}

Response infer_answer(const api::TensorModelConfig& config, const api::JsonInferRequest& request,
                      const Result<std::vector<Datum>>& results, const std::vector<size_t>& wanted) {
  if (!results.ok()) return error_answer("/v2", results.status());
  return tensor_answer(api::write_infer_body(config, request, *results, wanted));
}

// Of a language model: text_input and its kin in, text_output out.
Status start_text_infer(const Services& services, const ModelHandlePtr& model,
                        const std::shared_ptr<Request>& request, const WriterPtr& writer) {
  OAR_ASSIGN(const api::TensorModelConfig config, services.models->config(model->name, model->version));
  OAR_ASSIGN(api::RequestContext context, context_of(services, *request));
  context.gone = watch_leaving(*writer);
  api::JsonInferRequest parsed;
  api::OipTextRequest asked;
  api::GenerationSpec spec;
  const auto prepare = [&]() -> Status {
    OAR_ASSIGN(const std::optional<size_t> length, json_length(*request));
    OAR_ASSIGN(parsed,
               api::parse_infer_body(config, request->body, length, request, access_of(services, context)));
    OAR_ASSIGN(asked, api::read_text_infer(config, parsed));
    OAR_ASSIGN(api::GenerationRequest wanted,
               api::text_generation(asked, *model, services.frontend->limits()));
    OAR_ASSIGN(spec, services.frontend->prepare(model, std::move(wanted), context));
    return ok_status();
  };
  if (Status s = prepare(); !s.ok()) return services.frontend->refused(std::move(s), model->name, context);
  auto text = std::make_shared<std::string>(asked.prepends_input() ? asked.text : "");
  OAR_ASSIGN(
      const std::shared_ptr<api::Generation> generation,
      api::Generation::start(
          std::move(spec), [writer](api::Job job) { writer->post(std::move(job)); },
          [text, writer, config, parsed = std::move(parsed)](api::Generation&, int32_t, TextEvent&& event) {
            *text += event.text;
            if (event.finish == FinishReason::kNone) return;
            const Status failure = api::failure_of(event);
            writer->send(failure.ok() ? tensor_answer(api::write_text_infer(config, parsed, *text))
                                      : error_answer("/v2", failure));
          }));
  writer->on_disconnect([generation] { generation->cancel(api::caller_left()); });
  return ok_status();
}

Status start_infer(const Services& services, const std::shared_ptr<Request>& request,
                   const WriterPtr& writer) {
  OAR_ASSIGN(const api::RequestContext asked, context_of(services, *request));
  services.frontend->wait_for_model(request->params[0], asked.deadline);
  OAR_ASSIGN(const api::ServedModel served, services.models->find(request->params[0], version_in(*request)));
  const api::TensorModelPtr model = served.tensor;
  if (model == nullptr) return start_text_infer(services, served.language, request, writer);
  OAR_ASSIGN(const api::RequestContext context, context_of(services, *request));
  OAR_ASSIGN(api::AdmissionPtr admission, services.frontend->admit(context));
  OAR_ASSIGN(const std::optional<size_t> length, json_length(*request));
  OAR_ASSIGN(api::JsonInferRequest parsed, api::parse_infer_body(model->config, request->body, length,
                                                                 request, access_of(services, context)));
  std::vector<std::string> names;
  std::vector<int64_t> classes;
  for (const auto& o : parsed.outputs) {
    names.push_back(o.name);
    classes.push_back(o.classification);
  }
  OAR_ASSIGN(std::vector<size_t> wanted, api::select_outputs(model->config, names));
  OAR_ASSIGN(InferJob job, api::make_job(model->config, std::move(parsed.inputs)));
  parsed.inputs.clear();
  job.deadline = api::queue_deadline(model->config, context.deadline, parsed.timeout_us);
  job.end_by = context.deadline;
  job.id = parsed.id.empty() ? context.id : parsed.id;
  job.trace = context.trace;
  auto answer = [model, writer, admission = std::move(admission), parsed = std::move(parsed),
                 wanted = std::move(wanted),
                 classes = std::move(classes)](Result<std::vector<Datum>> results) {
    if (results.ok()) {
      if (const Status s = api::classify(model->config, wanted, classes, *results); !s.ok()) results = s;
    }
    writer->send(infer_answer(model->config, parsed, results, wanted));
  };
  // Numbers in JSON are not for the model's thread to write.
  job.done = [workers = services.workers->executor(),
              answer = std::move(answer)](Result<std::vector<Datum>> results) {
    workers([answer, results = std::move(results)] { answer(results); });
  };
  OAR_ASSIGN(const uint64_t ticket, model->runner->submit(std::move(job)));
  writer->on_disconnect([model, ticket] { model->runner->cancel(ticket); });
  return ok_status();
}

// On a worker thread; what it returns other than OK is the answer.
template <class F>
Handler on_worker(api::WorkerPool* workers, F work) {
  return [workers, work](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    workers->post([work, shared, writer = std::move(writer)] {
      const Status s = work(shared, writer);
      if (!s.ok()) writer->send(error_answer(shared->path, s));
    });
  };
}

// The body of a load or unload, which may be empty.
Result<api::RepositoryLoad> read_control(const Request& request, bool loads) {
  api::RepositoryLoad out;
  if (request.body.empty()) return out;
  OAR_ASSIGN(const json::object body, api::parse_body(request.body));
  api::Fields f(body);
  const json::object* given = f.object("parameters");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  for (const auto& p : given ? *given : json::object()) {
    std::string text;
    if (p.value().is_string()) text = std::string(p.value().get_string());
    OAR_RETURN_IF_ERROR(api::read_parameter(p.key(), p.value().is_string() ? &text : nullptr,
                                            p.value().if_bool(), loads, out));
  }
  return out;
}

// The body of a load or unload of an adapter.
struct AdapterFields {
  std::string name, path, base;
};
Result<AdapterFields> read_adapter(const Request& request, bool loads) {
  OAR_ASSIGN(const json::object body, api::parse_body(request.body));
  AdapterFields out;
  api::Fields f(body);
  f.string("lora_name", out.name, api::kMaxAdapterName);
  if (loads) {
    f.string("lora_path", out.path, api::kMaxAdapterPath);
    f.string("base_model_name", out.base, api::kMaxAdapterName);
    bool in_place = false;  // vLLM's: over one of the same name
    f.boolean("load_inplace", in_place);
    if (in_place) f.fail("load_inplace", "load_inplace is not supported; unload the adapter first");
  } else {
    int64_t id = 0;  // vLLM's own number of it; the name says which
    f.integer("lora_int_id", id, INT32_MIN, INT32_MAX);
  }
  f.refuse_rest();
  if (!f.ok()) return f.status();
  if (out.name.empty()) return invalid_argument("lora_name is missing; name the adapter", "lora_name");
  if (loads && out.path.empty())
    return invalid_argument("lora_path is missing; give the adapter's folder", "lora_path");
  return out;
}

}  // namespace

void add_tensor_routes(Router& router, const Services& services) {
  const auto control = [&](const char* path, auto work) {
    router.add("POST", path,
               on_worker(services.loaders,
                         [&services, work](const std::shared_ptr<Request>& request,
                                           const WriterPtr& writer) -> Status {
                           if (!services.control.enabled) return api::model_control_off();
                           OAR_RETURN_IF_ERROR(work(*request));
                           writer->send(json_answer("{}"));
                           return ok_status();
                         }),
               Access::kAdmin);
  };
  control("/v2/repository/models/{model}/load", [&services](const Request& request) -> Status {
    OAR_ASSIGN(const api::RepositoryLoad asked, read_control(request, true));
    return api::load_as_asked(*services.catalog, request.params[0], asked);
  });
  control("/v2/repository/models/{model}/unload", [&services](const Request& request) -> Status {
    OAR_ASSIGN(const api::RepositoryLoad asked, read_control(request, false));
    return services.catalog->unload(request.params[0], asked.dependents);
  });
  // vLLM's names. Its levels say where weights stay; here files are mapped, and both mean the same.
  control("/sleep", [&services](const Request& request) -> Status {
    if (!request.query.empty() && request.query != "level=1" && request.query != "level=2")
      return invalid_argument(cat("'", request.query, "' is not read here; give level=1 or level=2"),
                              "level");
    return services.catalog->sleep();
  });
  control("/wake_up", [&services](const Request& request) -> Status {
    if (!request.query.empty())
      return invalid_argument(cat("'", request.query, "' is not read here; models wake as a whole"), "tags");
    return services.catalog->wake();
  });
  router.add("GET", "/is_sleeping", [&services](Request&&, WriterPtr writer) {
    const bool asleep = services.catalog->asleep() || services.catalog->sleeper({});
    writer->send(json_answer(cat("{\"is_sleeping\":", asleep ? "true" : "false", "}")));
  });
  // Adapters, by vLLM's routes and fields.
  control("/v1/load_lora_adapter", [&services](const Request& request) -> Status {
    OAR_ASSIGN(const AdapterFields f, read_adapter(request, true));
    return services.catalog->load_adapter(f.name, f.path, f.base);
  });
  control("/v1/unload_lora_adapter", [&services](const Request& request) -> Status {
    OAR_ASSIGN(const AdapterFields f, read_adapter(request, false));
    return services.catalog->unload_adapter(f.name);
  });
  for (const std::string model : {"/v2/models/{model}", "/v2/models/{model}/versions/{version}"}) {
    router.add("POST", model + "/infer",
               on_worker(services.workers,
                         [&services](const std::shared_ptr<Request>& request, const WriterPtr& writer) {
                           return start_infer(services, request, writer);
                         }));
  }
}

}  // namespace oar::http
