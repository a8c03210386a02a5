#include "server/api/openapi.h"

#include <algorithm>
#include <map>

#include "engine/base/format.h"
#include "server/api/answer_schemas.h"
#include "server/api/anthropic_request.h"
#include "server/api/batches.h"
#include "server/api/decisions.h"
#include "server/api/embeddings.h"
#include "server/api/label_scores.h"
#include "server/api/llama_request.h"
#include "server/api/ollama_request.h"
#include "server/api/openai_request.h"
#include "server/api/responses_request.h"
#include "server/api/route_aliases.h"
#include "server/api/score.h"
#include "server/api/unread_fields.h"
#include "server/api/version.h"

namespace oar::api {
namespace {

constexpr std::string_view kUploads = "/v1/files";  // whose bodies are forms

// Stands for every model: bounds that a model's own only narrow.
class AnyEngine final : public Engine {
 public:
  AnyEngine() { limits_.vocab_size = limits_.max_context = INT32_MAX; }
  Result<uint64_t> submit(Request) override { return unavailable("it describes engines"); }
  void cancel(uint64_t) override {}
  void finish_choice(uint64_t, int32_t, FinishReason) override {}
  Status check_room() const override { return ok_status(); }
  void suspend(uint64_t) override {}
  void resume(uint64_t) override {}
  EngineStats stats() const override { return {}; }
  const RequestLimits& request_limits() const override { return limits_; }
  EngineHealth health() const override { return EngineHealth::kReady; }
  void on_step(std::function<void(const StepInfo&)>) override {}
  bool drain(std::chrono::milliseconds) override { return true; }

 private:
  RequestLimits limits_;
};

class Describer {
 public:
  explicit Describer(const ApiLimits& limits) : limits_(limits) {
    model_.engine = &engine_;
    static const tools::ReasoningStyle kSome{};
    model_.reasoning_style = &kSome;
  }

  // Of the body of a POST to this pattern; null: nothing is known of it.
  json::value body(std::string_view pattern) const {
    const json::object empty;
    FieldList list;
    const RequestBody to(empty, list);
    bool required = true;
    if (pattern == "/v1/chat/completions" || pattern == "/v1/chat/completions/input_tokens")
      (void)parse_chat_request(to, model_, limits_);
    else if (pattern == "/v1/completions") (void)parse_completion_request(to, model_, limits_);
    else if (pattern == "/v1/decisions") (void)parse_decision_request(to, model_, limits_);
    else if (pattern == "/v1/responses" || pattern == "/v1/responses/input_tokens")
      (void)parse_responses_request(to, model_, limits_);
    else if (pattern == "/v1/messages") (void)parse_messages_request(to, model_, limits_, false);
    else if (pattern == "/v1/messages/count_tokens") (void)parse_messages_request(to, model_, limits_, true);
    else if (pattern == "/detokenize") (void)parse_detokenize_request(to, model_);
    else if (pattern == "/completion" || pattern == "/completions")
      (void)parse_llama_request(to, model_, limits_, false);
    else if (pattern == "/infill") (void)parse_llama_request(to, model_, limits_, true);
    else if (pattern == "/apply-template") (void)parse_chat_request(to, model_, limits_);
    else if (pattern == "/api/chat") (void)parse_ollama_chat(to, model_, limits_);
    else if (pattern == "/api/generate") (void)parse_ollama_generate(to, model_, limits_);
    else if (pattern == "/api/show") (void)parse_ollama_show(to);
    else if (pattern == "/api/embed") (void)parse_ollama_embed(to);
    else if (pattern == "/api/embeddings") (void)parse_ollama_embeddings(to);
    else if (pattern.ends_with("/embeddings")) (void)parse_embedding_request(to);
    else if (pattern.ends_with("/pooling")) (void)parse_pooling_request(to);
    else if (pattern.ends_with("/classify")) (void)parse_classify_request(to);
    else if (pattern.ends_with("/score")) {
      (void)parse_score_request(to);
      (void)parse_label_request(to, model_);
      required = false;  // each kind of model has fields of its own
    } else if (pattern.ends_with("/rerank")) (void)parse_rerank_request(to);
    else if (pattern == "/v1/batches") (void)parse_batch_create(to);
    else if (pattern == kUploads) (void)parse_upload(to);
    else if (pattern == "/tokenize") {
      (void)parse_tokenize_request(to, model_, limits_);
      (void)parse_chat_request(to, model_, limits_);  // with messages it reads what chat reads
      required = false;
    } else {
      return nullptr;
    }
    return schema(list, required);
  }

