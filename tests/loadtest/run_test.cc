// Runs against a server whose times are known: what is reported must be what happened.
#include "clients/loadtest/run.h"

#include <atomic>
#include <thread>

#include "clients/loadtest/scrape.h"
#include "clients/loadtest/summary.h"
#include "engine/base/json.h"
#include "tests/loadtest/sse_server.h"
#include "tests/support/catch.h"

namespace {
using namespace oar;
using namespace oar::loadtest;
using oar_test::SseBehaviour;
using oar_test::SseServer;

Workload make(WorkloadSpec spec) {
  spec.model = "fake";
  auto w = Workload::create(std::move(spec));
  REQUIRE_OK(w);
  return std::move(*w);
}

RunSpec closed(const SseServer& server, int64_t concurrency) {
  RunSpec s;
  s.server = *parse_server(server.url());
  s.closed_loop = true;
  s.concurrency = concurrency;
  s.timeout = 30;
  return s;
}

double p(const Histogram& h, double percentile) {
  return to_ms(static_cast<double>(h.percentile(percentile)));
}

TEST_CASE("reported latencies are the server's") {
  const SseServer server({.first_ms = 60, .gap_ms = 15, .chunks = 9});
  const Workload w = make({});
  auto run = run_load(closed(server, 4), w, w.plan(16, {}));
  REQUIRE_OK(run);
  const Summary s = summarize(*run, closed(server, 4), {});
  CHECK(s.completed == 16);
  CHECK(s.failed == 0);
  CHECK(s.output_tokens == 16 * 9);
  CHECK(s.input_tokens == 16 * 7);
  CHECK(s.counted_by_server);
  // The server never sends early. A busy machine makes it late by any amount, so what is above is compared
  // with other numbers of the same run.
  CHECK(p(s.ttft, 0) >= 59.9);
  CHECK(s.itl.count() == 16 * 8);
  CHECK(p(s.e2el, 0) >= 60 + 8 * 15 - 0.1);
  double streamed = 0, waited = 0;
  for (const Record& r : run->records) {
    streamed += to_ms(static_cast<double>(r.last - r.first));
    waited += to_ms(static_cast<double>(r.end - r.sent));
    CHECK(r.first >= r.sent);
    CHECK(r.last >= r.first);
    CHECK(r.end >= r.last);
  }
  CHECK(to_ms(s.itl.mean()) * 16 * 8 == Approx(streamed).epsilon(0.01));
  CHECK(to_ms(s.tpot.mean()) * 16 * 8 == Approx(waited - to_ms(s.ttft.mean()) * 16).epsilon(0.01));
  CHECK(to_ms(s.e2el.mean()) * 16 == Approx(waited).epsilon(0.01));
  CHECK(waited <= 4 * run->seconds * 1000 * 1.01);  // four at once, one after the other
  CHECK(server.connections() == 4);                 // kept and used again
}

TEST_CASE("a client that never sleeps measures the same, and takes a processor") {
  const SseServer server({.first_ms = 60, .gap_ms = 15, .chunks = 9});
  const Workload w = make({});
  RunSpec spec = closed(server, 4);
  spec.spin = true;
  auto run = run_load(spec, w, w.plan(8, {}));
  REQUIRE_OK(run);
  const Summary s = summarize(*run, spec, {});
  CHECK(s.completed == 8);
  CHECK(p(s.ttft, 0) >= 59.9);
  auto sleeping = run_load(closed(server, 4), w, w.plan(8, {}));
  REQUIRE_OK(sleeping);
  CHECK(run->cpu_seconds > 2 * sleeping->cpu_seconds);
}

TEST_CASE("a run ends also when its last answer comes while it looks whether to stop") {
  // It looks every 50 ms; answers that come about then met it once.
  const Workload w = make({});
  for (int i = 0; i < 12; ++i) {
    const SseServer server({.first_ms = 47 + 0.3 * i, .chunks = 1});
    RunSpec spec = closed(server, 8);
    std::atomic<bool> stop{false}, ended{false};
    spec.stop = &stop;
    std::thread watch([&] {
      for (int k = 0; k < 1000 && !ended; ++k) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      stop = true;
    });
    auto run = run_load(spec, w, w.plan(8, {}));
    CHECK_FALSE(stop);
    ended = true;
    watch.join();
    REQUIRE_OK(run);
    CHECK(run->records.size() == 8);
  }
}

TEST_CASE("queueing shows from the intended time and not from the actual one") {
  // One request takes 40 ms, one at a time is allowed, and 50 per second are wanted: the n-th waits.
  const SseServer server({.first_ms = 40, .chunks = 1});
  const Workload w = make({});
  RunSpec spec = closed(server, 1);
  spec.closed_loop = false;
  spec.max_in_flight = 1;
  const auto times = arrival_times({.kind = ArrivalKind::kConstant, .rate = 50, .count = 20});
  REQUIRE_OK(times);
  auto run = run_load(spec, w, w.plan(20, *times));
  REQUIRE_OK(run);
  const Summary s = summarize(*run, spec, {});
  CHECK(s.completed == 20);
  // Request n ends at 40 (n + 1) ms at the earliest and was due at 20 n: the last waited 420 ms in all.
  CHECK(p(s.ttft_intended, 100) >= 419);
  CHECK(p(s.ttft_intended, 50) > 3 * p(s.ttft, 50));
}

TEST_CASE("open loop keeps its schedule") {
  const SseServer server({.first_ms = 100, .gap_ms = 1, .chunks = 5});
  const Workload w = make({});
  RunSpec spec = closed(server, 1);
  spec.closed_loop = false;
  const auto times = arrival_times({.kind = ArrivalKind::kPoisson, .rate = 400, .count = 200, .seed = 4});
  REQUIRE_OK(times);
  const auto plans = w.plan(200, *times);
  auto run = run_load(spec, w, plans);
  REQUIRE_OK(run);
  REQUIRE(run->records.size() == 200);
  int64_t under_way = 0;
  for (size_t i = 0; i < 200; ++i) {
    CHECK(run->records[i].ok());
    under_way += run->records[i].end - run->records[i].sent;
    CHECK(run->records[i].intended == static_cast<int64_t>(plans[i].at * 1e9));
    CHECK(run->records[i].dispatched >= run->records[i].intended);
  }
  const Summary s = summarize(*run, spec, {});
  CHECK(s.slip.count() == 200);
  // No request waits for another's answer: of 400 a second that take 0.1 s, 40 are under way at once.
  CHECK(static_cast<double>(under_way) * 1e-9 > 4 * run->seconds);
}

TEST_CASE("a client that is late says so") {
  RunResult run;
  for (int i = 0; i < 100; ++i) {
    Record r;
    r.dispatched = i < 98 ? 0 : 5'000'000;
    run.records.push_back(r);
  }
  RunSpec spec;
  CHECK(!summarize(run, spec, {}).valid);
  run.records[98].dispatched = 0;
  CHECK(summarize(run, spec, {}).valid);
}

TEST_CASE("goodput counts from the intended time") {
  const SseServer server({.first_ms = 30, .chunks = 2});
  const Workload w = make({});
  auto run = run_load(closed(server, 2), w, w.plan(6, {}));
  REQUIRE_OK(run);
  CHECK(summarize(*run, closed(server, 2), *parse_goodput("ttft:5")).good == 0);
  CHECK(summarize(*run, closed(server, 2), *parse_goodput("ttft:5000 e2el:9000")).good == 6);
}

TEST_CASE("conversations carry their history") {
  const SseServer server({.chunks = 3});
  WorkloadSpec spec;
  spec.turns = 3;
  spec.prompt_words = 5;
  const Workload w = make(spec);
  auto run = run_load(closed(server, 1), w, w.plan(2, {}));
  REQUIRE_OK(run);
  REQUIRE(run->records.size() == 6);
  CHECK(run->records[2].turn == 2);
  auto body = parse_json(server.last_body(), "body");
  REQUIRE_OK(body);
  const json::array& messages = body->at("messages").as_array();
  REQUIRE(messages.size() == 5);
  CHECK(messages[0].at("role") == "user");
  CHECK(messages[1].at("role") == "assistant");
  CHECK(messages[1].at("content") == "w0 w1 w2 ");
}

TEST_CASE("clients that leave and clients that dawdle") {
  const SseServer server({.first_ms = 1, .gap_ms = 2, .chunks = 200});
  WorkloadSpec spec;
  spec.cancel_share = 1;
  const Workload w = make(spec);
  auto run = run_load(closed(server, 4), w, w.plan(12, {}));
  REQUIRE_OK(run);
  const Summary s = summarize(*run, closed(server, 4), {});
  CHECK(s.cancelled == 12);
  CHECK(s.failed == 0);
  for (const Record& r : run->records) CHECK(r.chunks < 200);
  CHECK(run->chunks < 12 * 200 / 2);

  const SseServer quick({.chunks = 40});
  WorkloadSpec slow_spec;
  slow_spec.slow_share = 1;
  const Workload slow = make(slow_spec);
  RunSpec dawdle = closed(quick, 2);
  dawdle.slow_bytes_per_second = 8000;  // the stream has about 5 kB
  run = run_load(dawdle, slow, slow.plan(2, {}));
  REQUIRE_OK(run);
  for (const Record& r : run->records) {
    CHECK(r.ok());
    CHECK(r.slow);
    CHECK(to_ms(static_cast<double>(r.end - r.sent)) > 300);
    CHECK(r.output_tokens == 40);
  }
}

TEST_CASE("whole answers, comments, chunks counted without usage") {
  const SseServer whole({.first_ms = 10});
  WorkloadSpec spec;
  spec.stream = false;
  auto run = run_load(closed(whole, 1), make(spec), make(spec).plan(3, {}));
  REQUIRE_OK(run);
  for (const Record& r : run->records) {
    CHECK(r.ok());
    CHECK(r.output_tokens == 5);
    CHECK(r.end - r.sent >= 9'900'000);
  }
  const SseServer chatty({.chunks = 6, .usage = false, .comments = true});
  spec = {};
  spec.endpoint = Endpoint::kCompletions;
  RunSpec keep = closed(chatty, 1);
  keep.keep_texts = true;
  run = run_load(keep, make(spec), make(spec).plan(2, {}));
  REQUIRE_OK(run);
  CHECK(run->records[0].output_tokens == 6);
  CHECK(!run->records[0].counted_by_server);
}

TEST_CASE("many streams open at once from one thread") {
  const SseServer server({.gap_ms = 1, .chunks = 3, .hold_until_open = 800}, 2);
  const Workload w = make({});
  auto run = run_load(closed(server, 800), w, w.plan(800, {}));
  REQUIRE_OK(run);
  const Summary s = summarize(*run, closed(server, 800), {});
  CHECK(s.completed == 800);
  CHECK(server.most_open() == 800);
}

TEST_CASE("a run can be stopped") {
  const SseServer server({.first_ms = 1, .gap_ms = 1000, .chunks = 100});
  const Workload w = make({});
  std::atomic<bool> stop{false};
  RunSpec spec = closed(server, 3);
  spec.stop = &stop;
  LoadProgress progress;
  std::thread stopper([&] {
    while (progress.tokens < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop = true;
  });
  auto run = run_load(spec, w, w.plan(1000, {}), &progress);
  stopper.join();
  REQUIRE_OK(run);
  CHECK(run->records.size() == 3);
  CHECK(run->chunks < 3 * 100);  // answers were dropped, not waited for
  spec.stop = nullptr;
  spec.duration = 0.2;
  const SseServer quick({.first_ms = 1, .chunks = 2});
  spec.server = *parse_server(quick.url());
  run = run_load(spec, w, w.plan(200'000, {}));
  REQUIRE_OK(run);
  CHECK(run->records.size() >= 3);
  CHECK(run->records.size() < 200'000);
}

TEST_CASE("the server's metrics are scraped beside the run") {
  const SseServer server({.chunks = 2, .hold_until_told = 5}, 2);
  Scraper scraper(*parse_server(server.url()), "/metrics", {}, 0.02);
  const Workload w = make({});
  auto run = run_load(closed(server, 5), w, w.plan(10, {}));
  REQUIRE_OK(run);
  double most = 0;
  const auto samples = scraper.stop();
  for (const Sample& s : samples) most = std::max(most, s.values.at("vllm:num_requests_running"));
  CHECK(most == 5);
}

}  // namespace
