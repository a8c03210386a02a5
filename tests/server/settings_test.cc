// What Triton's clients ask and change of a running server, over both transports: shared memory, settings of
// logs and traces, and Triton's counters of language models.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <mutex>

#include "engine/base/format.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_server.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;   // NOLINT
using namespace inference;  // NOLINT
using oar::cat;
using oar::json::object;
using oar::json::value;

// A client's memory.
class ClientMemory {
 public:
  ClientMemory(std::string key, size_t bytes) : key_(std::move(key)) {
    fd_ = shm_open(key_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    REQUIRE(fd_ >= 0);
    resize(bytes);
  }
  ~ClientMemory() {
    close(fd_);
    shm_unlink(key_.c_str());
  }
  void resize(size_t bytes) { REQUIRE(ftruncate(fd_, static_cast<off_t>(bytes)) == 0); }
  void put(size_t at, const std::vector<float>& values) {
    const size_t n = values.size() * sizeof(float);
    REQUIRE(pwrite(fd_, values.data(), n, static_cast<off_t>(at)) == static_cast<ssize_t>(n));
  }
  std::vector<float> get(size_t at, size_t count) const {
    std::vector<float> out(count);
    const size_t n = count * sizeof(float);
    REQUIRE(pread(fd_, out.data(), n, static_cast<off_t>(at)) == static_cast<ssize_t>(n));
    return out;
  }
  const std::string& key() const { return key_; }

 private:
  std::string key_;
  int fd_ = -1;
};

// Of this process and moment, so that tests that run beside each other do not meet.
std::string prefix() { return cat("/oar-test-", getpid(), "-"); }

oar::ServerOptions with_memory() {
  oar::ServerOptions o;
  o.shared_memory = prefix();
  return o;
}

struct Rest {
  int port;
  HttpReply post(const std::string& path, const std::string& body = "{}") const {
    return http(port, "POST", path, body, {{"Content-Type", "application/json"}});
  }
  value get(const std::string& path) const {
    const HttpReply r = http(port, "GET", path);
    INFO(r.body);
    REQUIRE(r.status == 200);
    return parse(r.body);
  }
  std::string refusal(const HttpReply& r, int status = 400) const {
    INFO(r.body);
    CHECK(r.status == status);
    return std::string(parse(r.body).at("error").as_string());
  }
};

std::string registration(const std::string& key, size_t bytes, size_t offset = 0) {
  return cat(R"({"key":")", key, R"(","offset":)", offset, R"(,"byte_size":)", bytes, "}");
}

std::string scale_request(const std::string& input, const std::string& output) {
  return cat(R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"parameters":)", input,
             R"(}],"outputs":[{"name":"y","parameters":)", output, "}]}");
}

TEST_CASE("shared memory: inputs are read from it and outputs written to it, over REST") {
  TensorServer t(with_memory());
  const Rest c{t.http()};
  ClientMemory memory(prefix() + "a", 64);
  memory.put(8, {1, 2, 3});
  REQUIRE(c.post("/v2/systemsharedmemory/region/one/register", registration(memory.key(), 56, 8)).status ==
          200);
  const value listed = c.get("/v2/systemsharedmemory/status");
  REQUIRE(listed.as_array().size() == 1);
  CHECK(listed.at(0).at("name") == "one");
  CHECK(listed.at(0).at("offset") == 8);
  CHECK(listed.at(0).at("byte_size") == 56);
  CHECK(c.get("/v2/systemsharedmemory/region/one/status") == listed);
  const HttpReply r = c.post("/v2/models/scale/infer",
                             scale_request(R"({"shared_memory_region":"one","shared_memory_byte_size":12})",
                                           R"({"shared_memory_region":"one","shared_memory_byte_size":16,)"
                                           R"("shared_memory_offset":32})"));
  INFO(r.body);
  REQUIRE(r.status == 200);
  const value v = parse(r.body);
  const value& out = v.at("outputs").at(0);
  CHECK_FALSE(out.as_object().contains("data"));
  CHECK(out.at("parameters").at("shared_memory_region") == "one");
  CHECK(out.at("parameters").at("shared_memory_byte_size") == 12);
  CHECK(memory.get(8 + 32, 3) == std::vector<float>{3, 6, 9});
  // Beside a tensor in the request, of another input; and what it says elsewhere stays.
  CHECK(memory.get(8, 3) == std::vector<float>{1, 2, 3});
  REQUIRE(c.post("/v2/systemsharedmemory/region/one/unregister").status == 200);
  CHECK(c.get("/v2/systemsharedmemory/status").as_array().empty());
  CHECK(c.post("/v2/systemsharedmemory/unregister").status == 200);
}