 private:
  static json::object schema(const FieldList& list, bool with_required) {
    json::object properties;
    json::array required;
    for (const FieldList::Field& f : list.fields()) {
      json::array types = f.types;
      if (f.required && with_required) required.emplace_back(f.name);
      else if (!types.empty()) types.emplace_back(json::object{{"type", "null"}});
      json::object property;
      if (types.size() == 1) property = types[0].as_object();
      else if (!types.empty()) property["anyOf"] = std::move(types);
      properties[f.name] = std::move(property);
    }
    // Fields of other servers: without effect, or accepted only where they ask for nothing.
    for (const UnreadField& f : unread_fields()) {
      if (properties.contains(f.name)) continue;
      json::object property{{"description", f.remedy}};
      if (f.idle != "*") {
        json::array idle{false, "", json::array(), json::object()};
        if (!f.idle.empty()) idle = json::parse(json::string_view(f.idle.data(), f.idle.size())).as_array();
        idle.emplace_back(nullptr);
        property["enum"] = std::move(idle);
      }
      properties[f.name] = std::move(property);
    }
    json::object out{{"type", "object"}, {"properties", std::move(properties)}};
    if (!required.empty()) out["required"] = std::move(required);
    out["additionalProperties"] = json::object{{"type", "null"}};
    return out;
  }

  const ApiLimits limits_;
  AnyEngine engine_;
  ModelHandle model_;
};

// "/v2/models/{name}/versions/{version}" and its parameters. {rest*} may hold slashes, which OpenAPI has no
// word for.
std::string path_of(std::string_view pattern, json::array& parameters) {
  std::string out;
  for (size_t at = 0; at < pattern.size();) {
    if (pattern[at] != '{') {
      out += pattern[at++];
      continue;
    }
    const size_t end = pattern.find('}', at);
    std::string name(pattern.substr(at + 1, end - at - 1));
    if (name.ends_with('*')) name.pop_back();
    out += cat("{", name, "}");
    parameters.emplace_back(
        json::object{{"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}});
    at = end + 1;
  }
  return out;
}

json::object content(const char* type, json::value schema) {
  return {{"content", {{type, {{"schema", std::move(schema)}}}}}};
}

json::object operation(const DescribedRoute& route, const json::value& body, json::array parameters) {
  json::object op{{"operationId", cat(route.method, " ", route.pattern)}};
  if (!parameters.empty()) op["parameters"] = std::move(parameters);
  if (route.open) op["security"] = json::array();
  if (route.method == "POST") {
    const char* type = route.pattern == kUploads ? "multipart/form-data" : "application/json";
    json::object request = content(type, body.is_null() ? json::object() : body);
    request["required"] = !body.is_null();
    op["requestBody"] = std::move(request);
  }
  const bool tensors = route.pattern.starts_with("/api/") ||
                       (route.pattern.starts_with("/v2") && route.pattern != "/v2/rerank");
  json::object fault =
      content("application/json",
              {{"$ref", tensors ? "#/components/schemas/TextError" : "#/components/schemas/Error"}});
  fault["description"] = "why not";
  json::object responses{{"default", std::move(fault)}};
  if (auto answer = answer_content(route.method, without_alias(route.pattern))) {
    json::object done{{"description", "done"}};
    if (!answer->empty()) done["content"] = std::move(*answer);
    responses["200"] = std::move(done);
  }
  op["responses"] = std::move(responses);
  return op;
}

}  // namespace

std::string openapi_json(const std::vector<DescribedRoute>& routes, const ApiLimits& limits) {
  const Describer describer(limits);
  json::object paths;
  for (const DescribedRoute& route : routes) {
    json::array parameters;
    const std::string path = path_of(route.pattern, parameters);
    std::string method = route.method;
    std::transform(method.begin(), method.end(), method.begin(), [](char c) { return std::tolower(c); });
    json::value& item = paths[path];
    if (!item.is_object()) item.emplace_object();
    const json::value body = route.method == "POST" ? describer.body(without_alias(route.pattern)) : nullptr;
    item.as_object()[method] = operation(route, body, std::move(parameters));
  }
  const json::object text{{"type", "string"}};
  json::object schemas = answer_objects();
  schemas["Error"] = {
      {"type", "object"},
      {"required", json::array{"error"}},
      {"properties",
       {{"error",
         {{"type", "object"},
          {"required", json::array{"message"}},
          {"properties",
           {{"message", text}, {"type", text}, {"param", json::object()}, {"code", json::object()}}}}}}}};
  schemas["TextError"] = {
      {"type", "object"}, {"required", json::array{"error"}}, {"properties", {{"error", text}}}};
  return json::serialize(
      json::object{{"openapi", "3.1.0"},
                   {"info",
                    {{"title", "Oar"},
                     {"version", kVersion},
                     {"description", "The schema of a stream is that of one of its events or lines."}}},
                   {"paths", std::move(paths)},
                   {"security", json::array{json::object{{"key", json::array()}}, json::object()}},
                   {"components",
                    {{"schemas", std::move(schemas)},
                     {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}}}});
}

}  // namespace oar::api
