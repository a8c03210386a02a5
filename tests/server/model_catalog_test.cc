// The catalog: models of every kind come and go by one path while requests are in flight.
#include "server/api/model_catalog.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "engine/base/format.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_server.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using oar::StatusCode;
using oar::api::ModelCatalog;
using oar::api::ModelVersions;
using std::chrono::milliseconds;
namespace fs = std::filesystem;

// What a FakeSource has opened, and what of it has ended.
struct Life {
  std::atomic<int> alive{0}, opened{0};
  std::atomic<bool> refuse{false}, hold{false};  // hold: what is opened stays so until this is false
};

// Counts itself from the first moment to the last: the first member of what it counts.
struct Counted {
  explicit Counted(std::shared_ptr<Life> l) : life(std::move(l)) { ++life->alive; }
  ~Counted() { --life->alive; }
  std::shared_ptr<Life> life;
};

// A fake engine that warms up for a moment, as real ones do.
struct Loaded {
  Loaded(FakeEngineOptions options, std::shared_ptr<Life> l)
      : counted(std::move(l)), engine(std::move(options)) {
    engine.set_health(oar::EngineHealth::kStarting);
    warm_up = std::async(std::launch::async, [this] {
      std::this_thread::sleep_for(milliseconds(3));
      engine.set_health(oar::EngineHealth::kReady);
    });
  }
  Counted counted;
  FakeEngine engine;
  std::future<void> warm_up;
};

// Language models "one" and "two", which answer with their names.
class FakeSource final : public oar::api::ModelSource {
 public:
  FakeSource(std::shared_ptr<Life> life, std::chrono::microseconds step, std::vector<std::string> names)
      : life_(std::move(life)), step_(step), names_(std::move(names)) {}
  std::vector<std::string> names() const override { return names_; }
  oar::Status locate(const std::string& name) override {
    return name == "one" || name == "two" ? oar::ok_status() : oar::not_found("there is no model " + name);
  }
  oar::api::ModelKind kind_of(const std::string&) const override { return oar::api::ModelKind::kLanguage; }
  oar::Result<ModelVersions> open(const std::string& name, const std::string& config) override {
    while (life_->hold) std::this_thread::sleep_for(milliseconds(1));
    if (life_->refuse) return oar::resource_exhausted("no room");
    FakeEngineOptions o;
    o.reply = cat("I am ", name, config);
    o.step = step_;
    auto loaded = std::make_shared<Loaded>(o, life_);
    ++life_->opened;
    oar::ModelHandle handle = fake_model(loaded->engine, name);
    handle.owner = std::move(loaded);
    ModelVersions out;
    out[1].language = std::make_shared<oar::ModelHandle>(std::move(handle));
    return out;
  }

 private:
  const std::shared_ptr<Life> life_;
  const std::chrono::microseconds step_;
  const std::vector<std::string> names_;
};

struct FakeCatalog {
  explicit FakeCatalog(std::chrono::microseconds step = std::chrono::microseconds(50), size_t most = 0,
                       std::vector<std::string> names = {"one", "two"})
      : catalog(std::make_shared<ModelCatalog>(std::make_unique<FakeSource>(life, step, std::move(names)))) {
    catalog->keep_at_most(most);
    const oar::Status s = catalog->load_all();
    REQUIRE(s.ok());
  }
  // The number of open engines, once it is that.
  bool settles(int alive) const {
    for (int i = 0; i < 2000 && life->alive != alive; ++i) std::this_thread::sleep_for(milliseconds(5));
    return life->alive == alive;
  }
  std::shared_ptr<Life> life = std::make_shared<Life>();
  std::shared_ptr<ModelCatalog> catalog;
};

std::unique_ptr<oar::Server> serve(std::shared_ptr<ModelCatalog> catalog) {
  oar::ServerOptions o;
  o.http_address = o.grpc_address = "127.0.0.1:0";
  o.model_control = true;
  auto server = oar::Server::start(o, std::move(catalog));
  REQUIRE_OK(server);
  return std::move(*server);
}

std::string completion_of(const std::string& model, const std::string& more = {}) {
  return cat(R"({"prompt":"x","model":")", model, "\"", more, "}");
}

// Of the first series with that name and label; empty when there is none.
std::string value_of(const std::string& metrics, const std::string& name, const std::string& label) {
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + "{") && line.find(label) != std::string::npos)
      return line.substr(line.rfind(' ') + 1);
  return {};
}

