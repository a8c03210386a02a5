// What Triton's clients ask and change of a running server: settings of logs and traces, and shared memory.
#include <tuple>

#include "engine/base/format.h"
#include "server/api/openai_request.h"
#include "server/http/routes.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

// `answer` makes JSON of a request, at once.
template <class Answer>
Handler at_once(const Services& services, Answer answer) {
  return [&services, answer](Request&& request, WriterPtr writer) {
    const auto made = [&]() -> Result<std::string> {
      OAR_ASSIGN(const api::RequestContext context, context_of(services, request));
      return answer(request, access_of(services, context));
    }();
    writer->send(made.ok() ? json_answer(*made) : error_answer(request.path, made.status()));
  };
}

void add_trace(Router& router, const Services& services, const std::string& path) {
  const auto model_in = [&services](const Request& request) -> Result<std::string> {
    if (request.params.empty()) return std::string();
    OAR_RETURN_IF_ERROR(services.models->find(request.params[0], {}).status());
    return request.params[0];
  };
  router.add(
      "GET", path,
      at_once(services,
              [&services, model_in](const Request& r, const api::MemoryAccess&) -> Result<std::string> {
                OAR_ASSIGN(const std::string model, model_in(r));
                return json::serialize(services.settings->trace(model));
              }));
  router.add(
      "POST", path,
      at_once(services,
              [&services, model_in](const Request& r, const api::MemoryAccess&) -> Result<std::string> {
                OAR_ASSIGN(const json::object changes, api::parse_body(r.body));
                if (!changes.empty() && !services.control.enabled) return api::settings_are_fixed();
                OAR_ASSIGN(const std::string model, model_in(r));
                OAR_ASSIGN(const json::object now, services.settings->set_trace(model, changes));
                return json::serialize(now);
              }),
      Access::kAdmin);
}

Result<api::MemoryRegion> read_region(const Request& request) {
  OAR_ASSIGN(const json::object body, api::parse_body(request.body));
  api::MemoryRegion out;
  out.name = request.params[0];
  int64_t offset = 0, bytes = 0;
  api::Fields f(body);
  f.require("key", "it is what shm_open() was given");
  f.string("key", out.key, 255);
  f.integer("offset", offset, 0, INT64_MAX);
  f.require("byte_size", "say how large the region is");
  f.integer("byte_size", bytes, 1, INT64_MAX);
  f.refuse_rest();
  if (!f.ok()) return f.status();
  out.offset = static_cast<uint64_t>(offset), out.bytes = static_cast<uint64_t>(bytes);
  return out;
}

std::string name_in(const Request& request) {
  return request.params.empty() ? std::string() : request.params[0];
}

void add_memory(Router& router, const Services& services) {
  const std::string all = "/v2/systemsharedmemory", one = all + "/region/{name}";
  router.add("POST", one + "/register",
             at_once(services, [](const Request& r, const api::MemoryAccess& access) -> Result<std::string> {
               OAR_ASSIGN(const api::MemoryRegion region, read_region(r));
               OAR_RETURN_IF_ERROR(access.memory->add(access.owner, region));
               return std::string("{}");
             }));
  for (const std::string& path : {all, one}) {
    router.add(
        "GET", path + "/status",
        at_once(services, [](const Request& r, const api::MemoryAccess& access) -> Result<std::string> {
          OAR_ASSIGN(const auto regions, access.memory->list(access.owner, name_in(r)));
          json::array out;
          for (const api::MemoryRegion& region : regions)
            out.push_back(json::object{{"name", region.name},
                                       {"key", region.key},
                                       {"offset", region.offset},
                                       {"byte_size", region.bytes}});
          return json::serialize(out);
        }));
    router.add(
        "POST", path + "/unregister",
        at_once(services, [](const Request& r, const api::MemoryAccess& access) -> Result<std::string> {
          OAR_RETURN_IF_ERROR(access.memory->remove(access.owner, name_in(r)));
          return std::string("{}");
        }));
  }
  // There are no regions, as examples of Triton's make sure of before they begin.
  const std::string cuda = "/v2/cudasharedmemory";
  for (const auto& [method, path, none] :
       {std::tuple("GET", "/status", "[]"), std::tuple("POST", "/unregister", "{}")})
    router.add(
        method, cuda + path,
        at_once(services, [none = none](const Request&, const api::MemoryAccess&) -> Result<std::string> {
          return std::string(none);
        }));
  for (const char* method : {"GET", "POST"})
    router.add(method, cuda + "/region/{rest*}",
               at_once(services, [](const Request&, const api::MemoryAccess&) -> Result<std::string> {
                 return api::no_cuda_memory();
               }));
}

}  // namespace

void add_settings_routes(Router& router, const Services& services) {
  router.add("GET", "/v2/logging",
             at_once(services, [&services](const Request&, const api::MemoryAccess&) -> Result<std::string> {
               return json::serialize(services.settings->log());
             }));
  router.add("POST", "/v2/logging",
             at_once(services,
                     [&services](const Request& r, const api::MemoryAccess&) -> Result<std::string> {
                       OAR_ASSIGN(const json::object changes, api::parse_body(r.body));
                       if (!changes.empty() && !services.control.enabled) return api::settings_are_fixed();
                       OAR_ASSIGN(const json::object now, services.settings->set_log(changes));
                       return json::serialize(now);
                     }),
             Access::kAdmin);
  add_trace(router, services, "/v2/trace/setting");
  add_trace(router, services, "/v2/models/{model}/trace/setting");
  add_memory(router, services);
}

}  // namespace oar::http
