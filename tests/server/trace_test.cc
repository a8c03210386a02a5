// Traces: the file itself, under every way to end, and what a server writes into it.
#include "server/api/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <tuple>

#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_server.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar_test;
using oar::Clock;
using oar::FinishReason;
using oar::api::PromptRecord;
using oar::api::RefusalRecord;
using oar::api::StepRecord;
using oar::api::TraceFile;
using std::chrono::microseconds;
using Events = std::vector<oar::json::object>;

template <class T>
T must(oar::Result<T> made) {
  INFO(made.status().message());
  REQUIRE(made.ok());
  return std::move(*made);
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Events events_in(const std::string& text, const std::string& name = {}) {
  Events out;
  const oar::json::value all = parse(text);
  for (const oar::json::value& e : all.as_array())
    if (name.empty() || e.at("name").as_string() == name) out.push_back(e.as_object());
  return out;
}

double number(const oar::json::object& e, const char* field) { return e.at(field).to_number<double>(); }
int64_t arg(const oar::json::object& e, const char* name) { return e.at("args").at(name).as_int64(); }
std::string text_arg(const oar::json::object& e, const char* name) {
  return std::string(e.at("args").at(name).as_string());
}

struct Log {
  std::mutex mutex;
  std::vector<std::string> lines;
  oar::Logger logger() {
    return {[this](oar::LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex);
      lines.emplace_back(text);
    }};
  }
};

// Step k takes the stretch from 100 k to 100 (k + 1) microseconds.
StepRecord step_at(int32_t model, Clock::time_point start, int k) {
  StepRecord r{model, {}};
  const auto at = [&](int us) { return start + microseconds(100 * k + us); };
  r.step.number = static_cast<uint64_t>(k + 1);
  r.step.sequences = 2, r.step.tokens = 7, r.step.prefill_tokens = 6, r.step.generated_tokens = 1;
  r.step.running = 2, r.step.waiting = 3, r.step.blocks_used = 11;
  r.step.times = {at(0), at(0), at(10), at(80), at(80), at(90), at(95), at(100)};
  return r;
}

TEST_CASE("trace: a step is a slice with its parts inside, and counters") {
  const std::string path = temp_dir() + "/trace-steps.json";
  auto trace = must(TraceFile::open(path, TraceFile::kDefaultBytes, {}));
  const int32_t model = trace->add_model("demo version 1", {"engine"});
  const auto start = Clock::now();
  for (int k = 0; k < 3; ++k) trace->add(step_at(model, start, k));
  trace->close();
  trace->add(step_at(model, start, 3));  // nobody writes it any more
  trace->close();
  const std::string text = text_of(path);
  const Events steps = events_in(text, "step");
  REQUIRE(steps.size() == 3);
  CHECK(arg(steps[2], "step") == 3);
  CHECK(arg(steps[2], "tokens") == 7);
  CHECK(arg(steps[2], "prefill_tokens") == 6);
  CHECK(arg(steps[2], "generated_tokens") == 1);
  for (const auto& [name, from, length] : {std::tuple("plan", 0, 10), std::tuple("forward", 10, 70),
                                           std::tuple("sample", 80, 10), std::tuple("commit", 95, 5)}) {
    INFO(name);
    const Events parts = events_in(text, name);
    REQUIRE(parts.size() == 3);
    for (size_t k = 0; k < 3; ++k) {
      CHECK(parts[k].at("tid") == steps[k].at("tid"));
      CHECK(std::abs(number(parts[k], "ts") - number(steps[k], "ts") - from) < 0.002);
      CHECK(std::abs(number(parts[k], "dur") - length) < 0.002);
      CHECK(arg(parts[k], "step") == static_cast<int64_t>(k + 1));
    }
  }
  CHECK(std::abs(number(steps[0], "ts") + 100 - number(steps[1], "ts")) < 0.002);
  const Events sequences = events_in(text, "sequences"), pages = events_in(text, "pages");
  REQUIRE(sequences.size() == 3);
  CHECK(arg(sequences[0], "running") == 2);
  CHECK(arg(sequences[0], "waiting") == 3);
  CHECK(arg(pages.at(0), "used") == 11);
  const Events names = events_in(text, "process_name");
  REQUIRE(names.size() == 2);
  CHECK(text_arg(names[1], "name") == "demo version 1");
  CHECK(names[1].at("pid") == steps[0].at("pid"));
  CHECK(events_in(text, "trace begins").size() == 1);
}

