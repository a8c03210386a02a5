// /openapi.json says what the server does: its routes answer, its fields are read, and what its schemas do
// not allow is refused by name. /docs needs nothing from elsewhere.
#include <filesystem>
#include <set>

#include "engine/base/format.h"
#include "server/api/version.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using oar::json::object;
using oar::json::value;

object described(const TestServer& t) {
  const HttpReply r = http(t.http(), "GET", "/openapi.json");
  REQUIRE(r.status == 200);
  return parse(r.body).as_object();
}

object schema_of(const object& api, const char* path) {
  return api.at("paths")
      .at(path)
      .at("post")
      .at("requestBody")
      .at("content")
      .at("application/json")
      .at("schema")
      .as_object();
}

// Values beyond the bounds of one of the property's types, and of a type that none of them has.
std::vector<value> refused_by(const object& property) {
  std::vector<value> out;
  const auto any = property.if_contains("anyOf");
  const oar::json::array types = any ? any->as_array() : oar::json::array{property};
  std::set<std::string> names;
  for (const value& type : types) {
    const object& s = type.as_object();
    const value* name = s.if_contains("type");
    if (!name) return {};  // any value
    names.insert(std::string(name->as_string()));
    if (const value* min = s.if_contains("minimum"); min && min->is_int64() && min->as_int64() > INT64_MIN)
      out.push_back(min->as_int64() - 1);
    if (const value* max = s.if_contains("maximum"); max && max->is_int64() && max->as_int64() < INT64_MAX)
      out.push_back(max->as_int64() + 1);
    if (const value* max = s.if_contains("maxLength"); max && max->to_number<int64_t>() < 100'000)
      out.push_back(value(std::string(static_cast<size_t>(max->to_number<int64_t>()) + 1, 'a')));
  }
  const std::pair<const char*, value> others[] = {{"string", "q"},
                                                  {"boolean", true},
                                                  {"array", oar::json::array{object()}},
                                                  {"object", object{{"q", 1}}}};
  for (const auto& [name, other] : others)
    if (!names.contains(name)) out.push_back(other);
  return out;
}

TEST_CASE("openapi: what its schemas do not allow is refused by name, and what they do is not") {
  FakeEngineOptions engine;
  engine.reply = "x";
  oar::ServerOptions options;
  options.files = (std::filesystem::path(temp_dir()) / "openapi-schemas").string();
  TestServer t(engine, options);
  const object api = described(t);
  CHECK(api.at("openapi") == "3.1.0");
  const HttpReply uploaded =
      http(t.http(), "POST", "/v1/files",
           "--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--b\r\n"
           "Content-Disposition: form-data; name=file; filename=f\r\n\r\nx\r\n--b--",
           {{"Content-Type", "multipart/form-data; boundary=b"}});
  REQUIRE(uploaded.status == 200);
  const value file = parse(uploaded.body).at("id");
  const value form = api.at("paths").at("/v1/files").at("post").at("requestBody").at("content");
  CHECK(form.at("multipart/form-data").at("schema").at("required") == oar::json::array{"file", "purpose"});
  const std::pair<const char*, object> requests[] = {
      {"/v1/chat/completions", {{"messages", oar::json::array{object{{"role", "user"}, {"content", "x"}}}}}},
      {"/v1/completions", {{"prompt", "x"}}},
      {"/v1/responses", {{"input", "x"}}},
      {"/v1/messages",
       {{"max_tokens", 4}, {"messages", oar::json::array{object{{"role", "user"}, {"content", "x"}}}}}},
      {"/completion", {{"prompt", "x"}}},
      {"/api/chat", {{"messages", oar::json::array{object{{"role", "user"}, {"content", "x"}}}}}},
      {"/api/generate", {{"prompt", "x"}}},
      {"/tokenize", {{"prompt", "x"}}},
      {"/v1/batches",
       {{"input_file_id", file}, {"endpoint", "/v1/completions"}, {"completion_window", "24h"}}},
      {"/detokenize", {{"tokens", oar::json::array{97}}}}};
  for (const auto& [path, minimal] : requests) {
    const object schema = schema_of(api, path);
    RawClient c(t.http());
    const auto ask = [&](const object& body) {
      REQUIRE(c.send(make_request("POST", path, serialize(body), {{"content-type", "application/json"}})));
      return c.read_reply();
    };
    CHECK(ask(minimal).status == 200);
    if (const value* required = schema.if_contains("required"))
      for (const value& name : required->as_array()) {
        object body = minimal;
        body.erase(name.as_string());
        INFO(path << " without " << name);
        CHECK(ask(body).status == 400);
      }
    CHECK(schema.at("additionalProperties").at("type") == "null");
    size_t tried = 0;
    for (const auto& [name, property] : schema.at("properties").as_object()) {
      const bool chat_only = std::string_view(path) == "/tokenize" && !property.as_object().contains("enum");
      for (const value& wrong : refused_by(property.as_object())) {
        if (chat_only) break;  // read with messages alone, which other cases look at
        object body = minimal;
        body[name] = wrong;
        INFO(path << " " << name << ": " << serialize(wrong).substr(0, 80));
        const HttpReply r = ask(body);
        CHECK(r.status == 400);
        ++tried;
        // Nothing else may be at fault; elements are named by their place.
        if (std::string_view(path) == "/v1/messages") continue;
        const value error = parse(r.body).at("error");
        const value& message = error.is_string() ? error : error.at("message");
        CHECK(std::string(message.as_string()).find(name) != std::string::npos);
      }
      object body = minimal;
      body[name] = nullptr;
      if (!minimal.contains(name)) {
        INFO(path << " " << name << ": null");
        CHECK(ask(body).status == 200);
      }
    }
    if (std::string_view(path) == "/v1/batches") CHECK(tried > 10);
    else if (std::string_view(path).starts_with("/v1")) CHECK(tried > 60);
    else if (!std::string_view(path).ends_with("tokenize")) CHECK(tried > 3);
  }
}

TEST_CASE("openapi: every route is there, and answers") {
  oar::ServerOptions options;
  options.files = (std::filesystem::path(temp_dir()) / "openapi-files").string();
  options.shared_memory = "/oar-openapi-";
  TestServer t({}, options);
  const object api = described(t);
  CHECK(api.at("info").at("version") == oar::api::kVersion);
  size_t gets = 0;
  for (const auto& [path, item] : api.at("paths").as_object()) {
    CHECK(std::string_view(path).find('*') == std::string_view::npos);
    for (const auto& [method, op] : item.as_object()) {
      CHECK(op.at("responses").as_object().contains("default"));
      if (method != "get" || std::string_view(path).find('{') != std::string_view::npos) continue;
      INFO(path);
      CHECK(http(t.http(), "GET", std::string(path)).status == 200);
      ++gets;
    }
  }
  CHECK(gets >= 10);
  for (const char* path : {"/v1/chat/completions", "/v1/models", "/v2/models/{model}/infer", "/metrics",
                           "/openapi.json", "/docs", "/v1/score", "/pooling"}) {
    INFO(path);
    const auto& paths = api.at("paths").as_object();
    const bool there = paths.contains(path) || std::string_view(path).find("infer") != std::string_view::npos;
    CHECK(there);
  }
}

TEST_CASE("docs: one page, nothing from elsewhere, open to all") {
  oar::ServerOptions options;
  options.api_key = "secret";
  TestServer t({}, options);
  const HttpReply page = http(t.http(), "GET", "/docs");
  CHECK(page.status == 200);
  CHECK(page.headers.at("content-security-policy").find("default-src 'none'") != std::string::npos);
  CHECK(page.body.find("http://") == std::string::npos);
  CHECK(page.body.find("https://") == std::string::npos);
  CHECK(page.body.find("/openapi.json") != std::string::npos);
  CHECK(http(t.http(), "GET", "/openapi.json").status == 200);
  CHECK(http(t.http(), "GET", "/v1/models").status == 401);
}

}  // namespace
