// Readiness, draining and the metrics of a server's life.
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "engine/base/device_usage.h"
#include "engine/base/format.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using std::chrono::milliseconds;

const std::string kStream300 = R"({"prompt":"a","stream":true,"ignore_eos":true,"max_tokens":300})";

FakeEngineOptions slow_engine() {
  FakeEngineOptions o;
  o.step = milliseconds(2);
  return o;
}

// The value of the series `name` that has these labels (and perhaps others, in any order).
double metric(const std::string& text, const std::string& name, const std::vector<std::string>& labels = {}) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(name + "{", 0) != 0 && line.rfind(name + " ", 0) != 0) continue;
    bool all = true;
    for (const std::string& label : labels) all &= line.find(label) != std::string::npos;
    if (all) return std::stod(line.substr(line.rfind(' ') + 1));
  }
  FAIL("no series " << name);
  return 0;
}

TEST_CASE("draining: not ready at once, what runs finishes, new work is refused") {
  TestServer t(slow_engine());
  RawClient stream(t.http()), kept(t.http());
  kept.send(make_request("GET", "/health"));
  CHECK(kept.read_reply().status == 200);
  stream.send(make_request("POST", "/v1/completions", kStream300));
  REQUIRE(stream.read_until("data: "));
  auto oar = oar::v1::Generation::NewStub(channel_to(t.grpc()));
  grpc::ClientContext context;
  oar::v1::GenerateRequest request;
  request.set_prompt("a");
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_stopping()->set_max_tokens(300);
  auto reader = oar->Generate(&context, request);
  oar::v1::GenerateChunk chunk;
  REQUIRE(reader->Read(&chunk));

  t.server->set_ready(false);
  CHECK_FALSE(t.server->ready());
  CHECK(http(t.http(), "GET", "/health/ready").status == 503);
  CHECK(http(t.http(), "GET", "/health/live").status == 200);
  CHECK(raw_call(t.grpc(), "/grpc.health.v1.Health/Check", "").second == std::string("\x08\x02", 2));
  // Who has not yet heard of it is served.
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","max_tokens":1})").status == 200);

  auto drained =
      std::async(std::launch::async, [&] { return t.server->drain_and_stop(milliseconds(20'000)); });
  CHECK(kept.closed_by_peer());  // idle connections go first
  CHECK_THROWS(RawClient(t.http()));
  const HttpReply answer = stream.read_reply();
  CHECK(answer.complete);
  CHECK(answer.body.find("[DONE]") != std::string::npos);
  CHECK(stream.closed_by_peer());
  while (reader->Read(&chunk)) continue;
  CHECK(reader->Finish().ok());
  CHECK(chunk.finish_reason() == oar::v1::FINISH_REASON_LENGTH);
  CHECK(drained.get());
  CHECK_THROWS(RawClient(t.http()));
  CHECK(t.server->drain_and_stop(milliseconds(0)));  // again: nothing to do
}

TEST_CASE("draining: what does not finish in time is cut off and freed") {
  TestServer t(slow_engine());
  RawClient stream(t.http());
  stream.send(make_request("POST", "/v1/completions", kStream300));
  REQUIRE(stream.read_until("data: "));
  auto oar = oar::v1::Generation::NewStub(channel_to(t.grpc()));
  grpc::ClientContext context;
  oar::v1::GenerateRequest request;
  request.set_prompt("a");
  request.mutable_stopping()->set_ignore_eos(true);
  auto reader = oar->Generate(&context, request);
  oar::v1::GenerateChunk chunk;
  REQUIRE(reader->Read(&chunk));
  CHECK_FALSE(t.server->drain_and_stop(milliseconds(50)));
  const HttpReply cut = stream.read_reply();
  CHECK(cut.complete);  // the stream ends as streams do, with an error in it
  CHECK(cut.body.find("the server stopped before the answer was complete") != std::string::npos);
  CHECK(cut.body.find("unavailable_error") != std::string::npos);
  CHECK(cut.body.find("[DONE]") == std::string::npos);
  while (reader->Read(&chunk)) continue;
  const grpc::Status end = reader->Finish();
  CHECK(end.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(end.error_message().find("the server stopped") != std::string::npos);
  CHECK(t.engine.wait_idle());
  CHECK(t.engine.stats().finished[static_cast<size_t>(oar::FinishReason::kCancelled)] == 2);
}

TEST_CASE("a generation whose client leaves is logged and charged, over both transports") {
  const std::string keys = temp_dir() + "/leaving-keys", log = temp_dir() + "/leaving.jsonl";
  // A prompt of one token leaves one, which any token of an answer takes.
  std::ofstream(keys, std::ios::binary)
      << "a tokens-per-minute=2\nb tokens-per-minute=2\nc tokens-per-minute=2\n";
  oar::ServerOptions o;
  o.api_key_file = keys;
  o.request_log = log;
  TestServer t(slow_engine(), o);
  const auto key = [](const char* name) { return Headers{{"Authorization", std::string("Bearer ") + name}}; };
  size_t count = 0;
  const auto check_books = [&](const char* name) {
    ++count;
    std::vector<oar::json::object> lines;
    for (int tries = 0; tries < 5000 && lines.size() < count; ++tries) {
      std::this_thread::sleep_for(milliseconds(2));
      lines.clear();
      std::ifstream in(log);
      for (std::string line; std::getline(in, line) && !in.eof();) lines.push_back(parse(line).as_object());
    }
    REQUIRE(lines.size() == count);
    CHECK(lines.back().at("finish").as_string() == "cancelled");
    CHECK(lines.back().at("status").as_string() == "CANCELLED");
    CHECK(lines.back().at("prompt_tokens").to_number<int64_t>() == 1);
    CHECK(lines.back().at("completion_tokens").to_number<int64_t>() >= 1);
    const HttpReply refused =
        http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","max_tokens":1})", key(name));
    CHECK(refused.status == 429);
    CHECK(refused.body.find("tokens per minute") != std::string::npos);
    ++count;  // its line
  };
  {
    RawClient stream(t.http());
    stream.send(make_request("POST", "/v1/completions", kStream300, key("a")));
    REQUIRE(stream.read_until("data: "));
  }
  check_books("a");
  const uint64_t before = t.engine.stats().generation_tokens;
  RawClient whole(t.http());
  whole.send(make_request("POST", "/v1/completions", R"({"prompt":"a","ignore_eos":true,"max_tokens":300})",
                          key("b")));
  while (t.engine.stats().generation_tokens == before) std::this_thread::sleep_for(milliseconds(1));
  whole.close();
  check_books("b");
  auto stub = oar::v1::Generation::NewStub(channel_to(t.grpc()));
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer c");
  oar::v1::GenerateRequest request;
  request.set_prompt("a");
  request.mutable_stopping()->set_ignore_eos(true);
  oar::v1::GenerateChunk chunk;
  auto reader = stub->Generate(&context, request);
  REQUIRE(reader->Read(&chunk));
  context.TryCancel();
  while (reader->Read(&chunk)) continue;
  CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  check_books("c");
}

TEST_CASE("a generation that is refused before an engine hears of it has its line in the log") {
  const std::string keys = temp_dir() + "/refused-keys", log = temp_dir() + "/refused.jsonl";
  std::filesystem::remove(log);
  std::ofstream(keys, std::ios::binary) << "a name=alpha\nb name=beta tokens-per-minute=1\n";
  oar::ServerOptions o;
  o.api_key_file = keys;
  o.request_log = log;
  TestServer t({}, o);
  const std::string model =
      parse(http(t.http(), "GET", "/v1/models", "", {{"Authorization", "Bearer a"}}).body)
          .at("data")
          .at(0)
          .at("id")
          .as_string()
          .c_str();
  size_t count = 0;
  const auto line = [&](const char* key, const std::string& name, const char* status) {
    std::vector<oar::json::object> lines;
    std::ifstream in(log);
    for (std::string text; std::getline(in, text);) lines.push_back(parse(text).as_object());
    REQUIRE(lines.size() == ++count);
    INFO(oar::json::serialize(lines.back()));
    CHECK(lines.back().at("key").as_string() == key);
    CHECK(lines.back().at("model").as_string() == name);
    CHECK(lines.back().at("status").as_string() == status);
    CHECK(lines.back().at("finish").as_string() == (std::string_view(status) == "OK" ? "length" : "refused"));
    return lines.back();
  };
  const auto post = [&](const char* key, const std::string& path, const std::string& body) {
    return http(t.http(), "POST", path, body,
                {{"Authorization", std::string("Bearer ") + key}, {"X-Request-Id", "mine"}})
        .status;
  };
  CHECK(post("a", "/v1/completions", R"({"prompt":"a","top_p":7})") == 400);
  CHECK(line("alpha", model, "INVALID_ARGUMENT").at("id").as_string() == "gen-mine");
  CHECK(post("a", "/v1/chat/completions", "{") == 400);
  line("alpha", model, "INVALID_ARGUMENT");
  CHECK(post("a", "/v1/messages", R"({"model":"absent","max_tokens":1,"messages":[]})") == 404);
  line("alpha", "absent", "NOT_FOUND");
  CHECK(post("a", "/v2/models/absent/generate", R"({"text_input":"x"})") == 404);
  line("alpha", "absent", "NOT_FOUND");
  CHECK(post("a", "/v2/models/" + model + "/infer", R"({"inputs":[]})") == 400);
  line("alpha", model, "INVALID_ARGUMENT");
  CHECK(post("b", "/v1/completions", R"({"prompt":"abc","max_tokens":1})") == 200);
  line("beta", model, "OK");
  CHECK(post("b", "/v1/completions", R"({"prompt":"abc","max_tokens":1})") == 429);
  line("beta", model, "RESOURCE_EXHAUSTED");
  const auto over_grpc = [&](const char* key, const char* name) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + key);
    oar::v1::GenerateRequest request;
    request.set_prompt("a");
    request.set_model(name);
    oar::v1::GenerateChunk chunk;
    auto reader = oar::v1::Generation::NewStub(channel_to(t.grpc()))->Generate(&context, request);
    while (reader->Read(&chunk)) continue;
    return reader->Finish().error_code();
  };
  CHECK(over_grpc("a", "absent") == grpc::StatusCode::NOT_FOUND);
  line("alpha", "absent", "NOT_FOUND");
  CHECK(over_grpc("b", "") == grpc::StatusCode::RESOURCE_EXHAUSTED);
  line("beta", model, "RESOURCE_EXHAUSTED");
  CHECK(t.engine.submitted() == 1);
}

TEST_CASE("an address that cannot be had is an error, not a crash") {
  TestServer t;
  FakeEngine engine;
  for (const std::string& address :
       {"127.0.0.1:" + std::to_string(t.http()), std::string("nowhere.invalid:80"), std::string("127.0.0.1"),
        std::string("127.0.0.1:99999"), std::string("127.0.0.1:x")}) {
    oar::ServerOptions o;
    o.http_address = address;
    o.grpc_address.clear();
    const auto failed = oar::Server::start(o, serving({fake_model(engine)}));
    REQUIRE_FALSE(failed.ok());
    CHECK(failed.status().message().find(address) != std::string::npos);
    CHECK(oar::Server::check(o).message() == failed.status().message());
  }
  oar::ServerOptions o;
  o.http_address.clear();
  o.grpc_address = "127.0.0.1:" + std::to_string(t.grpc());
  CHECK_FALSE(oar::Server::start(o, serving({fake_model(engine)})).ok());
  CHECK_FALSE(oar::Server::check(o).ok());
  o.grpc_address = o.http_address = "127.0.0.1:0";
  CHECK(oar::Server::check(o).ok());
  o.tls.certificate = "/nowhere/server.crt";
  o.tls.key = "/nowhere/server.key";
  CHECK(oar::Server::check(o).message().find("/nowhere/server.crt") != std::string::npos);
  o.tls = {};
  o.api_key_file = "/nowhere/keys";
  CHECK(oar::Server::check(o).message().find("/nowhere/keys") != std::string::npos);
  o.api_key_file.clear();
  o.http_address.clear();
  o.grpc_address.clear();
  CHECK_FALSE(oar::Server::start(o, serving({})).ok());
}

TEST_CASE("two models on one server") {
  FakeEngineOptions a, b;
  a.reply = "first";
  b.reply = "second";
  FakeEngine first(a), second(b);
  oar::ServerOptions o;
  o.http_address = "[::1]:0";
  o.grpc_address.clear();
  auto server = oar::Server::start(o, serving({fake_model(first, "one"), fake_model(second, "two")}));
  if (!server.ok()) OAR_SKIP("no IPv6 loopback here: " + server.status().message());
  o.http_address = "127.0.0.1:0";
  server = oar::Server::start(o, serving({fake_model(first, "one"), fake_model(second, "two")}));
  REQUIRE_OK(server);
  const int port = (*server)->http_port();
  const auto ask = [&](const char* model) {
    return http(port, "POST", "/v1/completions", std::string(R"({"prompt":"a","model":")") + model + "\"}");
  };
  CHECK(parse(ask("one").body).at("choices").at(0).at("text") == "first");
  CHECK(parse(ask("two").body).at("choices").at(0).at("text") == "second");
  const HttpReply none = ask("three");
  CHECK(none.status == 404);
  CHECK(none.body.find("one, two") != std::string::npos);
  second.set_health(oar::EngineHealth::kFailed);  // ready means all of them
  CHECK(http(port, "GET", "/health").status == 503);
}

TEST_CASE("several addresses of HTTP are one server") {
  const int port = std::make_unique<TestServer>()->http();  // free again
  oar::ServerOptions o;
  o.http_address = oar::cat("127.0.0.1:0, 127.0.0.1:", port);
  TestServer t({}, o);
  CHECK(t.http() != port);
  for (const int one : {t.http(), port}) CHECK(http(one, "GET", "/v1/models").status == 200);
  CHECK(oar::Server::check({.http_address = oar::cat("127.0.0.1:0,127.0.0.1:", port)}).code() ==
        oar::StatusCode::kUnavailable);
  CHECK(t.server->drain_and_stop(std::chrono::seconds(5)));
}

TEST_CASE("metrics: drafts, and how often each place of one was right") {
  FakeEngineOptions o;
  o.stats.verified_drafts = 9;
  o.stats.accepted_drafts = 11;
  o.stats.rejected_drafts = 7;
  o.stats.accepted_at = {8, 3};
  TestServer t(o);
  const std::string m = http(t.http(), "GET", "/metrics").body;
  const std::string l = R"(model_name="fake")";
  CHECK(metric(m, "vllm:spec_decode_num_drafts_total", {l}) == 9);
  CHECK(metric(m, "vllm:spec_decode_num_draft_tokens_total", {l}) == 18);
  const char* const places = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  CHECK(metric(m, places, {l, R"(position="0")"}) == 8);
  CHECK(metric(m, places, {l, R"(position="1")"}) == 3);
  CHECK(m.find(R"(position="2")") == std::string::npos);
  CHECK(metric(m, "llamacpp:spec_decode_num_drafts_total", {}) == 0);  // of requests that have ended
}

TEST_CASE("metrics: what devices say, each once, by Triton's names") {
  TestServer t;
  const auto text = [&] { return http(t.http(), "GET", "/metrics").body; };
  CHECK(text().find("gpu_uuid") == std::string::npos);
  double joules = 500;
  const auto says = [&](oar::DeviceUsage* u) {
    u->uuid = "GPU-1";
    u->memory_total_bytes = 4096;
    u->memory_used_bytes = 1024;
    u->utilization = 0.25;
    u->power_watts = 90.5;
    u->power_limit_watts = 700;
    u->energy_joules = joules;
    u->clock_hertz = 1.5e9;
    u->memory_clock_hertz = 2.5e9;
    u->temperature_celsius = 41;
    return true;
  };
  auto first = oar::answer_for_device("cuda:0 (A)", says), again = oar::answer_for_device("cuda:0 (A)", says);
  const auto silent = oar::answer_for_device("cuda:1", [](oar::DeviceUsage*) { return false; });
  const auto little = oar::answer_for_device("mine:0", [](oar::DeviceUsage* u) {
    u->memory_total_bytes = 77;
    return true;
  });
  std::string m = text();
  const std::string l = R"(gpu_uuid="GPU-1")";
  CHECK(metric(m, "nv_gpu_memory_total_bytes", {l}) == 4096);
  CHECK(metric(m, "nv_gpu_memory_used_bytes", {l}) == 1024);
  CHECK(metric(m, "nv_gpu_utilization", {l}) == 0.25);
  CHECK(metric(m, "nv_gpu_power_usage", {l}) == 90.5);
  CHECK(metric(m, "nv_gpu_power_limit", {l}) == 700);
  CHECK(metric(m, "nv_energy_consumption", {l}) == 0);
  CHECK(metric(m, "oar_device_clock_hertz", {l, R"(clock="compute")"}) == 1.5e9);
  CHECK(metric(m, "oar_device_clock_hertz", {l, R"(clock="memory")"}) == 2.5e9);
  CHECK(metric(m, "oar_device_temperature_celsius", {l}) == 41);
  CHECK(metric(m, "oar_device_info", {l, R"x(device="cuda:0 (A)")x"}) == 1);
  const auto lines = [&](const std::string& of) {
    size_t n = 0;
    const std::string line = "\n" + of + "{";
    for (size_t at = m.find(line); at != std::string::npos; at = m.find(line, at + 1)) ++n;
    return n;
  };
  CHECK(lines("oar_device_info") == 2);
  CHECK(lines("nv_gpu_memory_total_bytes") == 2);
  // What is not known is absent, not 0.
  CHECK(metric(m, "nv_gpu_memory_total_bytes", {R"(gpu_uuid="mine:0")"}) == 77);
  CHECK(lines("nv_gpu_power_usage") == 1);
  CHECK(lines("nv_energy_consumption") == 1);
  joules = 650;
  m = text();
  CHECK(metric(m, "nv_energy_consumption", {l}) == 150);
  first.reset();
  CHECK(text().find(l) != std::string::npos);
  again.reset();
  CHECK(text().find(l) == std::string::npos);
}

TEST_CASE("metrics: vLLM's names and ours, and they count") {
  TestServer t;
  for (int i = 0; i < 3; ++i)
    CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"abcd","max_tokens":5})").status == 200);
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"ab","n":2,"stream":true})").status == 200);
  CHECK(http(t.http(), "POST", "/v1/completions", "{").status == 400);
  CHECK(http(t.http(), "PATCH", "/nowhere/at/all").status == 404);
  const HttpReply r = http(t.http(), "GET", "/metrics");
  CHECK(r.headers.at("content-type") == "text/plain; version=0.0.4; charset=utf-8");
  const std::string& m = r.body;
  const std::string l = R"(model_name="fake")";
  CHECK(metric(m, "vllm:num_requests_running", {l}) == 0);
  CHECK(metric(m, "vllm:num_requests_waiting", {l}) == 0);
  CHECK(metric(m, "vllm:kv_cache_usage_perc", {l}) == 0);
  CHECK(metric(m, "vllm:prompt_tokens_total", {l}) == 14);
  CHECK(metric(m, "vllm:generation_tokens_total", {l}) == 3 * 5 + 2 * 16);
  CHECK(metric(m, "llamacpp:tokens_predicted_total", {}) == 3 * 5 + 2 * 16);
  CHECK(metric(m, "llamacpp:prompt_tokens_total", {}) == 14);
  CHECK(metric(m, "llamacpp:tokens_predicted_seconds_total", {}) > 0);
  CHECK(metric(m, "llamacpp:predicted_tokens_seconds", {}) > 0);
  CHECK(metric(m, "vllm:request_success_total", {l, R"(finished_reason="length")"}) == 5);
  CHECK(metric(m, "vllm:time_to_first_token_seconds_count", {l}) == 4);
  CHECK(metric(m, "vllm:inter_token_latency_seconds_count", {l}) == 3 * 4 + 2 * 15);
  CHECK(metric(m, "vllm:time_per_output_token_seconds_count", {l}) == 3 * 4 + 2 * 15);
  CHECK(metric(m, "vllm:request_prompt_tokens_sum", {l}) == 3 * 4 + 2);
  CHECK(metric(m, "vllm:request_generation_tokens_sum", {l}) == 3 * 5 + 2 * 16);
  CHECK(metric(m, "vllm:request_params_max_tokens_count", {l}) == 3);
  CHECK(metric(m, "vllm:request_params_n_sum", {l}) == 3 * 1 + 2);
  for (const char* name :
       {"vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
        "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
        "vllm:request_inference_time_seconds", "vllm:request_params_n",
        "vllm:request_max_num_generation_tokens", "vllm:request_time_per_output_token_seconds",
        "vllm:request_prompt_tokens", "vllm:request_generation_tokens"}) {
    CHECK(metric(m, std::string(name) + "_count", {l}) == 4);  // a request counts once, whatever its n
  }
  CHECK(metric(m, "vllm:iteration_tokens_total_count", {l}) > 0);
  for (const char* name :
       {"vllm:num_preemptions_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"}) {
    CHECK(metric(m, name, {l}) == 0);
  }
  CHECK(metric(m, "vllm:cache_config_info", {l, R"(block_size="16")"}) == 1);
  CHECK(metric(m, "oar_engine_ready", {l}) == 1);
  CHECK(metric(m, "oar_kv_blocks", {l, R"(state="total")"}) == 1024);
  const std::string post = R"(method="POST")", completions = R"(route="/v1/completions")";
  CHECK(metric(m, "oar_http_requests_total", {R"(code="200")", post, completions}) == 4);
  CHECK(metric(m, "oar_http_requests_total", {R"(code="400")", post, completions}) == 1);
  CHECK(metric(m, "oar_http_requests_total",
               {R"(code="404")", R"(method="OTHER")", R"(route="unmatched")"}) == 1);
  CHECK(metric(m, "oar_http_connections") >= 1);
  CHECK(metric(m, "process_resident_memory_bytes") > 1e6);
  CHECK(metric(m, "oar_build_info", {"version="}) == 1);
}