TEST_CASE("ModelCatalog: a model that nobody asks for sleeps, and the next request wakes it") {
  FakeCatalog f;
  const auto server = serve(f.catalog);
  const int port = server->http_port();
  const auto text = [&](const std::string& body) {
    const HttpReply r = http(port, "POST", "/v1/completions", body);
    INFO(r.body);
    REQUIRE(r.status == 200);
    return std::string(parse(r.body).at("choices").at(0).at("text").as_string());
  };
  f.catalog->sleep_when_idle(milliseconds(100));
  REQUIRE(f.settles(0));
  // What only looks does not wake them, and they are there for whoever looks.
  CHECK(http(port, "GET", "/health/ready").status == 200);
  CHECK(parse(http(port, "GET", "/v1/models").body).at("data").as_array().size() == 2);
  CHECK(parse(http(port, "GET", "/v1/models/one").body).at("max_model_len") == 512);
  const auto props = parse(http(port, "GET", "/props?model=one").body);
  CHECK(props.at("is_sleeping") == true);
  CHECK(props.at("model_alias") == "one");
  CHECK(http(port, "GET", "/v2/models/one/ready").status == 200);
  CHECK(http(port, "GET", "/metrics").status == 200);
  for (const auto& entry : f.catalog->index()) CHECK(entry.state == "READY");
  CHECK(f.life->opened == 2);
  // One that is asked for wakes alone.
  CHECK(text(completion_of("one", R"(,"max_tokens":99)")) == "I am one");
  CHECK(f.life->opened == 3);
  REQUIRE(f.settles(0));
  // A load that fails is told, and the next request tries again.
  f.life->refuse = true;
  const HttpReply refused = http(port, "POST", "/v1/completions", completion_of("two"));
  CHECK(refused.status == 503);
  CHECK(refused.body.find("no room") != std::string::npos);
  f.life->refuse = false;
  CHECK(http(port, "POST", "/tokenize", R"({"model":"two","prompt":"x"})").status == 200);
  // What was unloaded stays away.
  REQUIRE_OK(f.catalog->unload("one"));
  CHECK(http(port, "POST", "/v1/completions", completion_of("one")).status == 503);
  CHECK_FALSE(f.catalog->sleeper("one"));
  REQUIRE(f.settles(0));
  REQUIRE_OK(f.catalog->wake());
  CHECK(f.catalog->find_language("two").ok());
}

TEST_CASE("ModelCatalog: the only model wakes by any of its names; one that works does not sleep") {
  FakeCatalog f(std::chrono::milliseconds(40), 0, {"one"});
  f.catalog->call_also("one", {"uno"}, {});
  f.catalog->answer_any_name();
  const auto server = serve(f.catalog);
  f.catalog->sleep_when_idle(milliseconds(100));
  for (const char* name : {"", "uno", "gpt-9", "one:latest"}) {
    INFO(name);
    REQUIRE(f.settles(0));
    CHECK(parse(http(server->http_port(), "GET", "/is_sleeping").body).at("is_sleeping") == true);
    const int opened = f.life->opened;
    const std::string model = *name == '\0' ? "" : cat(R"("model":")", name, R"(",)");
    const HttpReply r =
        http(server->http_port(), "POST", "/completion", cat("{", model, R"("prompt":"x","n_predict":99})"));
    INFO(r.body);
    CHECK(r.status == 200);  // which takes longer than the time after which it sleeps
    CHECK(parse(r.body).at("content") == "I am one");
    CHECK(f.life->opened == opened + 1);
  }
}

