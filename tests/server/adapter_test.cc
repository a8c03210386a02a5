// Adapters by the calls of the model repository, over HTTP and gRPC: an adapter is a model of the index, and
// one path loads it, whether these calls ask or vLLM's.
#include <atomic>
#include <functional>
#include <limits>
#include <thread>

#include "tests/server/adapter_server.h"

namespace {

using namespace oar_test;   // NOLINT
using namespace inference;  // NOLINT
using oar::cat;
namespace json = oar::json;

using Strings = std::vector<std::string>;

TEST_CASE("adapters over HTTP's repository calls: loaded, listed, asked and unloaded as models") {
  AdapterServer t;
  const Strings models = {"bare READY", "lm READY"}, with = {"bare READY", "lm READY", "polite READY"};
  CHECK(t.index() == models);
  const std::string plain = t.text("lm");
  CHECK(t.load("polite", {{"lora_path", t.adapter}, {"base_model_name", "lm"}}).status == 200);
  CHECK(t.index() == with);
  CHECK(t.text("polite") != plain);
  CHECK(t.text("lm") == plain);
  // Where it lies on the server is nobody's business.
  CHECK(parse(http(t.server->http_port(), "GET", "/v1/models/polite").body).at("root") == "polite");
  CHECK(http(t.server->http_port(), "GET", "/v1/models").body.find(t.adapter) == std::string::npos);
  // Whoever asks for a model that is not there sees the adapters too.
  const HttpReply missing = t.post("/v1/completions", R"({"model":"nobody","prompt":"x"})");
  CHECK(missing.status == 404);
  CHECK_THAT(missing.body, Contains("bare, lm, polite"));
  const HttpReply unready = http(t.server->http_port(), "GET", "/v2/models/nobody/ready");
  CHECK(unready.status == 404);
  // About an adapter as about its model.
  const auto get = [&](const std::string& path) { return http(t.server->http_port(), "GET", path); };
  CHECK(get("/v2/models/polite/ready").status == 200);
  const json::value base = parse(get("/v2/models/lm").body), own = parse(get("/v2/models/polite").body);
  CHECK(own.at("name").as_string() == "polite");
  for (const char* key : {"versions", "inputs", "outputs", "platform"}) CHECK(own.at(key) == base.at(key));
  // vLLM's calls see what these have loaded, and the other way round.
  const std::string by_vllm = cat(R"({"lora_name":"other","lora_path":")", t.adapter, "\"}");
  CHECK(t.post("/v1/unload_lora_adapter", R"({"lora_name":"polite"})").status == 200);
  CHECK(t.index() == models);
  CHECK(t.post("/v1/load_lora_adapter", by_vllm).status == 200);
  CHECK(t.unload("other").status == 200);
  CHECK(t.index() == models);
  CHECK(t.text("other") == "404");
  CHECK(get("/v2/models/polite/ready").status == 404);
}