TEST_CASE("under load with disconnects everything comes back") {
  FakeEngineOptions fast;
  fast.step = std::chrono::microseconds(100);
  TestServer t(fast);
  std::vector<std::thread> clients;
  std::atomic<int> answered{0};
  for (int k = 0; k < 6; ++k) {
    clients.emplace_back([&, k] {
      auto stub = oar::v1::Generation::NewStub(channel_to(t.grpc()));
      for (int i = 0; i < 15; ++i) {
        if ((i + k) % 3 == 0) {  // leaves after a few bytes
          RawClient c(t.http());
          c.send(make_request("POST", "/v1/completions", kStream300));
          c.receive(milliseconds(20));
          c.reset();
        } else if ((i + k) % 3 == 1) {
          grpc::ClientContext context;
          oar::v1::GenerateRequest request;
          request.set_prompt("a");
          request.mutable_stopping()->set_ignore_eos(true);
          auto reader = stub->Generate(&context, request);
          oar::v1::GenerateChunk chunk;
          reader->Read(&chunk);
          context.TryCancel();
          while (reader->Read(&chunk)) continue;
          reader->Finish();
        } else {
          const HttpReply r = http(t.http(), "POST", "/v1/completions",
                                   R"({"prompt":"a","stream":true,"n":2,"max_tokens":30})");
          if (r.complete && r.body.find("[DONE]") != std::string::npos) ++answered;
        }
      }
    });
  }
  for (std::thread& c : clients) c.join();
  CHECK(answered == 30);
  CHECK(t.engine.wait_idle());
  CHECK(t.engine.stats().blocks_used == 0);
  CHECK(t.server->drain_and_stop(milliseconds(5000)));
}

}  // namespace
