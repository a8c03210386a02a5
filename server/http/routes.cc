#include "server/http/routes.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>

#include "engine/base/format.h"
#include "engine/text/utf8.h"
#include "server/api/auth.h"
#include "server/api/json_writer.h"
#include "server/api/openapi.h"
#include "server/api/route_aliases.h"
#include "server/api/status_table.h"
#include "server/api/trace_parent.h"
#include "server/api/triton_error.h"
#include "server/api/version.h"

namespace oar::http {
namespace {

bool is_oip(std::string_view path) {
  return path == "/v2" || (path.starts_with("/v2/") && path != "/v2/rerank");
}

// llama.cpp's own, but for what it shares with others.
bool is_llama(std::string_view path) {
  for (const std::string_view own :
       {"/completion", "/completions", "/infill", "/apply-template", "/props", "/slots"})
    if (path == own) return true;
  return path.starts_with("/slots/");
}

// Where llama.cpp's clients ask what is OpenAI's.
bool is_shared(std::string_view path) { return path == "/chat/completions" || path == "/responses"; }

bool is_anthropic(std::string_view path) {
  return path == "/v1/messages" || path.starts_with("/v1/messages/");
}

bool is_openai(std::string_view path) {
  return !is_llama(path) && !is_oip(path) && !path.starts_with("/api/") && !is_anthropic(path);
}

// An error in the dialect of the path; `http` as the table of statuses has it.
std::string error_body(std::string_view path, const Status& status, int http,
                       const api::PromptExcess& excess = {}) {
  if (is_llama(path)) return api::llama_error(status, http, excess);
  if (is_shared(path) && excess.tokens > 0) return api::openai_excess_error(status, excess);
  if (is_oip(path) || path.starts_with("/api/")) return api::oip_error(status);
  if (is_anthropic(path)) return api::anthropic_error(status, http);
  return api::openai_error(status, http);
}

void add_health(Router& router, const Services& services) {
  const auto live = [](Request&&, std::shared_ptr<ResponseWriter> w) { w->send(Response{200, "", {}, ""}); };
  const auto ready = [&frontend = *services.frontend](Request&&, std::shared_ptr<ResponseWriter> w) {
    w->send(Response{frontend.ready() ? 200 : 503, "", {}, ""});
  };
  for (const char* path : {"/health/live", "/v2/health/live"})
    router.add("GET", path, live, Access::kOpen, true);
  for (const char* path : {"/health/ready", "/v2/health/ready"})
    router.add("GET", path, ready, Access::kOpen, true);
  // As llama.cpp words it.
  router.add(
      "GET", "/health",
      [&frontend = *services.frontend](Request&&, std::shared_ptr<ResponseWriter> w) {
        if (frontend.ready()) return w->send(json_answer(R"({"status":"ok"})"));
        w->send({503, "application/json", {}, api::llama_error(unavailable("the server is not ready"))});
      },
      Access::kOpen, true);
}

void add_metrics(Router& router, const Services& services, Access access) {
  if (services.metrics_off)
    return router.add("GET", "/metrics", switched_off("metrics", "--no-metrics"), access, true);
  // Since when the counters count, as llama.cpp's server says it.
  const auto answer = [&services, since = cat(std::time(nullptr))](Request&&,
                                                                   std::shared_ptr<ResponseWriter> w) {
    w->send({200,
             "text/plain; version=0.0.4; charset=utf-8",
             {{"Process-Start-Time-Unix", since}},
             services.metrics ? services.metrics() : ""});
  };
  router.add("GET", "/metrics", answer, access, true);
}

// Null: nobody.
std::shared_ptr<api::Tenant> who_asks(api::ApiKeys& keys, const Request& request) {
  if (auto tenant = keys.find_bearer(request.header("Authorization"))) return tenant;
  for (const char* name : {"X-Api-Key", "Api-Key"})  // Anthropic's clients, and Azure's
    if (auto tenant = keys.find(request.header(name))) return tenant;
  return nullptr;
}

}  // namespace

Response json_answer(std::string body) { return {200, "application/json", {}, std::move(body)}; }

Handler switched_off(const char* what, const char* option) {
  return [what, option](Request&& request, std::shared_ptr<ResponseWriter> writer) {
    const Status why =
        unimplemented(cat(request.path, ": ", what, " are switched off; start the server without ", option));
    writer->send(error_answer(request.path, why));
  };
}

Response error_answer(std::string_view path, const Status& status, const api::PromptExcess& excess) {
  Response r{
      api::error_kind(status.code()).http, "application/json", {}, error_body(path, status, 0, excess)};
  if (is_openai(path)) r.failure = std::make_shared<const Status>(status);
  if (r.status == 429 || r.status == 503) {
    const auto seconds = static_cast<int64_t>(std::ceil(std::max(1.0, status.retry_after())));
    r.headers.push_back({"Retry-After", std::to_string(seconds)});
  }
  return r;
}

Response error_response(const Request* request, int status, const std::string& message) {
  const Status s(api::status_code_of_http(status), message);
  const std::string_view path = request ? std::string_view(request->path) : "";
  Response r{status, "application/json", {}, error_body(path, s, status)};
  if (is_openai(path)) r.failure = std::make_shared<const Status>(s);
  return r;
}

void word_as_triton(const Request& request, Response& error) {
  api::WordedError worded =
      api::triton_error(*error.failure, error.status, request.method == "POST", request.body);
  error.status = worded.http;
  error.body = std::move(worded.body);
}

std::function<std::optional<Response>(const Request&, const Route&)> make_admission(
    const Services& services) {
  return [keys = services.keys, admin_keys = services.control.keys](
             const Request& request, const Route& route) -> std::optional<Response> {
    const bool admin = route.access == Access::kAdmin && admin_keys;
    const auto& wanted = admin ? admin_keys : keys;
    if (route.access == Access::kOpen || !wanted || who_asks(*wanted, request)) return std::nullopt;
    Response r =
        error_answer(request.path, Status(StatusCode::kUnauthenticated,
                                          cat("the ", admin ? "admin" : "API",
                                              " key is missing or wrong; send Authorization: Bearer <key>")));
    r.headers.push_back({"WWW-Authenticate", "Bearer"});
    return r;
  };
}

api::MemoryAccess access_of(const Services& services, const api::RequestContext& context) {
  return {services.memory, context.tenant ? context.tenant->name() : std::string()};
}

namespace {

// A word of a query, as forms write it.
Result<std::string> form_decode(std::string_view word) {
  std::string plain(word), out;
  std::replace(plain.begin(), plain.end(), '+', ' ');
  if (percent_decode(plain, out) && is_valid_utf8(out)) return out;
  return invalid_argument("the query has a word that is no text in UTF-8; send its bytes as %XX", "query");
}

bool take_word(std::string_view name, const std::string& value, std::initializer_list<QueryWord> words) {
  for (const QueryWord& word : words) {
    if (word.members == nullptr && name == word.name) {
      *word.value = value;
      return true;
    }
    if (word.members == nullptr || !name.starts_with(word.name)) continue;
    const std::string_view rest = name.substr(word.name.size());
    if (!rest.starts_with('[') || !rest.ends_with(']')) continue;
    (*word.members)[rest.substr(1, rest.size() - 2)] = json::string(value);
    return true;
  }
  return false;
}

}  // namespace

Result<api::ItemPage> read_page(std::string_view query, api::ItemPage page, int64_t most,
                                std::initializer_list<QueryWord> others) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    OAR_ASSIGN(const std::string name, form_decode(pair.substr(0, equals)));
    OAR_ASSIGN(const std::string value, form_decode(pair.substr(std::min(pair.size(), equals + 1))));
    if (name == "limit") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), page.limit);
      if (error != std::errc() || end != value.data() + value.size() || page.limit < 1 || page.limit > most)
        return invalid_argument(cat("limit is '", value, "'; give 1 to ", most), "limit");
    } else if (name == "order") {
      if (value != "asc" && value != "desc")
        return invalid_argument(cat("order is '", value, "'; give asc or desc"), "order");
      page.ascending = value == "asc";
    } else if (name == "after") {
      page.after = value;
    } else if (!name.empty() && !take_word(name, value, others)) {
      std::string more;
      for (const QueryWord& word : others) more += cat(", ", word.name, word.members ? "[NAME]" : "");
      return invalid_argument(cat(name, " is not read here; use limit, order", more, " and after"), name);
    }
  }
  return page;
}

