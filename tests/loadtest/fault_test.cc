// Servers that go wrong: every request ends, in time, with an error that says what happened.
#include "clients/loadtest/run.h"
#include "clients/loadtest/scrape.h"
#include "clients/loadtest/summary.h"
#include "tests/loadtest/sse_server.h"
#include "tests/support/catch.h"

namespace {
using namespace oar;
using namespace oar::loadtest;
using oar_test::SseBehaviour;
using oar_test::SseServer;

RunResult run_against(const std::string& url, double stall = 0.3, int64_t requests = 6) {
  WorkloadSpec spec;
  spec.model = "fake";
  spec.prompt_words = 3;
  const auto w = Workload::create(spec);
  RunSpec run;
  run.server = *parse_server(url);
  run.closed_loop = true;
  run.concurrency = 3;
  run.timeout = 5;
  run.connect_timeout = 1;
  run.stall_timeout = stall;
  auto result = run_load(run, *w, w->plan(requests, {}));
  REQUIRE_OK(result);
  return std::move(*result);
}

TEST_CASE("every fault has its message") {
  struct Case {
    SseBehaviour::Fault fault;
    const char* message;
  };
  const Case cases[] = {
      {SseBehaviour::kReset, "the connection broke"},
      {SseBehaviour::kStall, "the server sent nothing for 0.3 s"},
      {SseBehaviour::kBrokenJson, "an event is no JSON object"},
      {SseBehaviour::kHalfEvent, "in the middle of an event"},
      {SseBehaviour::kEarlyEnd, "before its answer did"},
      {SseBehaviour::kShortLength, "before the response did"},
      {SseBehaviour::kLongLength, "its length is wrong"},
      {SseBehaviour::kNoHttp, "not valid HTTP"},
      {SseBehaviour::kRefuse, "HTTP 503: no room <here>"},
      {SseBehaviour::kErrorInStream, "error in the stream: device lost"},
      {SseBehaviour::kSilent, "the server sent nothing for 0.3 s"},
      {SseBehaviour::kCloseAtOnce, "closed the connection without an answer"},
  };
  for (const Case& c : cases) {
    INFO(c.message);
    SseBehaviour b;
    b.first_ms = 1;
    b.fault = c.fault;
    const SseServer server(b);
    const RunResult run = run_against(server.url());
    CHECK(run.records.size() == 6);
    for (const Record& r : run.records) {
      INFO(r.error);
      CHECK(!r.ok());
      CHECK(r.error.find(c.message) != std::string::npos);
      CHECK(r.end >= 0);
    }
    RunSpec closed;
    closed.closed_loop = true;
    const Summary s = summarize(run, closed, {});
    CHECK(s.failed == 6);
    CHECK(s.good == 0);
  }
}

TEST_CASE("a connection is kept after a refusal") {
  SseBehaviour b;
  b.fault = SseBehaviour::kRefuse;
  const SseServer server(b);
  const RunResult run = run_against(server.url());
  CHECK(run.records.size() == 6);
  for (const Record& r : run.records) CHECK(r.http_status == 503);
  CHECK(server.connections() == 3);
}

TEST_CASE("nobody listens; the name is not known; the address is none") {
  std::string url;
  {
    const SseServer gone({});
    url = gone.url();
  }
  for (const Record& r : run_against(url).records) CHECK(r.error.find("cannot connect") != std::string::npos);
  WorkloadSpec spec;
  spec.model = "fake";
  const auto w = Workload::create(spec);
  RunSpec run;
  run.server = *parse_server("http://no-such-host.invalid:1");
  CHECK(run_load(run, *w, w->plan(1, {})).status().code() == StatusCode::kUnavailable);
  for (const char* wrong :
       {"", "http://", "http://:80", "http://h:x", "http://h:123456", "http://[::1", "http://h:80/a b"}) {
    INFO(wrong);
    CHECK(!parse_server(wrong).ok());
  }
  CHECK(parse_server("h:8000/base/")->base == "/base");
  CHECK(parse_server("http://[::1]:8000")->host == "::1");
  run.headers = {"no colon"};
  CHECK(run_load(run, *w, w->plan(1, {})).status().code() == StatusCode::kInvalidArgument);
  run.headers = {"A: b\r\nC: d"};
  CHECK(!run_load(run, *w, w->plan(1, {})).ok());
}

TEST_CASE("scraping a server that goes wrong") {
  SseBehaviour b;
  const SseServer server(b);
  const Server at = *parse_server(server.url());
  CHECK(http_get(at, "/v1/models", {}, 1).ok());
  std::string url;
  {
    const SseServer gone({});
    url = gone.url();
  }
  CHECK(http_get(*parse_server(url), "/metrics", {}, 1).status().code() == StatusCode::kUnavailable);
  Scraper scraper(*parse_server(url), "/metrics", {}, 0.01);
  CHECK(scraper.stop().empty());
}

}  // namespace
