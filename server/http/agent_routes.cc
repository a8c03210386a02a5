// What agents speak beside chat completions: OpenAI's /v1/responses and Anthropic's /v1/messages.
#include "server/http/generation_route.h"

namespace oar::http {

void add_agent_routes(Router& router, const Services& services) {
  router.add("POST", "/v1/responses", generation_route(services, &api::Frontend::prepare_responses));
  router.add("POST", "/v1/messages", generation_route(services, &api::Frontend::prepare_messages));
  router.add("POST", "/v1/messages/count_tokens", json_route(services, &api::Frontend::count_message_tokens));
}

}  // namespace oar::http
