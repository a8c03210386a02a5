// The native endpoints of llama.cpp's server. /health and /metrics are routes.cc's, /tokenize and /detokenize
// openai_routes.cc's.
#include "engine/base/format.h"
#include "server/api/llama_answer.h"
#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

// What there is to say of a language model: of `?model=`, or of the only one. Neither wakes it.
using Say = Result<std::string> (*)(const api::ModelCatalog& catalog, const std::string& name);
Handler about_model(const Services& services, Say say) {
  return [&services, say](Request&& request, WriterPtr writer) {
    const auto answer = [&]() -> Result<std::string> {
      constexpr std::string_view kModel = "model=";
      std::string name;
      if (!request.query.empty() &&
          (!request.query.starts_with(kModel) ||
           !percent_decode(std::string_view(request.query).substr(kModel.size()), name)))
        return invalid_argument(cat("'", request.query, "' is not read here; use model=NAME"), "query");
      return say(*services.catalog, name);
    }();
    writer->send(answer.ok() ? json_answer(*answer) : error_answer(request.path, answer.status()));
  };
}

Result<std::string> props_of(const api::ModelCatalog& catalog, const std::string& name) {
  const auto asleep = catalog.sleeper(name);
  if (asleep && !asleep->encodes) return api::llama_props(*asleep);
  OAR_ASSIGN(const ModelHandlePtr model, catalog.find_language(name));
  return api::llama_props(api::card_of(*model));
}

Result<std::string> slots_of(const api::ModelCatalog& catalog, const std::string& name) {
  OAR_ASSIGN(const ModelHandlePtr model, catalog.find_language(name));
  return api::llama_slots(*model);
}

Handler refuse(const char* why) {
  return [why](Request&& request, WriterPtr writer) {
    writer->send(error_answer(request.path, unimplemented(cat("POST ", request.path, ": ", why))));
  };
}

}  // namespace

void add_llama_routes(Router& router, const Services& services) {
  for (const char* path : {"/completion", "/completions"})
    router.add("POST", path, generation_route(services, &api::Frontend::prepare_llama_completion));
  router.add("POST", "/infill", generation_route(services, &api::Frontend::prepare_llama_infill));
  router.add("POST", "/apply-template", json_route(services, &api::Frontend::apply_template_json));
  router.add("GET", "/props", about_model(services, &props_of));
  router.add("GET", "/slots",
             services.slots_off ? switched_off("slots", "--no-slots") : about_model(services, &slots_of));
  router.add("POST", "/props", refuse("defaults are the model's own; requests say what they want"));
  router.add("POST", "/slots/{id}",
             refuse("there are no slots to save, restore or erase; prefixes are found by their tokens"));
}

}  // namespace oar::http
