// What a request is told before its answer has ended: how far its prompt is, and counts with every token.
#include "tests/runtime/collect_sink.h"
#include "tests/runtime/engine_fixture.h"

using namespace oar_test;

namespace {

std::vector<TokenEvent> progress_of(const CollectSink& sink) {
  std::vector<TokenEvent> out;
  for (const TokenEvent& e : sink.choices[0].events)
    if (e.progress) out.push_back(e);
  return out;
}

Request asking(const std::shared_ptr<CollectSink>& sink, size_t prompt, int32_t n = 1) {
  Request r = make_request(sink, prompt_of(1, prompt), 4);
  r.prompt_progress = true;
  r.n = n;
  r.stop.ignore_eos = true;
  return r;
}

}  // namespace

TEST_CASE("a prompt's progress: where it begins, each piece, and all of it before the first token",
          "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  const int32_t n = GENERATE(1, 3);
  Fixture f({}, small_limits(depth));  // 32 tokens a step
  for (const int64_t cached : {0, 88}) {
    INFO(cached);
    auto sink = std::make_shared<CollectSink>(n);
    REQUIRE_OK(f.engine->submit(asking(sink, 90, n)));
    REQUIRE(sink->wait());
    const std::vector<TokenEvent> told = progress_of(*sink);
    REQUIRE(told.size() == (cached == 0 ? 4u : 2u));
    int64_t before = -1;
    for (const TokenEvent& e : told) {
      CHECK_FALSE(e.has_token);
      CHECK(e.finish == FinishReason::kNone);
      CHECK(e.prompt_logprobs.empty());
      CHECK(e.stats.prompt_tokens == 90);
      CHECK(e.stats.cached_tokens == cached);
      CHECK(e.stats.computed_tokens > before);
      CHECK(e.stats.completion_tokens == 0);
      CHECK(e.stats.scheduled <= e.stats.finished);
      CHECK(e.stats.first_token == Clock::time_point{});
      before = e.stats.computed_tokens;
    }
    CHECK(told.front().stats.computed_tokens == cached);
    CHECK(before == 90);
    for (size_t i = 0; i < told.size(); ++i) CHECK(sink->choices[0].events[i].progress);
    for (size_t c = 1; c < sink->choices.size(); ++c) CHECK_FALSE(sink->choices[c].events[0].progress);
    for (const auto& choice : sink->choices) CHECK(choice.last.stats.computed_tokens == 90);
  }
}

TEST_CASE("a prompt that begins anew tells each piece once; who does not ask hears nothing", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  EngineOptions options;
  options.prefix_cache = false;
  Fixture f(options, small_limits(depth));
  f.wait_ready();
  f.control->stall_ms = 20;
  auto sink = std::make_shared<CollectSink>();
  const auto id = f.engine->submit(asking(sink, 120));
  REQUIRE_OK(id);
  std::this_thread::sleep_for(30ms);
  f.engine->suspend(*id);
  std::this_thread::sleep_for(30ms);
  f.engine->resume(*id);
  f.control->stall_ms = 0;
  auto other = std::make_shared<CollectSink>();
  REQUIRE_OK(f.engine->submit(make_request(other, prompt_of(2, 40), 4)));
  REQUIRE(sink->wait());
  REQUIRE(other->wait());
  int64_t before = -1;
  for (const TokenEvent& e : progress_of(*sink)) {
    CHECK(e.stats.computed_tokens > before);
    before = e.stats.computed_tokens;
  }
  CHECK(before == 120);
  CHECK(progress_of(*other).empty());
}

TEST_CASE("statistics with every token, where they are asked for", "[engine]") {
  Fixture f;
  for (const bool asked : {false, true}) {
    auto sink = std::make_shared<CollectSink>();
    Request r = make_request(sink, prompt_of(3, 9), 6);
    r.running_stats = asked;
    r.stop.ignore_eos = true;
    REQUIRE_OK(f.engine->submit(std::move(r)));
    REQUIRE(sink->wait());
    int64_t before = 0;
    for (const TokenEvent& e : sink->choices[0].events) {
      if (e.finish != FinishReason::kNone) continue;
      CHECK(e.stats.prompt_tokens == (asked ? 9 : 0));
      if (asked) CHECK(e.stats.completion_tokens > before);
      before = e.stats.completion_tokens;
    }
  }
}