TEST_CASE("shared memory: what does not fit is refused, and no error tells a key") {
  TensorServer t(with_memory());
  const Rest c{t.http()};
  ClientMemory memory(prefix() + "b", 64);
  const std::string at = "/v2/systemsharedmemory/region/one/register";
  const auto refused = [&](const std::string& body) {
    const std::string text = c.refusal(c.post(at, body));
    CHECK(text.find(prefix()) == std::string::npos);
    CHECK(text.find("/dev/shm") == std::string::npos);
    return text;
  };
  CHECK_THAT(refused(registration("/other", 8)), Contains("prefix"));
  CHECK_THAT(refused(registration(memory.key() + "/../x", 8)), Contains("prefix"));
  CHECK_THAT(refused(registration(prefix() + "absent", 8)), Contains("cannot be opened"));
  CHECK_THAT(refused(registration(memory.key(), 65)), Contains("smaller"));
  CHECK_THAT(refused(registration(memory.key(), 60, 5)), Contains("smaller"));
  CHECK_THAT(refused(registration(memory.key(), 9223372036854775807ull, 9)), Contains("no part"));
  CHECK_THAT(refused(R"({"key":"/x"})"), Contains("byte_size"));
  REQUIRE(c.post(at, registration(memory.key(), 64)).status == 200);
  CHECK_THAT(c.refusal(c.post(at, registration(memory.key(), 64)), 409), Contains("already"));

  const auto infer = [&](const std::string& input, const std::string& output = "{}") {
    const std::string text = c.refusal(c.post("/v2/models/scale/infer", scale_request(input, output)));
    CHECK(text.find(prefix()) == std::string::npos);
    return text;
  };
  const char* good = R"({"shared_memory_region":"one","shared_memory_byte_size":12})";
  CHECK_THAT(infer(R"({"shared_memory_region":"two","shared_memory_byte_size":12})"), Contains("two"));
  CHECK_THAT(infer(R"({"shared_memory_region":"one"})"), Contains("shared_memory_byte_size"));
  CHECK_THAT(infer(R"({"shared_memory_byte_size":12})"), Contains("shared_memory_region"));
  CHECK_THAT(infer(R"({"shared_memory_region":"one","shared_memory_byte_size":8})"), Contains("needs 12"));
  CHECK_THAT(
      infer(R"({"shared_memory_region":"one","shared_memory_byte_size":12,"shared_memory_offset":60})"),
      Contains("beyond"));
  CHECK_THAT(infer(good, R"({"shared_memory_region":"one","shared_memory_byte_size":11})"),
             Contains("12 bytes"));
  CHECK_THAT(infer(R"({"shared_memory_region":"one","shared_memory_byte_size":12,"binary_data_size":0})"),
             Contains("one of the two"));
  // A client that makes its memory smaller has an error, and the server goes on.
  memory.resize(4);
  CHECK_THAT(infer(good), Contains("smaller"));
  memory.resize(64);
  CHECK(c.post("/v2/models/scale/infer", scale_request(good, "{}")).status == 200);
  memory.resize(16);
  CHECK_THAT(
      infer(good, R"({"shared_memory_region":"one","shared_memory_byte_size":12,"shared_memory_offset":8})"),
      Contains("smaller"));
  // CUDA's is refused by name; that there are no regions of it is said.
  CHECK(c.get("/v2/cudasharedmemory/status").as_array().empty());
  CHECK(c.post("/v2/cudasharedmemory/unregister").status == 200);
  CHECK_THAT(c.refusal(c.post("/v2/cudasharedmemory/region/x/register"), 501), Contains("CUDA"));
}

