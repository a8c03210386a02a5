// /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize.
#include <algorithm>
#include <ctime>

#include "engine/base/format.h"
#include "server/api/json_writer.h"
#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

// What OpenAI's clients may name: language models and encoders.
bool is_listed(const api::ServedModel& model) {
  return model.kind() == api::ModelKind::kLanguage || model.kind() == api::ModelKind::kEncoder;
}

void append_model(api::JsonWriter& w, const api::ServedModel& model, int64_t created) {
  w.begin_object();
  w.key("id").string(model.name()).key("object").string("model").key("created").number(created);
  w.key("owned_by").string("oar").key("root").string(model.name()).key("parent");
  w.string_or_null(model.language ? model.language->parent : std::string());
  w.key("max_model_len")
      .number(model.language ? model.language->engine->request_limits().max_context
                             : model.tensor->encoder->info().max_tokens);
  w.end_object();
}

// One that a request would load.
void append_loadable(api::JsonWriter& w, const std::string& name, int64_t created) {
  w.begin_object();
  w.key("id").string(name).key("object").string("model").key("created").number(created);
  w.key("owned_by").string("oar").key("root").string(name).key("parent").null().end_object();
}

}  // namespace

void add_openai_routes(Router& router, const Services& services) {
  router.add("POST", "/v1/chat/completions", generation_route(services, &api::Frontend::prepare_chat));
  router.add("POST", "/v1/completions", generation_route(services, &api::Frontend::prepare_completion));
  router.add("POST", "/tokenize", json_route(services, &api::Frontend::tokenize_json));
  router.add("POST", "/detokenize", json_route(services, &api::Frontend::detokenize_json));

  const auto created = static_cast<int64_t>(std::time(nullptr));
  router.add("GET", "/v1/models", [&services, created](Request&&, WriterPtr writer) {
    std::string out;
    api::JsonWriter w(out);
    w.begin_object().key("object").string("list").key("data").begin_array();
    std::string last;  // of several versions of a model one is listed
    for (const api::ServedModel& m : services.catalog->loaded()) {
      if (!is_listed(m) || m.name() == last) continue;
      append_model(w, m, created);
      for (const ModelHandlePtr& adapter : api::ModelCatalog::adapters_of(m))
        append_model(w, {adapter, nullptr}, created);
      last = m.name();
    }
    for (const std::string& name : services.catalog->loadable()) append_loadable(w, name, created);
    w.end_array().end_object();
    writer->send(json_answer(std::move(out)));
  });
  router.add("GET", "/v1/models/{id*}", [&services, created](Request&& request, WriterPtr writer) {
    std::string out;
    api::JsonWriter w(out);
    const Result<api::ServedModel> model = services.catalog->find(request.params[0], {});
    const auto others = services.catalog->loadable();
    if (!model.ok() && std::find(others.begin(), others.end(), request.params[0]) != others.end()) {
      append_loadable(w, request.params[0], created);
      return writer->send(json_answer(std::move(out)));
    }
    if (!model.ok() || !is_listed(*model)) {
      const Status why = model.ok() ? Status(StatusCode::kNotFound,
                                             cat("the model ", request.params[0],
                                                 " takes tensors; GET /v2/models/", request.params[0]),
                                             "model")
                                    : model.status();
      return writer->send(error_answer(request.path, why));
    }
    append_model(w, *model, created);
    writer->send(json_answer(std::move(out)));
  });
}

}  // namespace oar::http
