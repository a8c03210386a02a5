// The load tester over https against the server itself.
#include "clients/loadtest/http_request.h"
#include "clients/loadtest/summary.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_ca.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar::loadtest;  // NOLINT
using namespace oar_test;       // NOLINT

struct Fixture {
  explicit Fixture(bool mutual = false) {
    const Identity id = ca.issue("server");
    options.tls = {folder + "s.crt", folder + "s.key", mutual ? folder + "c.ca" : ""};
    write_file(options.tls.certificate, id.certificate);
    write_file(options.tls.key, id.key);
    write_file(folder + "ca.crt", ca.certificate());
    const Identity client = clients.issue("client");
    write_file(folder + "c.ca", clients.certificate());
    write_file(folder + "c.crt", client.certificate);
    write_file(folder + "c.key", client.key);
    trust.ca = folder + "ca.crt";
  }
  TestCa ca{"Server CA"}, clients{"Clients' CA"};
  std::string folder = temp_dir() + "/loadtest-";
  oar::ServerOptions options;
  TlsOptions trust;
};

RunResult run_tls(const Server& server, WorkloadSpec w = {}, int64_t requests = 12) {
  w.model = "fake";
  w.prompt_words = 5;
  const auto workload = Workload::create(w);
  REQUIRE_OK(workload);
  RunSpec spec;
  spec.server = server;
  spec.closed_loop = true;
  spec.concurrency = 3;
  spec.timeout = 20;
  spec.connect_timeout = 1;
  spec.slow_bytes_per_second = 20000;
  spec.stall_timeout = 2;
  auto result = run_load(spec, *workload, workload->plan(requests, {}));
  REQUIRE_OK(result);
  return std::move(*result);
}

TEST_CASE("load over https: streams, slow readers and early leavers, on kept connections") {
  const Fixture f;
  TestServer t({}, f.options);
  const std::string url = "https://localhost:" + std::to_string(t.http());
  const auto server = parse_server(url, f.trust);
  REQUIRE_OK(server);
  for (const Record& r : run_tls(*server).records) {
    CHECK(r.error == "");
    CHECK(r.output_tokens == 64);
    CHECK(r.counted_by_server);
    CHECK((r.sent < r.first && r.first <= r.last && r.last <= r.end));
  }
  CHECK(t.engine.submitted() == 12);
  WorkloadSpec odd;
  odd.cancel_share = 1;
  int cancelled = 0;
  for (const Record& r : run_tls(*server, odd).records) cancelled += r.cancelled;
  CHECK(cancelled > 0);
  odd.cancel_share = 0;
  odd.slow_share = 1;
  odd.output_tokens = 20;
  for (const Record& r : run_tls(*server, odd, 3).records) CHECK(r.error == "");
  CHECK(parse_server("https://127.0.0.1:" + std::to_string(t.http()), f.trust).ok());
  const auto health = http_request(*server, "GET", "/v2/health/ready", {}, {}, 5);
  REQUIRE_OK(health);
  CHECK(health->status == 200);
}

TEST_CASE("whom the load tester does not trust, or who does not trust it, it does not measure") {
  const Fixture f(true);
  TestServer t({}, f.options);
  const std::string url = "https://127.0.0.1:" + std::to_string(t.http());
  TlsOptions mutual = f.trust, any = f.trust;
  mutual.certificate = f.folder + "c.crt";
  mutual.key = f.folder + "c.key";
  any = mutual;
  any.ca.clear();
  any.verify = false;
  for (const TlsOptions& o : {mutual, any})
    for (const Record& r : run_tls(*parse_server(url, o), {}, 3).records) CHECK(r.error == "");
  TlsOptions system = mutual;
  system.ca.clear();
  for (const Record& r : run_tls(*parse_server(url, system), {}, 3).records)
    CHECK(r.error.find("cannot connect: TLS: certificate verify failed") == 0);
  for (const Record& r : run_tls(*parse_server(url, f.trust), {}, 3).records) CHECK_FALSE(r.error.empty());
  CHECK_FALSE(http_request(*parse_server(url, system), "GET", "/health", {}, {}, 5).ok());
  // A server that speaks no TLS.
  TestServer plain;
  for (const Record& r :
       run_tls(*parse_server("https://127.0.0.1:" + std::to_string(plain.http()), f.trust), {}, 3).records)
    CHECK(r.error == "no connection within 1 s");  // it waits for the rest of what it takes for a header

  CHECK(parse_server("https://h", {"/nonexistent"}).status().message() ==
        "tls-ca: /nonexistent cannot be read");
  CHECK(parse_server("https://h", {f.folder + "c.key"}).status().message().find("holds no certificate") !=
        std::string::npos);
  CHECK(parse_server("https://h", {"", f.folder + "c.crt"}).status().message().find("--tls-key") !=
        std::string::npos);
  CHECK(parse_server("https://h", {"", f.folder + "c.crt", f.folder + "s.key"})
            .status()
            .message()
            .find("tls-key: ") == 0);
}

}  // namespace
