// What agents speak beside chat completions: OpenAI's /v1/responses and Anthropic's /v1/messages.
#include <algorithm>
#include <charconv>

#include "engine/base/format.h"
#include "server/api/openai_request.h"
#include "server/api/response_replay.h"
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

// A stored response, whole, or with `stream=true` as its events from `starting_after` on.
Status send_stored(const Services& services, const Request& request, ResponseWriter& writer) {
  OAR_ASSIGN(const api::RequestContext context, context_of(services, request));
  bool stream = false;
  std::optional<int64_t> after;
  for (std::string_view query = request.query; !query.empty();) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    constexpr std::string_view kAfter = "starting_after=";
    if (pair == "stream=true" || pair == "stream=false") {
      stream = pair == "stream=true";
    } else if (pair.starts_with(kAfter)) {
      const char* const end = pair.data() + pair.size();
      const auto read = std::from_chars(pair.data() + kAfter.size(), end, after.emplace());
      if (read.ec != std::errc() || read.ptr != end || *after < 0)
        return invalid_argument(cat("'", pair, "': give the number of an event"), "starting_after");
    } else if (!pair.empty()) {
      return invalid_argument(cat("'", pair, "' is not read here; use stream and starting_after"), "query");
    }
  }
  if (after && !stream)
    return invalid_argument("starting_after goes with stream=true; a response is sent whole",
                            "starting_after");
  OAR_ASSIGN(std::string body, services.frontend->stored_response(request.params[0], context));
  if (!stream) {
    writer.send(json_answer(std::move(body)));
    return ok_status();
  }
  writer.start_stream({200,
                       "text/event-stream; charset=utf-8",
                       {{"Cache-Control", "no-cache"}},
                       api::replayed_response(body, after.value_or(-1))});
  writer.finish();
  return ok_status();
}

}  // namespace

void add_agent_routes(Router& router, const Services& services) {
  router.add("POST", "/v1/responses", generation_route(services, &api::Frontend::prepare_responses));
  router.add("POST", "/v1/responses/input_tokens",
             json_route(services, &api::Frontend::count_response_tokens));
  router.add("POST", "/v1/messages", generation_route(services, &api::Frontend::prepare_messages));
  router.add("POST", "/v1/messages/count_tokens", json_route(services, &api::Frontend::count_message_tokens));

  const api::Frontend* const frontend = services.frontend;
  router.add("GET", "/v1/responses/{id}", [&services](Request&& request, WriterPtr writer) {
    const Status s = send_stored(services, request, *writer);
    if (!s.ok()) writer->send(error_answer(request.path, s));
  });
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

  const auto with_body = [&services, frontend](auto answer) {
    return stored_route(
        services, [frontend, answer](const Request& r, const api::RequestContext& c) -> Result<std::string> {
          OAR_ASSIGN(const json::object body, api::parse_body(r.body));
          return answer(*frontend, r, body, c);
        });
  };
  // Chats that were to be stored. Behind /v1/chat/completions/input_tokens, which is no id.
  const char* const kChats = "/v1/chat/completions";
  const std::string one = cat(kChats, "/{id}");
  router.add("GET", kChats,
             stored_route(services,
                          [frontend](const Request& r, const api::RequestContext& c) -> Result<std::string> {
                            std::string model;
                            json::object metadata;
                            OAR_ASSIGN(const api::ItemPage page,
                                       read_page(r.query, {.ascending = true, .after = {}}, 100,
                                                 {{"model", &model}, {"metadata", nullptr, &metadata}}));
                            return frontend->stored_chats(page, model, metadata, c);
                          }));
  router.add("GET", one, stored_route(services, [frontend](const Request& r, const api::RequestContext& c) {
               return frontend->stored_chat(r.params[0], c);
             }));
  router.add("POST", one,
             with_body([](const api::Frontend& f, const Request& r, const json::object& body,
                          const api::RequestContext& c) { return f.label_chat(r.params[0], body, c); }));
  router.add("DELETE", one,
             stored_route(services, [frontend](const Request& r, const api::RequestContext& c) {
               return frontend->erase_chat(r.params[0], c);
             }));
  router.add("GET", one + "/messages",
             stored_route(services,
                          [frontend](const Request& r, const api::RequestContext& c) -> Result<std::string> {
                            OAR_ASSIGN(const api::ItemPage page,
                                       read_page(r.query, {.ascending = true, .after = {}}, 100));
                            return frontend->stored_messages(r.params[0], page, c);
                          }));

  using api::Frontend;
  using Context = api::RequestContext;
  const char* const kConversations = "/v1/conversations";
  const std::string talk = cat(kConversations, "/{id}"), items = talk + "/items", item = items + "/{item}";
  router.add("POST", kConversations,
             with_body([](const Frontend& f, const Request&, const json::object& body, const Context& c) {
               return f.make_conversation(body, c);
             }));
  router.add("GET", talk, stored_route(services, [frontend](const Request& r, const Context& c) {
               return frontend->stored_conversation(r.params[0], c);
             }));
  router.add("POST", talk,
             with_body([](const Frontend& f, const Request& r, const json::object& body, const Context& c) {
               return f.label_conversation(r.params[0], body, c);
             }));
  router.add("DELETE", talk, stored_route(services, [frontend](const Request& r, const Context& c) {
               return frontend->erase_conversation(r.params[0], c);
             }));
  router.add("GET", items,
             stored_route(services, [frontend](const Request& r, const Context& c) -> Result<std::string> {
               OAR_ASSIGN(const api::ItemPage page, read_page(r.query, {}, 100));
               return frontend->conversation_items(r.params[0], page, c);
             }));
  router.add("POST", items,
             with_body([](const Frontend& f, const Request& r, const json::object& body, const Context& c) {
               return f.add_conversation_items(r.params[0], body, c);
             }));
  router.add("GET", item, stored_route(services, [frontend](const Request& r, const Context& c) {
               return frontend->conversation_item(r.params[0], r.params[1], c);
             }));
  router.add("DELETE", item, stored_route(services, [frontend](const Request& r, const Context& c) {
               return frontend->erase_conversation_item(r.params[0], r.params[1], c);
             }));
}

}  // namespace oar::http
