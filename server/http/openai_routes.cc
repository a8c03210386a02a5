// /v1/chat/completions, /v1/completions, /v1/decisions, /v1/models, /tokenize, /detokenize.
#include <algorithm>
#include <ctime>

#include "engine/base/format.h"
#include "server/api/fields.h"
#include "server/api/json_writer.h"
#include "server/api/tensor_wire.h"
#include "server/api/utc_text.h"
#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

// What OpenAI's clients may name: language models and encoders.
bool is_listed(const api::ServedModel& model) {
  return model.kind() == api::ModelKind::kLanguage || model.kind() == api::ModelKind::kEncoder;
}

void write_texts(api::JsonWriter& w, const char* key, const std::vector<std::string>& texts) {
  if (texts.empty()) return;
  w.key(key).begin_array();
  for (const std::string& text : texts) w.string(text);
  w.end_array();
}

void write_further_names(api::JsonWriter& w, const std::string& name, const api::ModelCatalog& catalog) {
  if (name != catalog.renamed()) return;
  write_texts(w, "aliases", catalog.aliases());
  write_texts(w, "tags", catalog.tags());
}

// Of an adapter its folder, as vLLM has it, where clients may know it.
std::string root_of(const api::ServedModel& model, const Services& services) {
  if (!services.adapter_paths || !model.language || model.language->parent.empty() ||
      !model.language->adapters)
    return model.name();
  for (const AdapterInfo& info : model.language->adapters->list())
    if (info.name == model.name()) return info.path;
  return model.name();
}

void append_model(api::JsonWriter& w, const api::ServedModel& model, int64_t created,
                  const Services& services) {
  w.begin_object();
  w.key("id").string(model.name()).key("object").string("model").key("created").number(created);
  w.key("owned_by").string(services.owner).key("root");
  w.string(root_of(model, services)).key("parent");
  w.string_or_null(model.language ? model.language->parent : std::string());
  if (is_listed(model))
    w.key("max_model_len")
        .number(model.language ? model.language->engine->request_limits().max_context
                               : model.tensor->encoder->info().max_tokens);
  write_further_names(w, model.name(), *services.catalog);
  w.end_object();
}

// Anthropic's clients ask under the same path, and say who they are.
bool is_anthropic(const Request& request) { return request.has_header("anthropic-version"); }

void append_anthropic_model(api::JsonWriter& w, const std::string& name, int64_t created) {
  w.begin_object().key("type").string("model").key("id").string(name).key("display_name").string(name);
  const auto since = std::chrono::system_clock::from_time_t(static_cast<std::time_t>(created));
  w.key("created_at").string(api::utc_text(since)).end_object();
}