TEST_CASE("shared memory: off without a prefix, which has to be one") {
  TensorServer t;
  const Rest c{t.http()};
  CHECK_THAT(c.refusal(http(t.http(), "GET", "/v2/systemsharedmemory/status")), Contains("--shared-memory"));
  CHECK_THAT(c.refusal(c.post("/v2/systemsharedmemory/region/a/register", registration("/x", 1))),
             Contains("off"));
  CHECK_THAT(c.refusal(c.post(
                 "/v2/models/scale/infer",
                 scale_request(R"({"shared_memory_region":"one","shared_memory_byte_size":12})", "{}"))),
             Contains("shared_memory_region"));
  for (const char* wrong : {"/", "oar-", "/ab", "/../x", "/a/b/c"}) {
    oar::ServerOptions o;
    o.shared_memory = wrong;
    CHECK_FALSE(oar::Server::check(o).ok());
  }
}

TEST_CASE("shared memory: over gRPC, beside tensors in the message") {
  TensorServer t(with_memory());
  GRPCInferenceService::Stub stub(channel_to(t.grpc()));
  ClientMemory memory(prefix() + "c", 64);
  memory.put(0, {1, 2});
  SystemSharedMemoryRegisterRequest ask;
  ask.set_name("r");
  ask.set_key(memory.key());
  ask.set_byte_size(64);
  {
    grpc::ClientContext context;
    SystemSharedMemoryRegisterResponse done;
    REQUIRE(stub.SystemSharedMemoryRegister(&context, ask, &done).ok());
  }
  ModelInferRequest r;
  r.set_model_name("two");
  const auto place = [](auto& tensor, int64_t bytes, int64_t offset) {
    auto& p = *tensor.mutable_parameters();
    p["shared_memory_region"].set_string_param("r");
    p["shared_memory_byte_size"].set_int64_param(bytes);
    if (offset > 0) p["shared_memory_offset"].set_int64_param(offset);
  };
  place(*add_input(r, "a", "FP32", {1, 2}), 8, 0);
  add_input(r, "b", "FP32", {1, 2});
  const std::vector<float> b{10, 20};
  r.add_raw_input_contents(std::string(reinterpret_cast<const char*>(b.data()), 8));
  r.add_outputs()->set_name("sum");
  auto* twice = r.add_outputs();
  twice->set_name("twice");
  place(*twice, 8, 16);
  const auto check = [&](const ModelInferResponse& out) {
    REQUIRE(out.outputs_size() == 2);
    REQUIRE(out.raw_output_contents_size() == 1);  // of sum
    float sum[2];
    std::memcpy(sum, out.raw_output_contents(0).data(), 8);
    CHECK(sum[0] == 11);
    CHECK(sum[1] == 22);
    CHECK(out.outputs(1).parameters().at("shared_memory_byte_size").int64_param() == 8);
    CHECK(memory.get(16, 2) == std::vector<float>{2, 4});
    memory.put(16, {0, 0});
  };
  {
    grpc::ClientContext context;
    ModelInferResponse out;
    const grpc::Status s = stub.ModelInfer(&context, r, &out);
    INFO(s.error_message());
    REQUIRE(s.ok());
    check(out);
  }
  {
    grpc::ClientContext context;
    const auto stream = stub.ModelStreamInfer(&context);
    REQUIRE(stream->Write(r));
    ModelStreamInferResponse out;
    REQUIRE(stream->Read(&out));
    INFO(out.error_message());
    check(out.infer_response());
    stream->WritesDone();
    CHECK(stream->Finish().ok());
  }
  r.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1);
  grpc::ClientContext wrong, status, cuda;
  ModelInferResponse out;
  CHECK_THAT(stub.ModelInfer(&wrong, r, &out).error_message(), Contains("one of the two"));
  SystemSharedMemoryStatusResponse listed;
  REQUIRE(stub.SystemSharedMemoryStatus(&status, {}, &listed).ok());
  CHECK(listed.regions().at("r").byte_size() == 64);
  CudaSharedMemoryStatusResponse none;
  CHECK(stub.CudaSharedMemoryStatus(&cuda, {}, &none).ok());
  CHECK(none.regions().empty());
  grpc::ClientContext all, one;
  CudaSharedMemoryUnregisterRequest gone;
  CudaSharedMemoryUnregisterResponse nothing;
  CHECK(stub.CudaSharedMemoryUnregister(&all, gone, &nothing).ok());
  gone.set_name("x");
  CHECK(stub.CudaSharedMemoryUnregister(&one, gone, &nothing).error_code() ==
        grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("shared memory: a region is its key's alone") {
  const std::string keys = temp_dir() + "/memory-keys";
  std::ofstream(keys) << "alpha-secret name=alpha\nbeta-secret name=beta\n";
  auto options = with_memory();
  options.api_key_file = keys;
  TensorServer t(options);
  ClientMemory memory(prefix() + "d", 64);
  const auto ask = [&](const char* key, const char* method, const std::string& path,
                       const std::string& body) {
    return http(t.http(), method, path, body, {{"Authorization", cat("Bearer ", key)}});
  };
  REQUIRE(
      ask("alpha-secret", "POST", "/v2/systemsharedmemory/region/a/register", registration(memory.key(), 64))
          .status == 200);
  const std::string body =
      scale_request(R"({"shared_memory_region":"a","shared_memory_byte_size":12})", "{}");
  CHECK(ask("alpha-secret", "POST", "/v2/models/scale/infer", body).status == 200);
  CHECK(ask("beta-secret", "POST", "/v2/models/scale/infer", body).status == 400);
  CHECK(ask("beta-secret", "GET", "/v2/systemsharedmemory/status", "").body == "[]");
  CHECK(ask("beta-secret", "POST", "/v2/systemsharedmemory/unregister", "{}").status == 200);
  CHECK(ask("alpha-secret", "POST", "/v2/models/scale/infer", body).status == 200);
}

TEST_CASE("settings: of the log, and what cannot be honoured is refused by name") {
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto settings = std::make_shared<oar::api::ServerSettings>("");
  const oar::Logger log =
      oar::api::ServerSettings::filtered(settings, {[&](oar::LogLevel, std::string_view line) {
                                           const std::lock_guard lock(mutex);
                                           lines.emplace_back(line);
                                         }});
  oar::ServerOptions o;
  o.settings = settings;
  o.log = log;
  o.model_control = true;
  TestServer t({}, o);
  const Rest c{t.http()};
  CHECK(c.get("/v2/logging").at("log_info") == true);
  const HttpReply set =
      c.post("/v2/logging", R"({"log_info":false,"log_warning":false,"log_verbose_level":0})");
  REQUIRE(set.status == 200);
  CHECK(parse(set.body).at("log_info") == false);
  CHECK(parse(set.body).at("log_error") == true);
  lines.clear();
  log(oar::LogLevel::kInfo, "i");
  log(oar::LogLevel::kWarning, "w");
  log(oar::LogLevel::kError, "e");
  CHECK(lines == std::vector<std::string>{"e"});
  CHECK_THAT(c.refusal(c.post("/v2/logging", R"({"log_file":"/tmp/x"})"), 501), Contains("log_file"));
  CHECK_THAT(c.refusal(c.post("/v2/logging", R"({"log_error":false,"log_format":"default"})"), 501),
             Contains("log_format"));
  CHECK_THAT(c.refusal(c.post("/v2/logging", R"({"log_verbose_level":2})"), 501),
             Contains("log_verbose_level"));
  CHECK_THAT(c.refusal(c.post("/v2/logging", R"({"log_infos":true})")), Contains("log_info"));
  CHECK(c.get("/v2/logging").at("log_error") == true);  // nothing of a refused change
  GRPCInferenceService::Stub stub(channel_to(t.grpc()));
  LogSettingsRequest ask;
  (*ask.mutable_settings())["log_info"].set_bool_param(true);
  grpc::ClientContext context, wrong;
  LogSettingsResponse now;
  REQUIRE(stub.LogSettings(&context, ask, &now).ok());
  CHECK(now.settings().at("log_info").bool_param());
  CHECK_FALSE(now.settings().at("log_warning").bool_param());
  CHECK(now.settings().at("log_verbose_level").uint32_param() == 0);
  CHECK(c.get("/v2/logging").at("log_info") == true);
  (*ask.mutable_settings())["log_file"].set_string_param("x");
  CHECK(stub.LogSettings(&wrong, ask, &now).error_code() == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("settings: without model control they are asked for, not changed") {
  TestServer t;
  const Rest c{t.http()};
  CHECK(c.get("/v2/logging").at("log_format") == "ISO8601");
  CHECK(c.get("/v2/trace/setting").at("trace_level").at(0) == "OFF");
  CHECK_THAT(c.refusal(c.post("/v2/logging", R"({"log_info":false})"), 403), Contains("--model-control"));
  CHECK_THAT(c.refusal(c.post("/v2/trace/setting", R"({"trace_rate":"2"})"), 403),
             Contains("--model-control"));
  for (const char* path : {"/v2/logging", "/v2/trace/setting"}) CHECK(c.post(path, "{}").status == 200);
  GRPCInferenceService::Stub stub(channel_to(t.grpc()));
  TraceSettingRequest ask;
  (*ask.mutable_settings())["trace_rate"].add_value("2");
  grpc::ClientContext context;
  TraceSettingResponse now;
  CHECK(stub.TraceSetting(&context, ask, &now).error_code() == grpc::StatusCode::PERMISSION_DENIED);
}

TEST_CASE("settings: of the trace decide what is in its file") {
  const std::string path = temp_dir() + "/settings-trace.json";
  oar::ServerOptions o;
  o.trace = path;
  o.model_control = true;
  TestServer t({}, o);
  const Rest c{t.http()};
  const auto ask = [&](int n) {
    for (int i = 0; i < n; ++i)
      REQUIRE(c.post("/v1/completions", R"({"prompt":"x","max_tokens":1})").status == 200);
  };
  CHECK(c.get("/v2/trace/setting").at("trace_level").at(0) == "TIMESTAMPS");
  CHECK(c.get("/v2/trace/setting").at("trace_count") == "-1");
  const auto set = [&](const std::string& at, const std::string& body) {
    const HttpReply r = c.post(at, body);
    INFO(r.body);
    REQUIRE(r.status == 200);
    return parse(r.body);
  };
  set("/v2/trace/setting", R"({"trace_level":["OFF"]})");
  ask(3);
  // The model's own goes first: every second of what comes, and two in all.
  const value own = set("/v2/models/fake/trace/setting",
                        R"({"trace_level":["TIMESTAMPS"],"trace_rate":"2","trace_count":2})");
  CHECK(own.at("trace_rate") == "2");
  CHECK(c.get("/v2/trace/setting").at("trace_level").at(0) == "OFF");
  ask(9);
  set("/v2/models/fake/trace/setting", R"({"trace_level":null,"trace_rate":null,"trace_count":null})");
  CHECK(c.get("/v2/models/fake/trace/setting").at("trace_level").at(0) == "OFF");
  ask(2);
  CHECK_THAT(c.refusal(c.post("/v2/trace/setting", R"({"trace_level":["TENSORS"]})"), 501),
             Contains("TENSORS"));
  CHECK_THAT(c.refusal(c.post("/v2/trace/setting", R"({"trace_file":"/tmp/x"})"), 501),
             Contains("trace_file"));
  CHECK_THAT(c.refusal(c.post("/v2/trace/setting", R"({"trace_mode":"opentelemetry"})"), 501),
             Contains("trace_mode"));
  CHECK_THAT(c.refusal(c.post("/v2/trace/setting", R"({"log_frequency":"5"})"), 501),
             Contains("log_frequency"));
  CHECK_THAT(c.refusal(c.post("/v2/trace/setting", R"({"trace_rate":"0"})")), Contains("trace_rate"));
  CHECK_THAT(c.refusal(c.post("/v2/trace/setting", R"({"rate":"1"})")), Contains("trace_rate"));
  CHECK(c.post("/v2/models/none/trace/setting", "{}").status == 404);
  t.server->drain_and_stop(std::chrono::seconds(5));
  std::ifstream in(path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  size_t requests = 0;
  const value events = parse(text);
  for (const value& e : events.as_array()) requests += e.at("name") == "queued" && e.at("ph") == "b";
  CHECK(requests == 2);
}

TEST_CASE("settings: a trace cannot be begun by a client") {
  oar::ServerOptions o;
  o.model_control = true;
  TestServer t({}, o);
  const Rest c{t.http()};
  CHECK_THAT(c.refusal(c.post("/v2/trace/setting", R"({"trace_level":["TIMESTAMPS"]})")),
             Contains("--trace"));
  GRPCInferenceService::Stub stub(channel_to(t.grpc()));
  TraceSettingRequest ask;
  ask.set_model_name("fake");
  (*ask.mutable_settings())["trace_rate"].add_value("3");
  grpc::ClientContext context;
  TraceSettingResponse now;
  REQUIRE(stub.TraceSetting(&context, ask, &now).ok());
  CHECK(now.settings().at("trace_rate").value(0) == "3");
  CHECK(c.get("/v2/models/fake/trace/setting").at("trace_rate") == "3");
  CHECK(c.get("/v2/trace/setting").at("trace_rate") == "1");
}

TEST_CASE("metrics: Triton's counters of a language model") {
  TestServer t;
  const Rest c{t.http()};
  REQUIRE(c.post("/v1/completions", R"({"prompt":["x","y"],"max_tokens":1})").status == 200);
  REQUIRE(c.post("/v1/completions", R"({"prompt":"z","max_tokens":1})").status == 200);
  t.engine.fail_next(oar::unavailable("broken"));
  CHECK(c.post("/v1/completions", R"({"prompt":"z","max_tokens":9})").status == 503);
  const std::string text = http(t.http(), "GET", "/metrics").body;
  const auto number = [&](const std::string& line) {
    const size_t at = text.find("\n" + line + " ");
    INFO(line);
    REQUIRE(at != std::string::npos);
    return std::stod(text.substr(at + line.size() + 2));
  };
  const std::string labels = R"({model="fake",version="1"})";
  CHECK(number("nv_inference_request_success" + labels) == 3);
  CHECK(number("nv_inference_count" + labels) == 3);
  CHECK(number("nv_inference_exec_count" + labels) > 0);
  CHECK(number("nv_inference_pending_request_count" + labels) == 0);
  CHECK(number("nv_inference_request_duration_us" + labels) > 0);
  CHECK(number(R"(nv_inference_request_failure{model="fake",version="1",reason="OTHER"})") == 1);
  CHECK(number(R"(nv_inference_request_failure{model="fake",version="1",reason="CANCELED"})") == 0);
}

}  // namespace
