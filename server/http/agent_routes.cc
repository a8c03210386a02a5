// What agents speak beside chat completions: OpenAI's /v1/responses and Anthropic's /v1/messages.
#include "engine/base/format.h"
#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

// What `answer` makes of a request that has no body.
template <class Answer>
Handler stored_route(const Services& services, Answer answer) {
  return [&services, answer](Request&& request, WriterPtr writer) {
    const auto made = [&]() -> Result<std::string> {
      OAR_ASSIGN(const api::RequestContext context, context_of(services, request));
      return answer(request, context);
    }();
    writer->send(made.ok() ? json_answer(*made) : error_answer(request.path, made.status()));
  };
}

}  // namespace

void add_agent_routes(Router& router, const Services& services) {
  router.add("POST", "/v1/responses", generation_route(services, &api::Frontend::prepare_responses));
  router.add("POST", "/v1/responses/input_tokens",
             json_route(services, &api::Frontend::count_response_tokens));
  router.add("POST", "/v1/messages", generation_route(services, &api::Frontend::prepare_messages));
  router.add("POST", "/v1/messages/count_tokens", json_route(services, &api::Frontend::count_message_tokens));

  const api::Frontend* const frontend = services.frontend;
  router.add("GET", "/v1/responses/{id}",
             stored_route(
                 services, [frontend](const Request& r, const api::RequestContext& c) -> Result<std::string> {
                   OAR_RETURN_IF_ERROR(
                       r.query.empty()
                           ? ok_status()
                           : invalid_argument(
                                 cat("'", r.query, "' is not read here; a response is sent whole"), "query"));
                   return frontend->stored_response(r.params[0], c);
                 }));
  router.add("POST", "/v1/responses/{id}/cancel",
             stored_route(services,
                          [frontend](const Request& r, const api::RequestContext& c) -> Result<std::string> {
                            OAR_ASSIGN(const std::string body, frontend->stored_response(r.params[0], c));
                            return invalid_argument(
                                "only a response that runs in the background can be cancelled, and none does "
                                "here; close the stream instead",
                                "id");
                          }));
  router.add("DELETE", "/v1/responses/{id}",
             stored_route(services, [frontend](const Request& r, const api::RequestContext& c) {
               return frontend->erase_response(r.params[0], c);
             }));
  router.add("GET", "/v1/responses/{id}/input_items",
             stored_route(services,
                          [frontend](const Request& r, const api::RequestContext& c) -> Result<std::string> {
                            OAR_ASSIGN(const api::ItemPage page, read_page(r.query, {}, 100));
                            return frontend->stored_input(r.params[0], page, c);
                          }));
}

}  // namespace oar::http