TEST_CASE("ModelCatalog: models come and go by their names in the list of models") {
  FakeCatalog f;
  const auto server = serve(f.catalog);
  const int port = server->http_port();
  const auto post = [&](const std::string& path, int status, const std::string& body = {}) {
    const HttpReply r = http(port, "POST", "/v1/models/" + path, body);
    INFO(r.body);
    CHECK(r.status == status);
    return parse(r.body);
  };
  const auto gone = post("one/unload", 200);
  CHECK(gone.at("status") == "success");
  CHECK(gone.at("model") == "one");
  CHECK(parse(http(port, "GET", "/v1/models").body).at("data").as_array().size() == 1);
  const auto message = [](const oar::json::value& v) {
    return std::string(v.at("error").at("message").as_string());
  };
  CHECK_THAT(message(post("one/unload", 400)), Contains("not loaded"));
  CHECK(http(port, "GET", "/v1/models/one").status == 404);
  const auto card = post("one/load", 200, "{}");
  CHECK(card.at("id") == "one");
  CHECK(card.at("max_model_len") == 512);
  CHECK_THAT(message(post("one/load", 400)), Contains("already loaded"));
  CHECK(post("three/load", 404).at("error").at("param") == "model");
  post("three/unload", 404);
  post("%2e%2e/load", 404);
  CHECK_THAT(message(post("two/unload", 400, R"({"force":true})")), Contains("force"));
  CHECK(http(port, "POST", "/v1/completions", completion_of("two")).status == 200);
  // Many at once: one of them does it.
  post("two/unload", 200);
  std::vector<std::future<int>> asked;
  for (int i = 0; i < 5; ++i)
    asked.push_back(
        std::async(std::launch::async, [&] { return http(port, "POST", "/v1/models/two/load", "").status; }));
  int loaded = 0;
  for (auto& a : asked) loaded += a.get() == 200 ? 1 : 0;
  CHECK(loaded == 1);
}

TEST_CASE("ModelCatalog: at most so many models, which come when they are asked for") {
  FakeCatalog f(std::chrono::microseconds(50), 1);
  CHECK(f.life->opened == 1);
  CHECK(f.catalog->index()[1].state == "UNAVAILABLE");
  CHECK(f.catalog->loadable() == std::vector<std::string>{"two"});
  CHECK_FALSE(f.catalog->bring("two"));  // nobody is there to load it
  const auto server = serve(f.catalog);
  const int port = server->http_port();
  const auto text = [&](const std::string& model) {
    const HttpReply r = http(port, "POST", "/v1/completions", completion_of(model, R"(,"max_tokens":99)"));
    INFO(r.body);
    REQUIRE(r.status == 200);
    return std::string(parse(r.body).at("choices").at(0).at("text").as_string());
  };
  CHECK(text("one") == "I am one");
  CHECK(f.life->opened == 1);
  CHECK(text("two") == "I am two");
  CHECK(f.life->opened == 2);
  CHECK(f.settles(1));
  CHECK(f.catalog->loadable() == std::vector<std::string>{"one"});
  // Both are listed, and which one is meant has to be said.
  const auto listed = parse(http(port, "GET", "/v1/models").body).at("data");
  CHECK(listed.as_array().size() == 2);
  CHECK(http(port, "GET", "/v1/models/one").status == 200);
  CHECK(http(port, "GET", "/v1/models/three").status == 404);
  CHECK(http(port, "POST", "/v1/completions", R"({"prompt":"x"})").status == 400);
  // Many at once, for both: each is answered, and never are two in memory.
  std::vector<std::future<HttpReply>> asked;
  for (int i = 0; i < 12; ++i)
    asked.push_back(std::async(std::launch::async, [&, i] {
      const std::string model = i < 6 ? "one" : "two";
      HttpReply r;
      for (int k = 0; k < 50; ++k) {  // one that goes while it is looked for says so
        r = http(port, "POST", "/v1/completions", completion_of(model, R"(,"max_tokens":99)"));
        if (r.status != 503) break;
      }
      return r;
    }));
  for (size_t i = 0; i < asked.size(); ++i) {
    const HttpReply r = asked[i].get();
    INFO(r.body);
    CHECK(r.status == 200);
  }
  CHECK(f.life->alive <= 1);
  // Triton's protocol waits as well over HTTP; over gRPC it is told to ask again.
  for (const char* model : {"one", "two"}) {
    CHECK(http(port, "POST", cat("/v2/models/", model, "/generate"), R"({"text_input":"x"})").status == 200);
    CHECK(f.settles(1));
  }
  // One that cannot be loaded says why, once for each that asks.
  f.life->refuse = true;
  const HttpReply refused = http(port, "POST", "/v1/completions", completion_of("one"));
  CHECK(refused.status == 503);
  CHECK_THAT(refused.body, Contains("no room"));
  f.life->refuse = false;
  CHECK(text("one") == "I am one");
}