TEST_CASE("trace: a prompt's parts nest in it, and those it never reached are not there") {
  const std::string path = temp_dir() + "/trace-prompts.json";
  auto trace = must(TraceFile::open(path, TraceFile::kDefaultBytes, {}));
  const int32_t model = trace->add_model("demo version 1", {"engine"});
  const auto start = Clock::now();
  const auto at = [&](int us) { return start + microseconds(us); };
  PromptRecord whole{model, "cmpl-\"1\"", "polite", 1, 2, {}, FinishReason::kStop};
  whole.stats.prompt_tokens = 5, whole.stats.completion_tokens = 9, whole.stats.cached_tokens = 4;
  whole.stats.submitted = at(0), whole.stats.scheduled = at(10), whole.stats.first_token = at(30);
  whole.stats.finished = at(100);
  trace->add(whole);
  PromptRecord early = whole;
  early.finish = FinishReason::kCancelled;
  early.stats.first_token = {};
  trace->add(early);
  early.stats.scheduled = {};
  trace->add(early);
  trace->add(RefusalRecord{model, "late", oar::StatusCode::kResourceExhausted, at(50)});
  trace->close();
  const std::string text = text_of(path);
  std::map<std::string, std::vector<std::string>> parts;  // of each id, in order
  std::map<std::string, double> last;
  for (const auto& e : events_in(text)) {
    if (!e.contains("id")) continue;
    const std::string id(e.at("id").as_string());
    parts[id].push_back(std::string(e.at("ph").as_string()) + " " + std::string(e.at("name").as_string()));
    CHECK(number(e, "ts") >= last[id]);
    last[id] = number(e, "ts");
  }
  REQUIRE(parts.size() == 3);
  CHECK(parts["1"] == std::vector<std::string>{"b request", "b queued", "e queued", "b prefill", "e prefill",
                                               "b decode", "e decode", "e request"});
  CHECK(parts["2"] ==
        std::vector<std::string>{"b request", "b queued", "e queued", "b prefill", "e prefill", "e request"});
  CHECK(parts["3"] == std::vector<std::string>{"b request", "b queued", "e queued", "e request"});
  const Events requests = events_in(text, "request");
  CHECK(text_arg(requests[0], "id") == "cmpl-\"1\"");
  CHECK(text_arg(requests[0], "adapter") == "polite");
  CHECK(text_arg(requests[0], "finish") == "stop");
  CHECK(arg(requests[0], "prompt") == 1);
  CHECK(arg(requests[0], "choices") == 2);
  CHECK(arg(requests[0], "completion_tokens") == 9);
  CHECK(std::abs(number(requests[1], "ts") - number(requests[0], "ts") - 100) < 0.002);
  const Events refused = events_in(text, "refused");
  REQUIRE(refused.size() == 1);
  CHECK(text_arg(refused[0], "id") == "late");
  CHECK(text_arg(refused[0], "status") == "RESOURCE_EXHAUSTED");
}

TEST_CASE("trace: at its limit the file is complete, says so, and grows no more") {
  const std::string path = temp_dir() + "/trace-limit.json";
  Log log;
  auto trace = must(TraceFile::open(path, TraceFile::kLeastBytes, log.logger()));
  const int32_t model = trace->add_model("demo version 1", {"engine"});
  for (int k = 0; k < 2000; ++k) trace->add(step_at(model, Clock::now(), k));
  trace->close();
  const std::string text = text_of(path);
  CHECK(text.size() <= TraceFile::kLeastBytes);
  CHECK(text.size() > TraceFile::kLeastBytes - 4096);  // and not much less than was allowed
  const Events all = events_in(text);
  CHECK(all.back().at("name").as_string() == "trace limit reached");
  CHECK(arg(all.back(), "bytes") == static_cast<int64_t>(TraceFile::kLeastBytes));
  CHECK(events_in(text, "step").size() == events_in(text, "pages").size());  // no step is there by half
  REQUIRE(log.lines.size() == 1);
  CHECK(log.lines[0].find(path) != std::string::npos);
  CHECK(log.lines[0].find("--trace-limit") != std::string::npos);
}

