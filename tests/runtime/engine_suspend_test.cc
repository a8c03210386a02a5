// Requests whose readers are behind: they leave their slots to others, and their texts do not change.
#include <atomic>

#include "tests/runtime/collect_sink.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace oar_test;
using namespace std::chrono_literals;

namespace {

// Suspends its request with every `step` tokens; whoever reads it says when it goes on.
class LaggingSink final : public TokenSink {
 public:
  LaggingSink(Engine& engine, int32_t n, int step) : kept(n), engine_(engine), step_(step) {}
  void on_event(TokenEvent&& event) noexcept override {
    const uint64_t id = event.request;
    const bool token = event.has_token;
    kept.on_event(std::move(event));
    if (token && ++tokens_ % step_ == 0) engine_.suspend(id);
  }
  CollectSink kept;

 private:
  Engine& engine_;
  const int step_;
  int tokens_ = 0;
};

Request sampled(uint64_t i) {
  Request r = make_request(nullptr, prompt_of(i, 5 + 7 * i), 40);
  r.n = 1 + static_cast<int32_t>(i % 2);
  r.stop.ignore_eos = true;
  r.sampling.temperature = i % 3 == 0 ? 0.f : 1.1f;
  r.sampling.seed = 100 + i;
  if (i % 2 == 1) r.sampling.frequency_penalty = 0.5f;
  if (i == 2) r.sampling.logprobs = 2;
  return r;
}

template <class F>
bool soon(F&& f) {
  for (int i = 0; i < 5000 && !f(); ++i) std::this_thread::sleep_for(1ms);
  return f();
}

}  // namespace

TEST_CASE("slots of readers that are behind are others', and no text changes", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  EngineOptions options;
  options.max_sequences = 4;
  options.prefix_cache = GENERATE(true, false);
  constexpr uint64_t kRequests = 4;
  std::vector<CollectSink::Choice> alone;
  {
    Fixture f({}, small_limits(depth));
    for (uint64_t i = 0; i < kRequests; ++i) {
      Request r = sampled(i);
      auto sink = std::make_shared<CollectSink>(r.n);
      r.sink = sink;
      REQUIRE_OK(f.engine->submit(std::move(r)));
      REQUIRE(sink->wait());
      for (CollectSink::Choice& c : sink->choices) alone.push_back(std::move(c));
    }
  }
  Fixture f(options, small_limits(depth));
  std::vector<std::shared_ptr<LaggingSink>> behind;
  std::vector<uint64_t> ids;
  for (uint64_t i = 0; i < kRequests; ++i) {
    Request r = sampled(i);
    behind.push_back(std::make_shared<LaggingSink>(*f.engine, r.n, 7));
    r.sink = behind.back();
    auto id = f.engine->submit(std::move(r));
    REQUIRE_OK(id);
    ids.push_back(*id);
  }
  REQUIRE(soon([&] { return f.engine->stats().suspended == 6; }));  // choices of all four
  CHECK(f.engine->stats().running == 0);
  CHECK(f.engine->stats().blocks_used == 0);

  auto neighbour = std::make_shared<CollectSink>(4);  // takes every slot
  Request r = make_request(neighbour, prompt_of(9, 20), 60);
  r.n = 4;
  REQUIRE_OK(f.engine->submit(std::move(r)));
  REQUIRE(neighbour->wait());
  CHECK(f.engine->stats().suspended == 6);

  // All catch up, again and again.
  REQUIRE(soon([&] {
    for (const uint64_t id : ids) f.engine->resume(id);
    const EngineStats s = f.engine->stats();
    return s.running + s.waiting + s.suspended == 0;
  }));
  size_t at = 0;
  for (const auto& sink : behind) {
    REQUIRE(sink->kept.wait());
    CHECK_FALSE(sink->kept.late);
    for (const CollectSink::Choice& c : sink->kept.choices) {
      const CollectSink::Choice& want = alone[at++];
      CHECK(c.tokens == want.tokens);
      CHECK(c.finish == want.finish);
      REQUIRE(c.events.size() == want.events.size());
      for (size_t i = 0; i < c.events.size(); ++i) CHECK(c.events[i].logprob == want.events[i].logprob);
      CHECK(c.last.stats.preemptions == 0);  // nobody took its place by force
    }
  }
}

TEST_CASE("suspended requests meet their deadline, can be cancelled and keep an engine from being drained",
          "[engine]") {
  Fixture f({}, small_limits(GENERATE(0, 1)));
  const auto start = [&](std::chrono::milliseconds time) {
    auto sink = std::make_shared<LaggingSink>(*f.engine, 1, 3);
    Request r = make_request(sink, prompt_of(1, 9), 100);
    r.stop.ignore_eos = true;
    if (time.count() > 0) r.deadline = Clock::now() + time;
    const Result<uint64_t> id = f.engine->submit(std::move(r));
    REQUIRE_OK(id);
    REQUIRE(soon([&] { return f.engine->stats().suspended == 1 || f.engine->stats().finished[4] > 0; }));
    return std::pair(*id, sink);
  };
  const auto late = start(100ms);
  REQUIRE(late.second->kept.wait());  // with nobody else around who would wake the engine
  CHECK(late.second->kept.choices[0].finish == FinishReason::kDeadline);
  const auto cancelled = start(0ms);
  f.engine->cancel(cancelled.first);
  REQUIRE(cancelled.second->kept.wait());
  CHECK(cancelled.second->kept.choices[0].finish == FinishReason::kCancelled);
  CHECK(f.engine->stats().suspended == 0);
  f.engine->resume(cancelled.first);
  f.engine->suspend(12345);
  const auto left = start(0ms);
  CHECK_FALSE(f.engine->drain(50ms));
  REQUIRE(left.second->kept.wait());
  CHECK(left.second->kept.choices[0].finish == FinishReason::kCancelled);
}
