// The load tester over gRPC against the server itself: text, streams, early leavers, TLS, refusals.
#include "clients/loadtest/summary.h"
#include "tests/server/test_ca.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar::loadtest;  // NOLINT
using namespace oar_test;       // NOLINT
using std::chrono::milliseconds;

RunResult run(const Server& server, WorkloadSpec w, int64_t requests = 12, double stall = 5) {
  if (w.model.empty()) w.model = "fake";
  w.prompt_words = 5;
  const auto workload = Workload::create(w);
  REQUIRE_OK(workload);
  RunSpec spec;
  spec.server = server;
  spec.closed_loop = true;
  spec.concurrency = 3;
  spec.threads = 2;
  spec.timeout = 20;
  spec.stall_timeout = stall;
  spec.keep_texts = true;
  spec.headers = {"Authorization: Bearer key"};
  auto result = run_load(spec, *workload, workload->plan(requests, {}));
  REQUIRE_OK(result);
  return std::move(*result);
}

WorkloadSpec spec_of(Endpoint endpoint) {
  WorkloadSpec w;
  w.endpoint = endpoint;
  w.output_tokens = 20;
  return w;
}

Server at(int port) { return *parse_server("127.0.0.1:" + std::to_string(port)); }

oar::ServerOptions with_key() {
  oar::ServerOptions o;
  o.api_key = "key";
  return o;
}

TEST_CASE("ModelStreamInfer: every token is timed, texts are whole") {
  FakeEngineOptions e;
  e.reply = std::string(100, 'x');
  e.step = milliseconds(2);
  TestServer t(e, with_key());
  const RunResult result = run(at(t.grpc()), spec_of(Endpoint::kGrpcStream));
  CHECK(result.records.size() == 12);
  double between = 0;  // all gaps: what each is depends on how busy the machine is
  for (const Record& r : result.records) {
    between += static_cast<double>(r.last - r.first);
    CHECK(r.error == "");
    CHECK(r.text == std::string(20, 'x'));
    CHECK(r.chunks == 20);
    CHECK((r.sent < r.first && r.first < r.last && r.last <= r.end));
    CHECK(static_cast<double>(r.end - r.sent) > 19 * 1.9e6);
  }
  RunSpec spec;
  const Summary s = summarize(result, spec, {});
  CHECK(s.completed == 12);
  CHECK(s.itl.count() == 12 * 19);
  CHECK(s.itl.mean() * (12 * 19) == Approx(between).epsilon(1e-6));
}

TEST_CASE("ModelInfer: one answer") {
  FakeEngineOptions e;
  e.reply = std::string(100, 'y');
  TestServer t(e, with_key());
  for (const Record& r : run(at(t.grpc()), spec_of(Endpoint::kGrpcInfer)).records) {
    CHECK(r.error == "");
    CHECK(r.text.ends_with(std::string(20, 'y')));  // behind the prompt, as Triton's backends answer
    CHECK(r.first == r.last);
  }
}

TEST_CASE("clients that leave free the server's sequences; slow ones get everything") {
  FakeEngineOptions e;
  e.reply = std::string(300, 'x');
  e.step = milliseconds(2);
  TestServer t(e, with_key());
  WorkloadSpec w = spec_of(Endpoint::kGrpcStream);
  w.output_tokens = 250;
  w.cancel_share = 1;
  for (const Record& r : run(at(t.grpc()), w).records) {
    CHECK(r.cancelled);
    CHECK(r.chunks <= 8);
  }
  CHECK(t.engine.wait_idle());
  w.cancel_share = 0;
  w.slow_share = 1;
  w.output_tokens = 10;
  for (const Record& r : run(at(t.grpc()), w, 3).records) {
    CHECK(r.error == "");
    CHECK(r.chunks == 10);
    CHECK(static_cast<double>(r.end - r.sent) > 0.2e9);  // 64 bytes at 2048 bytes/s behind each
  }
}

TEST_CASE("what goes wrong over gRPC is said, in time") {
  TestServer t({}, with_key());
  WorkloadSpec w = spec_of(Endpoint::kGrpcInfer);
  w.model = "absent";
  for (const Record& r : run(at(t.grpc()), w, 3).records) CHECK(r.error.find("gRPC NOT_FOUND: ") == 0);
  w.endpoint = Endpoint::kGrpcStream;
  for (const Record& r : run(at(t.grpc()), w, 3).records) CHECK(r.error.find("error in the stream: ") == 0);
  for (const Record& r : run(at(t.http()), spec_of(Endpoint::kGrpcInfer), 2).records)
    CHECK(r.error.find("gRPC UNAVAILABLE") == 0);
  t.engine.pause(true);
  for (const Record& r : run(at(t.grpc()), spec_of(Endpoint::kGrpcStream), 3, 0.3).records)
    CHECK(r.error == "the server sent nothing for 0.3 s");
  t.engine.pause(false);
  CHECK(t.engine.wait_idle());
  w.model = "fake";
  w.tensors = {"image:FP32:1,3"};
  for (const Record& r : run(at(t.grpc()), w, 2).records) CHECK_FALSE(r.error.empty());
}

TEST_CASE("gRPC under TLS, and against who is not trusted") {
  const TestCa ca("Server CA");
  const std::string folder = temp_dir() + "/loadtest-grpc-";
  const Identity id = ca.issue("server");
  write_file(folder + "crt", id.certificate);
  write_file(folder + "key", id.key);
  write_file(folder + "ca", ca.certificate());
  write_file(folder + "other", TestCa("Other CA").certificate());
  oar::ServerOptions o = with_key();
  o.tls = {folder + "crt", folder + "key", ""};
  TestServer t({}, o);
  const std::string url = "https://127.0.0.1:" + std::to_string(t.grpc());
  for (const Record& r : run(*parse_server(url, {folder + "ca"}), spec_of(Endpoint::kGrpcStream), 4).records)
    CHECK(r.error == "");
  for (const Record& r :
       run(*parse_server(url, {folder + "other"}), spec_of(Endpoint::kGrpcInfer), 1).records)
    CHECK(r.error.find("gRPC UNAVAILABLE") == 0);
}

}  // namespace