TEST_CASE("trace: who adds never waits for the file, and what is dropped is counted") {
  const std::string path = temp_dir() + "/trace-pipe";
  ::unlink(path.c_str());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);  // so that a writer may come
  REQUIRE(reader >= 0);
  auto trace = must(TraceFile::open(path, TraceFile::kDefaultBytes, {}));
  const int32_t model = trace->add_model("demo version 1", {"engine"});
  // A pipe holds 64 KB, the queue kQueue records: far fewer than these, and nobody reads.
  constexpr int kSteps = 3 * static_cast<int>(TraceFile::kQueue);
  for (int k = 0; k < kSteps; ++k) trace->add(step_at(model, Clock::now(), k));
  ::fcntl(reader, F_SETFL, 0);
  auto text = std::async(std::launch::async, [reader] {
    std::string out(1 << 16, '\0'), all;
    for (ssize_t n; (n = ::read(reader, out.data(), out.size())) > 0;)
      all.append(out, 0, static_cast<size_t>(n));
    return all;
  });
  trace->close();
  const std::string got = text.get();
  ::close(reader);
  int64_t dropped = 0;
  for (const auto& e : events_in(got, "records dropped: the writer was behind")) dropped += arg(e, "count");
  CHECK(dropped > 0);
  CHECK(static_cast<int64_t>(events_in(got, "step").size()) + dropped == kSteps);
}

TEST_CASE("trace: a full disk ends it with one line in the log") {
  Log log;
  auto trace = must(TraceFile::open("/dev/full", TraceFile::kDefaultBytes, log.logger()));
  const int32_t model = trace->add_model("demo version 1", {"engine"});
  for (int k = 0; k < 100; ++k) trace->add(step_at(model, Clock::now(), k));
  trace->close();
  REQUIRE(log.lines.size() == 1);
  CHECK(log.lines[0].find("/dev/full") != std::string::npos);
  CHECK(log.lines[0].find("No space left") != std::string::npos);
}

TEST_CASE("trace: a process that is killed leaves whole events without the last bracket") {
  const std::string path = temp_dir() + "/trace-killed.json";
  auto trace = must(TraceFile::open(path, TraceFile::kDefaultBytes, {}));
  const int32_t model = trace->add_model("demo version 1", {"engine"});
  for (int k = 0; k < 5; ++k) trace->add(step_at(model, Clock::now(), k));
  std::string text;
  for (int tries = 0; tries < 5000 && text.find("\"pages\"") == std::string::npos; ++tries) {
    ::usleep(2000);
    text = text_of(path);
  }
  CHECK(events_in(text + "\n]", "step").size() == 5);
}

TEST_CASE("trace: what cannot be a trace is refused, and a check leaves files alone") {
  const auto refused = [](const std::string& path, uint64_t bytes, const char* says) {
    const oar::Status s = TraceFile::check(path, bytes);
    INFO(s.message());
    CHECK(s.message().find(says) != std::string::npos);
    CHECK(TraceFile::open(path, bytes, {}).status().message() == s.message());
  };
  refused("-", TraceFile::kDefaultBytes, "name a file");
  refused("/nowhere/trace", TraceFile::kDefaultBytes, "/nowhere/trace");
  refused(temp_dir(), TraceFile::kDefaultBytes, "directory");
  refused(temp_dir() + "/none", 0, "trace-limit: 0 bytes");
  refused(temp_dir() + "/none", TraceFile::kLeastBytes - 1, "64.0 KiB");
  CHECK_FALSE(std::ifstream(temp_dir() + "/none").good());
  const std::string path = temp_dir() + "/trace-kept";
  std::ofstream(path) << "an older trace";
  REQUIRE_OK(TraceFile::check(path, TraceFile::kLeastBytes));
  CHECK(text_of(path) == "an older trace");
  must(TraceFile::open(path, TraceFile::kLeastBytes, {}))->close();
  CHECK(text_of(path).find("an older trace") == std::string::npos);
}