Result<api::RequestContext> context_of(const Services& services, const Request& request) {
  api::RequestContext context;
  if (services.keys) context.tenant = who_asks(*services.keys, request);
  context.peer = request.peer.substr(0, request.peer.rfind(':'));
  context.llama_chat = request.path == "/chat/completions";
  for (const char c : request.header("X-Request-Id").substr(0, 128)) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '_' || c == '.' || c == ':';
    if (plain) context.id += c;  // whatever else cannot be forged into a log
  }
  if (api::parse_traceparent(trim(request.header("traceparent"))))
    context.trace = trim(request.header("traceparent"));
  const std::string_view timeout = trim(request.header("X-Request-Timeout"));
  if (!timeout.empty()) {
    double seconds = 0;
    const auto parsed = std::from_chars(timeout.data(), timeout.data() + timeout.size(), seconds);
    if (parsed.ec != std::errc() || parsed.ptr != timeout.data() + timeout.size() ||
        !(seconds > 0 && seconds <= 86400)) {
      return invalid_argument("the header X-Request-Timeout must be a number of seconds in (0, 86400]",
                              "X-Request-Timeout");
    }
    context.deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  return context;
}

Router make_router(const Services& services) {
  Router router;
  add_health(router, services);
  add_metrics(router, services, Access::kKey);
  router.add("GET", "/version", [](Request&&, std::shared_ptr<ResponseWriter> w) {
    std::string out;
    api::JsonWriter j(out);
    j.begin_object().key("version").string(api::kVersion).end_object();
    w->send(json_answer(std::move(out)));
  });
  add_vertex_routes(router, services);
  add_openai_routes(router, services);
  add_batch_routes(router, services);
  add_agent_routes(router, services);
  add_ollama_routes(router, services);
  add_llama_routes(router, services);
  add_embedding_routes(router, services);
  add_tensor_routes(router, services);
  add_settings_routes(router, services);  // before the patterns of models
  add_oip_routes(router, services);
  for (const api::RouteAlias& alias : api::kRouteAliases) {
    for (const Route& r : std::vector<Route>(router.routes()))
      if (r.pattern == alias.of) router.add(r.method, std::string(alias.path), r.handler, r.access, r.vital);
  }
  // Tensors, as Triton's clients ask for it. One of them asks for it everywhere, and reads it here alone.
  router.compress("/v2/", "/infer");
  return router;
}

void add_openapi(Router& router, const Services& services) {
  std::vector<api::DescribedRoute> described;
  for (const Route& r : router.routes())
    described.push_back({r.method, r.pattern, r.access == Access::kOpen});
  described.push_back({"GET", "/openapi.json", true});
  const auto text =
      std::make_shared<const std::string>(api::openapi_json(described, services.frontend->limits()));
  router.add(
      "GET", "/openapi.json",
      [text](Request&&, std::shared_ptr<ResponseWriter> w) { w->send(json_answer(*text)); }, Access::kOpen);
}

Router make_monitoring_router(const Services& services) {
  Router router;
  add_health(router, services);
  add_metrics(router, services, Access::kOpen);
  return router;
}

}  // namespace oar::http