TEST_CASE("adapters over gRPC's repository calls: loaded, listed, asked and unloaded as models") {
  AdapterServer t;
  REQUIRE(t.grpc_load("polite", {{"lora_path", t.adapter}}).ok());  // one model alone has slots
  CHECK(t.index() == Strings{"bare READY", "lm READY", "polite READY"});
  const auto about = [&](const std::string& name) {
    grpc::ClientContext one, two;
    ModelReadyRequest ready;
    ready.set_name(name);
    ModelReadyResponse is;
    REQUIRE(t.stub->ModelReady(&one, ready, &is).ok());
    CHECK(is.ready());
    ModelMetadataRequest ask;
    ask.set_name(name);
    ModelMetadataResponse answer;
    REQUIRE(t.stub->ModelMetadata(&two, ask, &answer).ok());
    CHECK(answer.name() == name);
    Strings facts = {cat(answer.versions_size(), answer.inputs_size(), answer.outputs_size()),
                     answer.platform()};
    for (const std::string& version : answer.versions()) facts.push_back(version);
    for (const char* key : {"architecture", "max_context"}) facts.push_back(answer.properties().at(key));
    return facts;
  };
  CHECK(about("polite") == about("lm"));
  CHECK(t.text("polite") != t.text("lm"));
  REQUIRE(t.grpc_unload("polite").ok());
  CHECK(t.index() == Strings{"bare READY", "lm READY"});
  const grpc::Status again = t.grpc_unload("polite");
  CHECK(again.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK_THAT(again.error_message(), Contains("\"polite\"") && Contains("bare, lm"));
}

TEST_CASE("adapters by the repository's calls: what is wrong is refused by name, alike over HTTP and gRPC") {
  AdapterServer t(true);
  REQUIRE(t.load("taken", {{"lora_path", t.adapter}, {"base_model_name", "lm"}}).status == 200);
  const auto refused = [&](const std::string& name, const Parameters& parameters, int status,
                           grpc::StatusCode code, const std::string& words) {
    const HttpReply r = t.load(name, parameters);
    INFO(r.body);
    CHECK(r.status == status);
    const std::string message(parse(r.body).at("error").as_string());
    CHECK_THAT(message, Contains(words));
    const grpc::Status s = t.grpc_load(name, parameters);
    CHECK(s.error_code() == code);
    CHECK(s.error_message() == message);
  };
  using Code = grpc::StatusCode;
  const std::string path = t.adapter;
  refused("x", {{"lora_path", path}}, 400, Code::INVALID_ARGUMENT, "name one of them: lm, other");
  refused("x", {{"lora_path", path}, {"base_model_name", "nobody"}}, 400, Code::INVALID_ARGUMENT,
          "\"nobody\" is not loaded or has no slots for adapters (--max-loras); there is: lm, other");
  refused("x", {{"lora_path", path}, {"base_model_name", "bare"}}, 400, Code::INVALID_ARGUMENT, "\"bare\"");
  refused("x", {{"lora_path", "/nowhere"}, {"base_model_name", "lm"}}, 404, Code::NOT_FOUND, "/nowhere");
  refused("x", {{"base_model_name", "lm"}}, 400, Code::INVALID_ARGUMENT, "lora_path is not");
  refused("x", {{"lora_path", ""}, {"base_model_name", "lm"}}, 400, Code::INVALID_ARGUMENT,
          "lora_path has 0 bytes");
  refused("x", {{"lora_path", path}, {"base_model_name", ""}}, 400, Code::INVALID_ARGUMENT,
          "base_model_name has 0 bytes");
  refused(std::string(257, 'n'), {{"lora_path", path}, {"base_model_name", "lm"}}, 400,
          Code::INVALID_ARGUMENT, "model_name has 257 bytes");
  refused("x", {{"lora_path", path}, {"config", "{}"}}, 400, Code::INVALID_ARGUMENT, "leave one of them out");
  refused("x", {{"lora_rank", "8"}}, 501, Code::UNIMPLEMENTED, "\"lora_rank\"");
  refused("taken", {{"lora_path", path}, {"base_model_name", "other"}}, 409, Code::ALREADY_EXISTS,
          "unload it first");
  refused("bare", {{"lora_path", path}, {"base_model_name", "lm"}}, 409, Code::ALREADY_EXISTS,
          "a model is called \"bare\"");
  refused("taken", {}, 409, Code::ALREADY_EXISTS, "an adapter is called \"taken\"");
  refused("x", {}, 404, Code::NOT_FOUND, "\"x\"");
  CHECK_THAT(t.post("/v2/repository/models/x/load", R"({"parameters":{"lora_path":7}})").body,
             Contains("lora_path must be a string"));
  // A model that is known and not loaded has its name still.
  REQUIRE(t.unload("bare").status == 200);
  refused("bare", {{"lora_path", path}, {"base_model_name", "lm"}}, 409, Code::ALREADY_EXISTS,
          "a model is called \"bare\"");
  REQUIRE(t.load("second", {{"lora_path", path}, {"base_model_name", "lm"}}).status == 200);
  refused("third", {{"lora_path", path}, {"base_model_name", "lm"}}, 429, Code::RESOURCE_EXHAUSTED,
          "loaded: second, taken");
  const AdapterServer shut(false, false);
  CHECK(shut.load("x", {{"lora_path", path}}).status == 403);
  CHECK(shut.grpc_load("x", {{"lora_path", path}}).error_code() == Code::PERMISSION_DENIED);
}

TEST_CASE("adapters: numbers that are none, or too large, are told with the adapter's name") {
  AdapterServer t;
  const auto body = [](const std::string& path, const char* more = "") {
    return cat(R"({"lora_name":"odd","lora_path":")", path, "\"", more, "}");
  };
  const auto refused = [&](const std::string& path, const char* more, const char* param, const char* words) {
    const HttpReply r = t.post("/v1/load_lora_adapter", body(path, more));
    INFO(r.body);
    CHECK(r.status == 400);
    const json::value error = parse(r.body).at("error");
    CHECK(error.at("param") == param);
    CHECK_THAT(std::string(error.at("message").as_string()), Contains(words));
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  refused(write_adapter(t.config, nan, "nan"), "", "lora_path", "adapter odd could not be loaded");
  refused(write_adapter(t.config, inf, "inf"), "", "lora_path", "an infinite number at row 0");
  const std::string cut = write_adapter(t.config, 1.f, "cut");
  std::filesystem::resize_file(cat(cut, "/adapter_model.safetensors"), 100);
  refused(cut, "", "lora_path", "adapter odd could not be loaded");
  refused(t.adapter, R"(,"load_inplace":true)", "load_inplace", "unload the adapter first");
  refused(t.adapter, R"(,"load_inplace":1)", "load_inplace", "true or false");
  CHECK(t.text("odd") == "404");
  // Numbers whose products are none: its own requests fail, by its name.
  const std::string plain = t.text("lm");
  CHECK(t.post("/v1/load_lora_adapter",
               body(write_adapter(t.config, 3e38f, "huge"), R"(,"load_inplace":false)"))
            .status == 200);
  const HttpReply r = t.post("/v1/completions", R"({"prompt":"x","max_tokens":8,"model":"odd"})");
  CHECK(r.status == 500);
  CHECK_THAT(r.body, Contains("with the adapter 'odd', whose numbers may be at fault: model produced NaN"));
  CHECK(t.text("lm") == plain);
}

TEST_CASE("adapters: where there is an admin key, no other loads or unloads them by any call") {
  oar::ServerOptions o;
  o.api_key = "user";
  o.admin_key_file = cat(temp_dir(), "/adapter-admin-keys");
  write_file(o.admin_key_file, "admin\n");
  AdapterServer t(false, true, o);
  const auto with_key = [&](const std::string& key, const std::string& path, const std::string& body) {
    Headers headers;
    if (!key.empty()) headers.emplace_back("Authorization", cat("Bearer ", key));
    return http(t.server->http_port(), "POST", path, body, headers);
  };
  const auto listed = [&] {
    return with_key("user", "/v2/repository/index", "{}").body.find("\"polite\"") != std::string::npos;
  };
  // Of each way: what a call with this key is told, as gRPC's code.
  using Code = grpc::StatusCode;
  const auto code_of = [](const HttpReply& r) {
    INFO(r.body);
    CHECK((r.status == 200 || r.status == 401));
    return r.status == 200 ? Code::OK : Code::UNAUTHENTICATED;
  };
  const auto over_grpc = [&](const std::string& key, auto&& call) {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", cat("Bearer ", key));
    return call(context).error_code();
  };
  struct Way {
    const char* name;
    std::function<Code(const std::string& key, const std::string& path)> load;
    std::function<Code(const std::string& key)> unload;
  };
  const Way ways[] = {
      {"vLLM's routes",
       [&](const std::string& key, const std::string& path) {
         return code_of(with_key(key, "/v1/load_lora_adapter",
                                 cat(R"({"lora_name":"polite","lora_path":")", path, "\"}")));
       },
       [&](const std::string& key) {
         return code_of(with_key(key, "/v1/unload_lora_adapter", R"({"lora_name":"polite"})"));
       }},
      {"the repository over HTTP",
       [&](const std::string& key, const std::string& path) {
         return code_of(with_key(key, "/v2/repository/models/polite/load",
                                 cat(R"({"parameters":{"lora_path":")", path, "\"}}")));
       },
       [&](const std::string& key) {
         return code_of(with_key(key, "/v2/repository/models/polite/unload", "{}"));
       }},
      {"the repository over gRPC",
       [&](const std::string& key, const std::string& path) {
         return over_grpc(key, [&](grpc::ClientContext& context) {
           RepositoryModelLoadRequest ask;
           ask.set_model_name("polite");
           (*ask.mutable_parameters())["lora_path"].set_string_param(path);
           RepositoryModelLoadResponse answer;
           return t.stub->RepositoryModelLoad(&context, ask, &answer);
         });
       },
       [&](const std::string& key) {
         return over_grpc(key, [&](grpc::ClientContext& context) {
           RepositoryModelUnloadRequest ask;
           ask.set_model_name("polite");
           RepositoryModelUnloadResponse answer;
           return t.stub->RepositoryModelUnload(&context, ask, &answer);
         });
       }}};
  for (const Way& way : ways) {
    INFO(way.name);
    for (const char* key : {"", "user", "admi", "admin2"}) {
      INFO(key);
      CHECK(way.load(key, t.adapter) == Code::UNAUTHENTICATED);
      CHECK(way.load(key, "/nowhere") == Code::UNAUTHENTICATED);  // nor is anybody told what lies there
      CHECK_FALSE(listed());
    }
    CHECK(way.load("admin", t.adapter) == Code::OK);
    CHECK(listed());
    for (const char* key : {"", "user"}) CHECK(way.unload(key) == Code::UNAUTHENTICATED);
    CHECK(listed());
    CHECK(way.unload("admin") == Code::OK);
    CHECK_FALSE(listed());
  }
  // And it is for that alone.
  const std::string completion = R"({"model":"lm","prompt":"x","max_tokens":1})";
  CHECK(with_key("admin", "/v1/completions", completion).status == 401);
  CHECK(with_key("user", "/v1/completions", completion).status == 200);
}

TEST_CASE("adapters come and go by the repository's calls while others answer") {
  AdapterServer t;
  REQUIRE(t.load("stays", {{"lora_path", t.adapter}}).status == 200);
  const std::string plain = t.text("lm"), adapted = t.text("stays");
  CHECK(plain != adapted);
  std::atomic<int> strange{0};
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int i = 0; i < 20; ++i) {
      int status = 429;  // while the last request's slot is on its way back
      while (status == 429) status = t.load("comes", {{"lora_path", t.adapter}}).status;
      strange += status != 200;
      strange += t.text("comes") != adapted;
      strange += t.unload("comes").status != 200;
    }
  });
  for (int n = 0; n < 2; ++n) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        strange += t.text("lm") != plain;
        strange += t.text("stays") != adapted;
        const std::string there = t.text("comes");
        strange += there != adapted && there != "404";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(strange == 0);
  CHECK(t.index() == Strings{"bare READY", "lm READY", "stays READY"});
}

}  // namespace