TEST_CASE("trace: a server writes its steps and the requests of both transports") {
  oar::ServerOptions o;
  o.trace = temp_dir() + "/trace-server.json";
  FakeEngineOptions engine;
  engine.max_waiting = 2;
  {
    TestServer t(engine, o);
    CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":["ab","cde"],"n":2,"max_tokens":4})",
               {{"X-Request-Id", "mine"}})
              .status == 200);
    auto stub = oar::v1::Generation::NewStub(channel_to(t.grpc()));
    grpc::ClientContext context;
    oar::v1::GenerateRequest request;
    request.set_prompt("abcd");
    oar::v1::GenerateChunk chunk;
    auto reader = stub->Generate(&context, request);
    while (reader->Read(&chunk)) continue;
    CHECK(reader->Finish().ok());
    // Two wait, so that another is refused; then all are gone.
    t.engine.pause(true);
    RawClient waiting(t.http());
    waiting.send(make_request("POST", "/v1/completions", R"({"prompt":["waits","too"]})"));
    while (t.engine.stats().waiting < 2) ::usleep(1000);
    CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"x"})").status == 429);
    waiting.close();
    CHECK(t.engine.wait_idle());
    t.engine.pause(false);
    // The connection's thread hears of the end a moment later.
    for (int tries = 0; tries < 5000; ++tries) {
      const std::string text = text_of(o.trace);
      const size_t first = text.find("cancelled");
      if (first != std::string::npos && text.find("cancelled", first + 1) != std::string::npos) break;
      ::usleep(2000);
    }
    CHECK(t.server->drain_and_stop(std::chrono::seconds(20)));
  }
  const std::string text = text_of(o.trace);
  std::map<std::string, int> ends;
  int64_t generated = 0, prompt_tokens = 0;
  std::vector<std::pair<int64_t, int64_t>> mine;
  for (const auto& e : events_in(text, "request")) {
    if (e.at("ph").as_string() != "b") continue;
    ++ends[text_arg(e, "finish")];
    generated += arg(e, "completion_tokens");
    prompt_tokens += arg(e, "prompt_tokens");
    CHECK(text_arg(e, "adapter").empty());
    if (text_arg(e, "id") == "cmpl-mine") mine.emplace_back(arg(e, "prompt"), arg(e, "choices"));
  }
  CHECK(ends == std::map<std::string, int>{{"length", 2}, {"stop", 1}, {"cancelled", 2}});
  std::sort(mine.begin(), mine.end());
  CHECK(mine == std::vector<std::pair<int64_t, int64_t>>{{0, 2}, {1, 2}});
  CHECK(prompt_tokens >= 2 + 3 + 4 + 5 + 3);
  const Events refused = events_in(text, "refused");
  REQUIRE(refused.size() == 1);
  CHECK(text_arg(refused[0], "status") == "RESOURCE_EXHAUSTED");
  const Events steps = events_in(text, "step");
  REQUIRE_FALSE(steps.empty());
  CHECK(generated > 16);
  CHECK(events_in(text, "sequences").size() == steps.size());
  CHECK(steps[0].at("pid") == events_in(text, "request")[0].at("pid"));
  CHECK(text_arg(events_in(text, "process_name").at(1), "name") == "fake version 1");
}