std::string anthropic_models(const api::ModelCatalog& catalog, int64_t created) {
  std::vector<std::string> names = catalog.loadable();
  for (const api::ServedModel& m : catalog.loaded()) {
    if (!is_listed(m)) continue;
    names.push_back(m.name());
    for (const ModelHandlePtr& adapter : api::ModelCatalog::adapters_of(m)) names.push_back(adapter->name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string out;
  api::JsonWriter w(out);
  w.begin_object().key("data").begin_array();
  for (const std::string& name : names) append_anthropic_model(w, name, created);
  w.end_array().key("has_more").boolean(false);
  w.key("first_id").string_or_null(names.empty() ? std::string() : names.front());
  w.key("last_id").string_or_null(names.empty() ? std::string() : names.back()).end_object();
  return out;
}

// One that a request would load, or wake.
void append_loadable(api::JsonWriter& w, const std::string& name, int64_t created, const Services& services) {
  const api::ModelCatalog& catalog = *services.catalog;
  w.begin_object();
  w.key("id").string(name).key("object").string("model").key("created").number(created);
  w.key("owned_by").string(services.owner).key("root").string(name).key("parent").null();
  if (const auto asleep = catalog.sleeper(name)) w.key("max_model_len").number(asleep->max_context);
  write_further_names(w, name, catalog);
  w.end_object();
}

// Triton's names for what /v2/repository does: models come and go by their names. `work` makes the answer.
template <class F>
void add_control(Router& router, const Services& services, const char* path, F work) {
  const auto handler = [&services, work](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    services.loaders->post([&services, work, shared, writer = std::move(writer)] {
      const auto made = [&]() -> Result<std::string> {
        if (!services.control.enabled) return api::model_control_off();
        if (!shared->body.empty()) {
          OAR_ASSIGN(const json::object body, api::parse_body(shared->body));
          api::Fields f(body);
          f.refuse_rest();
          if (!f.ok()) return f.status();
        }
        return work(shared->params[0]);
      }();
      writer->send(made.ok() ? json_answer(*made) : error_answer(shared->path, made.status()));
    });
  };
  router.add("POST", path, handler, Access::kAdmin);
}

Status loaded_or_not(const char* word, const std::string& name, const char* remedy) {
  return {StatusCode::kFailedPrecondition,
          cat("the model ", api::in_quotes(name), " is ", word, "; ", remedy), "model"};
}

void add_control_routes(Router& router, const Services& services, int64_t created) {
  add_control(router, services, "/v1/models/{model}/load",
              [&services, created](const std::string& name) -> Result<std::string> {
                api::ModelCatalog& catalog = *services.catalog;
                if (catalog.find(name, {}).ok())
                  return loaded_or_not("already loaded", name,
                                       "POST /v2/repository/models/NAME/load loads it again");
                if (const Status s = catalog.load(name, {}); !s.ok())
                  return Status(s.code(), s.message(), "model");
                OAR_ASSIGN(const api::ServedModel model, catalog.find(name, {}));
                std::string out;
                api::JsonWriter w(out);
                append_model(w, model, created, services);
                return out;
              });
  add_control(router, services, "/v1/models/{model}/unload",
              [&services](const std::string& name) -> Result<std::string> {
                const auto found = services.catalog->find(name, {});
                if (found.status().code() == StatusCode::kUnavailable)
                  return loaded_or_not("not loaded", name, "a model has to be there to be unloaded");
                if (!found.ok()) return found.status();
                OAR_RETURN_IF_ERROR(services.catalog->unload(name));
                std::string out;
                api::JsonWriter w(out);
                w.begin_object().key("status").string("success").key("model").string(name).end_object();
                return out;
              });
}

}  // namespace

void add_openai_routes(Router& router, const Services& services) {
  router.add("POST", "/v1/chat/completions", generation_route(services, &api::Frontend::prepare_chat));
  router.add("POST", "/v1/completions", generation_route(services, &api::Frontend::prepare_completion));
  router.add("POST", "/v1/decisions", generation_route(services, &api::Frontend::prepare_decisions));
  router.add("POST", "/v1/chat/completions/input_tokens",
             json_route(services, &api::Frontend::count_chat_tokens));
  router.add("POST", "/tokenize", json_route(services, &api::Frontend::tokenize_json));
  router.add("POST", "/detokenize", json_route(services, &api::Frontend::detokenize_json));

  router.add("POST", "/invocations", generation_route(services, &api::Frontend::prepare_invocation));
  router.add(
      "GET", "/ping",
      [&services](Request&&, WriterPtr writer) {
        writer->send(Response{services.frontend->ready() ? 200 : 503, "", {}, ""});
      },
      Access::kOpen, true);
  // vLLM's: how many requests are being answered.
  router.add("GET", "/load", [&services](Request&&, WriterPtr writer) {
    writer->send(json_answer(cat(R"({"server_load":)", services.frontend->running().count(), "}")));
  });

  const auto created = static_cast<int64_t>(std::time(nullptr));
  router.add("GET", "/v1/models", [&services, created](Request&& request, WriterPtr writer) {
    if (is_anthropic(request)) return writer->send(json_answer(anthropic_models(*services.catalog, created)));
    std::string out;
    api::JsonWriter w(out);
    w.begin_object().key("object").string("list").key("data").begin_array();
    std::string last;  // of several versions of a model one is listed
    for (const api::ServedModel& m : services.catalog->loaded()) {
      if (!is_listed(m) || m.name() == last) continue;
      append_model(w, m, created, services);
      for (const ModelHandlePtr& adapter : api::ModelCatalog::adapters_of(m))
        append_model(w, {adapter, nullptr}, created, services);
      last = m.name();
    }
    for (const std::string& name : services.catalog->loadable()) append_loadable(w, name, created, services);
    w.end_array().end_object();
    writer->send(json_answer(std::move(out)));
  });
  add_control_routes(router, services, created);
  router.add("GET", "/v1/models/{id*}", [&services, created](Request&& request, WriterPtr writer) {
    std::string out;
    api::JsonWriter w(out);
    const Result<api::ServedModel> model = services.catalog->find(request.params[0], {});
    const auto others = services.catalog->loadable();
    if (!model.ok() && std::find(others.begin(), others.end(), request.params[0]) != others.end()) {
      append_loadable(w, request.params[0], created, services);
      return writer->send(json_answer(std::move(out)));
    }
    if (!model.ok() || !is_listed(*model)) {
      const Status why = model.ok() ? Status(StatusCode::kNotFound,
                                             cat("the model ", request.params[0],
                                                 " takes tensors; GET /v2/models/", request.params[0]),
                                             "model")
                                    // One that is not listed is not there, whatever a request for it says.
                                    : Status(StatusCode::kNotFound, model.status().message(), "model");
      return writer->send(error_answer(request.path, why));
    }
    if (is_anthropic(request)) append_anthropic_model(w, model->name(), created);
    else append_model(w, *model, created, services);
    writer->send(json_answer(std::move(out)));
  });
}

}  // namespace oar::http