// One call of ModelInfer, and the text of one of Generate.
grpc::Status infer_text(int port, const std::string& model) {
  grpc::ClientContext context;
  inference::ModelInferRequest request;
  inference::ModelInferResponse response;
  request.set_model_name(model);
  return inference::GRPCInferenceService::NewStub(channel_to(port))->ModelInfer(&context, request, &response);
}
std::pair<grpc::Status, std::string> generated(int port, const std::string& model) {
  grpc::ClientContext context;
  oar::v1::GenerateRequest request;
  request.set_model(model);
  request.set_prompt("x");
  const auto stub = oar::v1::Generation::NewStub(channel_to(port));
  const auto reader = stub->Generate(&context, request);
  std::string text;
  for (oar::v1::GenerateChunk chunk; reader->Read(&chunk);) text += chunk.text();
  return {reader->Finish(), text};
}

TEST_CASE("ModelCatalog: a model that is being loaded is UNAVAILABLE, by every protocol, and says so") {
  FakeCatalog f;
  const auto server = serve(f.catalog);
  REQUIRE(f.catalog->unload("two").ok());
  f.life->hold = true;
  auto load = std::async(std::launch::async, [&] { return f.catalog->load("two", {}); });
  for (int i = 0; i < 2000 && f.catalog->index()[1].state != "LOADING"; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  const std::string words = "\"two\" is being loaded; ask again";
  const std::pair<const char*, std::string> asked[] = {
      {"/v1/completions", completion_of("two")},
      {"/v1/chat/completions", R"({"model":"two","messages":[{"role":"user","content":"x"}]})"},
      {"/api/generate", completion_of("two")},
      {"/v2/models/two/generate", R"({"text_input":"x"})"},
      {"/v2/models/two/infer", R"({"inputs":[]})"}};
  for (const auto& [path, body] : asked) {
    INFO(path);
    const HttpReply r = http(server->http_port(), "POST", path, body);
    CHECK(r.status == 503);
    CHECK(r.headers.at("retry-after") == "1");
    const auto error = parse(r.body).at("error");
    CHECK_THAT(std::string((error.is_string() ? error : error.at("message")).as_string()), Contains(words));
  }
  const auto told = [&](const grpc::Status& s) {
    CHECK(s.error_code() == grpc::StatusCode::UNAVAILABLE);
    CHECK_THAT(s.error_message(), Contains(words));
  };
  told(infer_text(server->grpc_port(), "two"));
  told(generated(server->grpc_port(), "two").first);
  f.life->hold = false;
  REQUIRE_OK(load.get());
  CHECK(generated(server->grpc_port(), "two").second == "I am two");
}

TEST_CASE("ModelCatalog: who asks for a model that comes on demand waits or is told, and then has it") {
  FakeCatalog f(std::chrono::microseconds(50), 1);
  const auto server = serve(f.catalog);
  f.life->hold = true;
  const auto told = [&] {
    const grpc::Status s = infer_text(server->grpc_port(), "two");
    CHECK(s.error_code() == grpc::StatusCode::UNAVAILABLE);
    CHECK_THAT(s.error_message(), Contains("\"two\" is being loaded; ask again"));
  };
  told();  // begins the load
  told();
  const HttpReply late = http(server->http_port(), "POST", "/v1/completions", completion_of("two"),
                              {{"X-Request-Timeout", "0.02"}});
  CHECK(late.status == 503);
  CHECK(late.headers.at("retry-after") == "1");
  CHECK_THAT(late.body, Contains("is being loaded"));
  // Generate waits, as requests over HTTP do.
  auto waits = std::async(std::launch::async, [&] { return generated(server->grpc_port(), "two"); });
  CHECK(waits.wait_for(milliseconds(20)) == std::future_status::timeout);
  f.life->hold = false;
  const auto [status, text] = waits.get();
  CHECK(status.error_message() == "");
  CHECK(text == "I am two");
}

TEST_CASE("ModelCatalog: a model that makes room finishes what it has accepted") {
  FakeCatalog f(milliseconds(5), 1);
  const auto server = serve(f.catalog);
  auto slow = std::async(std::launch::async, [&] {
    return http(server->http_port(), "POST", "/v1/completions", completion_of("one", R"(,"max_tokens":99)"));
  });
  while (f.catalog->find("one", "")->language->engine->stats().running == 0)
    std::this_thread::sleep_for(milliseconds(1));
  const HttpReply other =
      http(server->http_port(), "POST", "/v1/completions", completion_of("two", R"(,"max_tokens":99)"));
  CHECK(other.status == 200);
  const HttpReply first = slow.get();
  CHECK(first.status == 200);
  CHECK(parse(first.body).at("choices").at(0).at("text") == "I am one");
}

TEST_CASE(
    "ModelCatalog: a model that comes back waits for its former life's requests, whose memory it wants") {
  FakeCatalog f(milliseconds(5));
  const auto server = serve(f.catalog);
  auto slow = std::async(std::launch::async, [&] {
    return http(server->http_port(), "POST", "/v1/completions", completion_of("one", R"(,"max_tokens":99)"));
  });
  while (f.catalog->find("one", "")->language->engine->stats().running == 0)
    std::this_thread::sleep_for(milliseconds(1));
  REQUIRE(f.catalog->unload("one").ok());
  REQUIRE(f.catalog->load("one", {}).ok());
  CHECK(f.life->alive == 2);  // it and "two"
  CHECK(parse(slow.get().body).at("choices").at(0).at("text") == "I am one");
}

TEST_CASE("ModelCatalog: asleep nothing is in memory, and waking brings back what was") {
  FakeCatalog f;
  const auto server = serve(f.catalog);
  const int port = server->http_port();
  REQUIRE(f.catalog->unload("two").ok());
  CHECK(parse(http(port, "GET", "/is_sleeping").body).at("is_sleeping") == false);
  CHECK(http(port, "POST", "/sleep?level=3").status == 400);
  REQUIRE(http(port, "POST", "/sleep?level=1").status == 200);
  CHECK(f.life->alive == 0);
  CHECK(parse(http(port, "GET", "/is_sleeping").body).at("is_sleeping") == true);
  CHECK(http(port, "GET", "/health/ready").status == 503);
  CHECK(http(port, "POST", "/sleep").status == 200);  // it sleeps already
  const HttpReply refused = http(port, "POST", "/v1/completions", completion_of("one"));
  CHECK(refused.status == 503);
  CHECK_THAT(refused.body, Contains("/wake_up"));
  CHECK(http(port, "POST", "/v2/repository/models/two/load").status == 400);
  CHECK(http(port, "POST", "/wake_up?tags=weights").status == 400);
  REQUIRE(http(port, "POST", "/wake_up").status == 200);
  CHECK(f.life->alive == 1);  // two was not there before
  CHECK(http(port, "GET", "/health/ready").status == 200);
  CHECK(http(port, "POST", "/v1/completions", completion_of("one")).status == 200);
  CHECK(http(port, "POST", "/wake_up").status == 200);
}

TEST_CASE("ModelCatalog: states of a model") {
  FakeCatalog f;
  ModelCatalog& c = *f.catalog;
  REQUIRE(c.index().size() == 2);
  CHECK(c.index()[0].name == "one");
  CHECK(c.index()[0].state == "READY");
  CHECK(c.find("one", "1")->kind() == oar::api::ModelKind::kLanguage);
  CHECK(c.find("one", "2").status().message() == "model one has no version \"2\"; there is: 1");
  CHECK(c.find("three", "").status().message() ==
        "the model \"three\" is not served here; there is: one, two");
  const auto unnamed = c.find_language("");
  CHECK(unnamed.status().code() == StatusCode::kInvalidArgument);
  CHECK_THAT(unnamed.status().message(), Contains("one, two"));

  CHECK(c.unload("one").ok());
  CHECK(f.settles(1));
  CHECK((*c.find_language(""))->name == "two");
  const oar::Status gone = c.find("one", "").status();
  CHECK(gone.code() == StatusCode::kUnavailable);
  CHECK_THAT(gone.message(), Contains("unloaded"));
  CHECK(c.find_language("one").status().code() == StatusCode::kUnavailable);
  CHECK(c.index()[0].state == "UNAVAILABLE");
  CHECK(c.loaded().size() == 1);

  f.life->refuse = true;
  CHECK(c.load("one", "").message() == "no room");
  CHECK(c.index()[0].reason == "no room");
  CHECK_FALSE(c.load("two", "").ok());
  CHECK(c.find("two", "").ok());  // what was there goes on
  CHECK(c.index()[1].state == "READY");
  CHECK(c.index()[1].reason == "no room");
  f.life->refuse = false;
  CHECK(c.load("one", "").ok());
  CHECK(c.find("one", "").ok());
  CHECK(c.index()[0].reason.empty());
  CHECK(c.load("three", "").code() == StatusCode::kNotFound);
  CHECK(c.unload("three").code() == StatusCode::kNotFound);
  CHECK(c.index().size() == 2);
  CHECK(ModelCatalog().load("one", "").code() == StatusCode::kUnimplemented);
}

TEST_CASE("ModelCatalog: a model ends elsewhere when its own engine's thread is its last holder") {
  FakeCatalog f;
  struct Keeper final : oar::TokenSink {
    void on_event(oar::TokenEvent&& event) noexcept override {
      if (event.finish == oar::FinishReason::kNone) return;
      model.reset();
      done.set_value();
    }
    oar::ModelHandlePtr model;
    std::promise<void> done;
  };
  const auto keeper = std::make_shared<Keeper>();
  keeper->model = *f.catalog->find_language("one");
  oar::Engine& engine = *keeper->model->engine;
  auto done = keeper->done.get_future();
  REQUIRE(f.catalog->unload("one").ok());
  oar::Request request;
  request.prompt = {'x'};
  request.sink = keeper;
  REQUIRE_OK(engine.submit(std::move(request)));
  CHECK(done.wait_for(milliseconds(10'000)) == std::future_status::ready);
  CHECK(f.settles(1));
}

TEST_CASE("a language model unloaded while it answers finishes, and its metrics go with it") {
  FakeCatalog f(milliseconds(5));
  const auto server = serve(f.catalog);
  const int port = server->http_port();
  const auto control = [&](const char* verb) {
    return http(port, "POST", cat("/v2/repository/models/one/", verb), "{}").status;
  };
  const auto metrics = [&] { return http(port, "GET", "/metrics").body; };
  const std::string ours = R"(model_name="one")";

  auto& engine = dynamic_cast<FakeEngine&>(*(*f.catalog->find_language("one"))->engine);
  RawClient stream(port);
  stream.send(make_request("POST", "/v1/completions",
                           completion_of("one", R"(,"stream":true,"max_tokens":100,"ignore_eos":true)")));
  REQUIRE(stream.read_until("data: "));
  engine.pause(true);
  CHECK(value_of(metrics(), "vllm:time_to_first_token_seconds_count", ours) == "1");
  CHECK(control("unload") == 200);
  CHECK(f.life->alive == 2);
  CHECK(http(port, "POST", "/v1/completions", completion_of("one")).status == 503);
  CHECK(http(port, "GET", "/v1/models/one").status == 404);
  CHECK(http(port, "GET", "/v2/models/one/ready").status == 503);
  CHECK(http(port, "GET", "/v1/models").body.find("\"one\"") == std::string::npos);
  CHECK(http(port, "GET", "/health/ready").status == 200);
  engine.pause(false);
  REQUIRE(stream.read_until("[DONE]"));
  CHECK(f.settles(1));
  std::string after = metrics();
  CHECK(after.find(ours) == std::string::npos);
  CHECK(after.find(R"(model_name="two")") != std::string::npos);

  CHECK(control("load") == 200);
  CHECK(http(port, "POST", "/v1/completions", completion_of("one", R"(,"max_tokens":1)")).status == 200);
  after = metrics();
  CHECK(value_of(after, "vllm:time_to_first_token_seconds_count", ours) == "1");
  CHECK(http(port, "GET", "/v2/models/one/stats").body.find("\"success\":{\"count\":1,") !=
        std::string::npos);
}

TEST_CASE("ModelCatalog: loads, unloads and requests at the same time") {
  FakeCatalog f;
  const auto server = serve(f.catalog);
  const int port = server->http_port();
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0}, absent{0}, strange{0};
  std::vector<std::thread> threads;
  const auto count = [&](int status, bool right) {
    if (status == 200 && right) ++answered;
    else if (status == 503) ++absent;
    else ++strange;
  };
  for (int k = 0; k < 3; ++k) {
    threads.emplace_back([&, k] {
      for (int i = k; !stop; ++i) {
        const std::string model = i % 2 == 0 ? "one" : "two";
        const bool stream = i % 3 == 0;
        const HttpReply r =
            http(port, "POST", "/v1/completions", completion_of(model, stream ? R"(,"stream":true)" : ""));
        // A stream has the text in pieces; its end says that it was whole.
        count(r.status, r.body.find(stream ? "[DONE]" : "I am " + model) != std::string::npos);
      }
    });
  }
  threads.emplace_back([&] {
    const auto stub = std::make_unique<oar::v1::Generation::Stub>(channel_to(server->grpc_port()));
    while (!stop) {
      grpc::ClientContext context;
      oar::v1::GenerateRequest request;
      request.set_model("one");
      request.set_prompt("x");
      auto reader = stub->Generate(&context, request);
      std::string text;
      for (oar::v1::GenerateChunk chunk; reader->Read(&chunk);) text += chunk.text();
      const grpc::Status s = reader->Finish();
      count(s.ok() ? 200 : s.error_code() == grpc::StatusCode::UNAVAILABLE ? 503 : 500, text == "I am one");
    }
  });
  threads.emplace_back([&] {  // what looks at the catalog; a model that warms up makes nobody unready
    while (!stop) {
      if (http(port, "GET", "/health/ready").status != 200) ++strange;
      if (http(port, "GET", "/metrics").status != 200) ++strange;
      if (http(port, "POST", "/v2/repository/index", "{}").status != 200) ++strange;
    }
  });
  for (int i = 0; i < 40; ++i) {
    const std::string model = i % 2 == 0 ? "one" : "two";
    CHECK(f.catalog->load(model, "").ok());  // beside the one that answers
    if (i % 4 < 2) CHECK(f.catalog->unload(model).ok());
    std::this_thread::sleep_for(milliseconds(5));
  }
  CHECK(f.catalog->load("one", "").ok());
  CHECK(f.catalog->load("two", "").ok());
  for (int i = 0; i < 12000 && answered < 20; ++i) std::this_thread::sleep_for(milliseconds(5));
  stop = true;
  for (std::thread& t : threads) t.join();
  CHECK(strange == 0);
  CHECK(answered >= 20);
  CHECK(f.life->opened == 44);
  CHECK(f.settles(2));
}

TEST_CASE("a repository's language models are loaded and unloaded like all others") {
  const std::string folder = write_repository();
  const std::string tiny = write_tiny_model(load_tiny_golden("llama3"), TinyDtype::f32);
  std::ofstream(fs::path(tiny) / "tokenizer.json") << byte_tokenizer_json(false);
  fs::create_directories(fs::path(folder) / "lm");
  fs::copy(tiny, fs::path(folder) / "lm/2", fs::copy_options::recursive);
  int opened = 0;
  oar::RepositoryOptions r;
  r.predictor.threads = 1;
  r.open_language = [&](const std::string& name, const std::string& path) {
    ++opened;
    oar::LanguageModelOptions o;
    o.name = name;
    o.threads = 1;
    o.max_sequences = 2;
    o.max_context = 64;
    o.memory_bytes = 64 << 20;
    return oar::LanguageModel::load(path, o);
  };
  auto catalog = oar::open_repository(folder, "", r);
  REQUIRE_OK(catalog);
  const auto server = serve(std::shared_ptr<ModelCatalog>(std::move(*catalog)));
  const int port = server->http_port();
  const auto control = [&](const char* verb, const std::string& body = "{}") {
    return http(port, "POST", cat("/v2/repository/models/lm/", verb), body);
  };
  const auto answers = [&] {
    return http(port, "POST", "/v1/completions", completion_of("lm", R"(,"max_tokens":3,"temperature":0)"));
  };
  CHECK(opened == 1);
  const HttpReply first = answers();
  REQUIRE(first.status == 200);
  const std::string metadata = http(port, "GET", "/v2/models/lm").body;
  CHECK(parse(metadata).at("versions") == oar::json::value({"2"}));
  CHECK(control("unload").status == 200);
  CHECK(answers().status == 503);
  CHECK(http(port, "POST", "/v2/models/two/infer",
             R"({"inputs":[{"name":"a","datatype":"FP32","shape":[1,2],"data":[1,2]},)"
             R"({"name":"b","datatype":"FP32","shape":[1,2],"data":[1,2]}]})")
            .status == 200);
  CHECK(control("load").status == 200);
  CHECK(opened == 2);
  const HttpReply again = answers();
  REQUIRE(again.status == 200);
  CHECK(parse(again.body).at("choices") == parse(first.body).at("choices"));
  const HttpReply refused = control("load", R"({"parameters":{"config":"{\"dynamic_batching\":{}}"}})");
  CHECK(refused.status == 501);
  CHECK_THAT(refused.body, Contains("'dynamic_batching' is for ordinary models"));
  CHECK(answers().status == 200);
}

}  // namespace