TEST_CASE("trace: runs of ordinary models with their parts, and the requests that they took") {
  oar::ServerOptions o;
  o.trace = temp_dir() + "/trace-tensors.json";
  {
    TensorServer t(o);
    CHECK(
        http(t.http(), "POST", "/v2/models/scale/infer",
             R"({"id":"mine","inputs":[{"name":"x","datatype":"FP32","shape":[2,3],"data":[1,2,3,4,5,6]}]})")
            .status == 200);
    auto stub = inference::GRPCInferenceService::NewStub(channel_to(t.grpc()));
    inference::ModelInferRequest request;
    request.set_model_name("table");
    request.set_id("outside");
    auto* input = request.add_inputs();
    input->set_name("i");
    input->set_datatype("INT64");
    input->add_shape(1);
    input->mutable_contents()->add_int64_contents(9);  // of four rows
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    CHECK_FALSE(stub->ModelInfer(&context, request, &response).ok());
    CHECK(t.server->drain_and_stop(std::chrono::seconds(20)));
  }
  const std::string text = text_of(o.trace);
  std::map<std::string, std::string> status;
  int64_t scale = -1;
  for (const auto& e : events_in(text, "request")) {
    if (e.at("ph").as_string() != "b") continue;
    status[text_arg(e, "id")] = text_arg(e, "status");
    if (text_arg(e, "id") == "mine") scale = e.at("pid").as_int64();
  }
  REQUIRE(status.size() == 2);
  CHECK(status["mine"] == "OK");
  CHECK(status["outside"] != "OK");
  Events slices;
  int begun = 0;
  for (const auto& e : events_in(text, "run")) {
    if (e.at("ph").as_string() == "X") slices.push_back(e);
    begun += e.at("ph").as_string() == "b";
  }
  CHECK(begun == 2);            // one of each request
  REQUIRE(slices.size() == 1);  // a run that fails has no times
  CHECK(slices[0].at("pid").as_int64() == scale);
  CHECK(arg(slices[0], "rows") == 2);
  CHECK(arg(slices[0], "requests") == 1);
  const Events compute = events_in(text, "compute");
  REQUIRE(compute.size() == 1);
  CHECK(number(compute[0], "ts") >= number(slices[0], "ts"));
  CHECK(number(compute[0], "dur") <= number(slices[0], "dur"));
  bool named = false;
  for (const auto& e : events_in(text, "thread_name")) {
    named |= e.at("pid") == slices[0].at("pid") && e.at("tid") == slices[0].at("tid") &&
             text_arg(e, "name").starts_with("instance ");  // whichever was free
  }
  CHECK(named);
}

TEST_CASE("trace: a run that several requests share is one slice") {
  const std::string path = temp_dir() + "/trace-runs.json";
  auto trace = must(TraceFile::open(path, TraceFile::kDefaultBytes, {}));
  const int32_t model = trace->add_model("net version 3", {"instance 1", "instance 2"});
  const auto start = Clock::now();
  oar::InferRun run{1, 5, 2, start, {}};
  run.times.input = 10'000, run.times.compute = 70'000, run.times.output = 20'000;
  trace->add(oar::api::RunRecord{model, run});
  const auto at = [&](int us) { return start + microseconds(us); };
  trace->add(oar::api::AnswerRecord{model, "a", {{}, 3, at(-30), start, at(100), oar::StatusCode::kOk}});
  trace->add(
      oar::api::AnswerRecord{model, "b", {{}, 2, at(-10), {}, at(5), oar::StatusCode::kDeadlineExceeded}});
  trace->close();
  const std::string text = text_of(path);
  std::vector<std::string> all;
  double first = 0;
  for (const auto& e : events_in(text)) {
    const std::string name(e.at("name").as_string()), phase(e.at("ph").as_string());
    if (phase != "X" && phase != "b" && phase != "e") continue;
    if (phase == "X") CHECK(e.at("tid").as_int64() == 2);
    if (all.empty()) first = number(e, "ts");
    all.push_back(phase + " " + name + " " + std::to_string(std::lround(number(e, "ts") - first)));
  }
  CHECK(all == std::vector<std::string>{"X run 0", "X input 0", "X compute 10", "X output 80",
                                        "b request -30", "b queued -30", "e queued 0", "b run 0", "e run 100",
                                        "e request 100", "b request -10", "b queued -10", "e queued 5",
                                        "e request 5"});
  CHECK(text_arg(events_in(text, "request").at(2), "status") == "DEADLINE_EXCEEDED");
}

TEST_CASE("trace: a server is refused a file that it cannot write, and metrics go on beside one") {
  oar::ServerOptions o;
  o.http_address = o.grpc_address = "127.0.0.1:0";
  o.trace = "/nowhere/trace.json";
  CHECK(oar::Server::check(o).message().find("/nowhere/trace.json") != std::string::npos);
  FakeEngine engine;
  CHECK_FALSE(oar::Server::start(o, serving({fake_model(engine)})).ok());
  o.trace = temp_dir() + "/trace-metrics.json";
  o.trace_bytes = TraceFile::kLeastBytes;
  TestServer t({}, o);
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","max_tokens":3})").status == 200);
  const std::string metrics = http(t.http(), "GET", "/metrics").body;
  CHECK(metrics.find("vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"fake\"} 1") !=
        std::string::npos);
}

}  // namespace
