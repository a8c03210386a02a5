// The Engine over a fake model: what callers see, from submit to the last event.
#include "engine/runtime/engine.h"

#include "tests/runtime/collect_sink.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace oar_test;
using namespace std::chrono_literals;

namespace {

// Greedy continuation by the fake model itself.
std::vector<int32_t> greedy(const std::vector<int32_t>& prompt, int64_t max_tokens, FinishReason& finish,
                            bool eos = true) {
  uint64_t h = kEmptyHistory;
  for (int32_t t : prompt) h = extend(h, t);
  std::vector<int32_t> out;
  finish = FinishReason::kLength;
  while (static_cast<int64_t>(out.size()) < max_tokens) {
    int32_t best = 0;
    for (int32_t t = 1; t < 64; ++t)
      if (logit(h, t) > logit(h, best)) best = t;
    if (eos && best == kEos) {
      finish = FinishReason::kStop;
      break;
    }
    out.push_back(best);
    h = extend(h, best);
  }
  return out;
}

}  // namespace

TEST_CASE("a request produces the model's greedy text and one finish event", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  Fixture f({}, small_limits(depth));
  const auto prompt = prompt_of(1, 37);
  auto sink = std::make_shared<CollectSink>();
  REQUIRE_OK(f.engine->submit(make_request(sink, prompt, 40)));
  REQUIRE(sink->wait());
  FinishReason finish;
  CHECK(sink->choices[0].tokens == greedy(prompt, 40, finish));
  CHECK(sink->choices[0].finish == finish);
  CHECK(sink->choices[0].finishes == 1);
  CHECK_FALSE(sink->late);
  const SequenceStats& st = sink->choices[0].last.stats;
  CHECK(st.prompt_tokens == 37);
  CHECK(st.submitted <= st.scheduled);
  CHECK(st.scheduled <= st.first_token);
  CHECK(st.first_token <= st.finished);
  CHECK(f.engine->health() == EngineHealth::kReady);
}

TEST_CASE("a batch of many is each alone: text, seeds, penalties, log-probabilities", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  const auto requests = [] {
    std::vector<Request> out;
    for (uint64_t i = 0; i < 24; ++i) {
      Request r = make_request(nullptr, prompt_of(i % 5, 5 + 3 * (i % 9)), static_cast<int64_t>(6 + i));
      r.sampling.temperature = i % 3 == 0 ? 0.f : 1.2f;
      r.sampling.seed = 1000 + i;
      if (i % 2) r.sampling.repetition_penalty = 1.4f;
      if (i % 4 == 1) r.sampling.frequency_penalty = 0.5f;
      if (i % 5 == 0) r.sampling.top_k = 7;
      if (i % 7 == 0) r.sampling.top_p = 0.8f;
      if (i % 3 == 1) r.sampling.logprobs = 2;
      if (i % 6 == 0) r.stop.min_tokens = 5;
      if (i % 8 == 7) r.sampling.prompt_logprobs = 3;
      out.push_back(std::move(r));
    }
    return out;
  };
  RunnerLimits tight = small_limits(depth);
  tight.groups = {{0, 1, 40}, {24, 1, 14}};  // preempts
  tight.max_context = 80;
  std::vector<std::shared_ptr<CollectSink>> alone, together;
  {
    EngineOptions options;
    options.prefix_cache = false;
    Fixture f(options, small_limits(depth));
    for (Request& r : requests()) {
      alone.push_back(std::make_shared<CollectSink>());
      r.sink = alone.back();
      REQUIRE_OK(f.engine->submit(std::move(r)));
      REQUIRE(alone.back()->wait());
    }
  }
  {
    Fixture f({}, tight);
    f.wait_ready();
    f.control->stall_ms = 50;  // until all are there
    for (Request& r : requests()) {
      together.push_back(std::make_shared<CollectSink>());
      r.sink = together.back();
      REQUIRE_OK(f.engine->submit(std::move(r)));
    }
    f.control->stall_ms = 0;
    for (auto& s : together) REQUIRE(s->wait());
    CHECK(f.engine->stats().preemptions > 0);
    for (int i = 0; i < 2; ++i) {  // alone in the pool, the second time must hit, and say the same
      auto again = std::make_shared<CollectSink>();
      Request r = std::move(requests()[22]);
      r.sink = again;
      REQUIRE_OK(f.engine->submit(std::move(r)));
      REQUIRE(again->wait());
      CHECK(again->choices[0].tokens == alone[22]->choices[0].tokens);
    }
    CHECK(f.engine->stats().prefix_hits > 0);
  }
  for (size_t i = 0; i < alone.size(); ++i) {
    INFO("request " << i);
    const auto &a = alone[i]->choices[0], &b = together[i]->choices[0];
    CHECK(a.tokens == b.tokens);
    CHECK(a.finish == b.finish);
    REQUIRE(a.events.size() == b.events.size());
    for (size_t e = 0; e < a.events.size(); ++e) {
      CHECK(a.events[e].logprob == b.events[e].logprob);
      CHECK(a.events[e].top_logprobs.size() == b.events[e].top_logprobs.size());
    }
    const auto &p = a.events[0].prompt_logprobs, &q = b.events[0].prompt_logprobs;
    REQUIRE(p.size() == q.size());
    if (i % 8 != 7) continue;
    REQUIRE(p.size() == static_cast<size_t>(a.last.stats.prompt_tokens));
    CHECK(p[0].empty());
    const auto prompt = prompt_of(i % 5, p.size());
    for (size_t k = 1; k < p.size(); ++k) {
      REQUIRE(p[k].size() == 4);
      CHECK(p[k][0].token == prompt[k]);
      CHECK(p[k][1].logprob >= p[k][2].logprob);
      for (size_t j = 0; j < 4; ++j) CHECK(p[k][j].logprob == q[k][j].logprob);
    }
  }
}

TEST_CASE("n choices are n requests with consecutive seeds", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  Fixture f({}, small_limits(depth));
  constexpr int32_t kN = 12;  // more than run at once
  Request r = make_request(nullptr, prompt_of(3, 22), 9);
  r.sampling.temperature = 1.f;
  r.sampling.seed = 500;
  Request many = r;
  many.n = kN;
  auto sink = std::make_shared<CollectSink>(kN);
  many.sink = sink;
  REQUIRE_OK(f.engine->submit(std::move(many)));
  REQUIRE(sink->wait());
  for (int32_t i = 0; i < kN; ++i) {
    auto one = std::make_shared<CollectSink>();
    Request single = r;
    single.sampling.seed = 500 + static_cast<uint64_t>(i);
    single.sink = one;
    REQUIRE_OK(f.engine->submit(std::move(single)));
    REQUIRE(one->wait());
    CHECK(one->choices[0].tokens == sink->choices[static_cast<size_t>(i)].tokens);
    CHECK(sink->choices[static_cast<size_t>(i)].finishes == 1);
  }
}

TEST_CASE("NaN logits fail their own request only", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  Fixture f({}, small_limits(depth));
  f.wait_ready();
  f.control->poison_token = 63;
  auto bad = std::make_shared<CollectSink>(3), good = std::make_shared<CollectSink>();
  auto prompt = prompt_of(8, 11);
  for (int32_t& t : prompt) t %= 60;
  Request g = make_request(good, prompt, 30);
  g.sampling.logit_bias = {{63, -100.f}};
  REQUIRE_OK(f.engine->submit(std::move(g)));
  prompt.push_back(63);
  Request b = make_request(bad, prompt, 30);
  b.n = 3;
  REQUIRE_OK(f.engine->submit(std::move(b)));
  REQUIRE(bad->wait());
  REQUIRE(good->wait());
  for (const auto& c : bad->choices) {
    CHECK(c.finish == FinishReason::kError);
    CHECK(c.finishes == 1);
    CHECK(c.last.status.code() == StatusCode::kInternal);
    CHECK(c.last.status.message().find("NaN logits") != std::string::npos);
  }
  CHECK(good->choices[0].finish != FinishReason::kError);
  CHECK(f.engine->health() == EngineHealth::kReady);
  CHECK(f.engine->stats().blocks_used == 0);
}

// Of pages, and of recurrent states beside them.
TEST_CASE("what a request with NaN has computed is found by nobody after it", "[engine]") {
  const bool states = GENERATE(false, true);
  const int32_t depth = GENERATE(0, 1);
  RunnerLimits limits = small_limits(depth);
  if (states) {
    limits.groups[1] = {.block_bytes = 1, .num_blocks = 64, .pages = CachePages::kState};
    limits.groups.push_back({.block_bytes = 1, .num_blocks = 64, .pages = CachePages::kRows});
  }
  auto prompt = prompt_of(8, 14);
  for (int32_t& t : prompt) t %= 60;
  prompt.push_back(63);
  const auto ask = [&](Fixture& f) {
    auto sink = std::make_shared<CollectSink>(2);
    Request r = make_request(sink, prompt, 9);
    r.n = 2;
    r.stop.ignore_eos = true;
    REQUIRE_OK(f.engine->submit(std::move(r)));
    REQUIRE(sink->wait());
    return sink;
  };
  Fixture f({}, limits), clean({}, limits);
  f.wait_ready();
  f.control->poison_token = 63;
  CHECK(ask(f)->choices[0].finish == FinishReason::kError);
  CHECK(f.engine->stats().blocks_cached == 0);
  f.control->poison_token = -1;  // whatever it was, it is gone
  const auto after = ask(f), again = ask(f), want = ask(clean);
  CHECK(after->choices[0].last.stats.cached_tokens == 0);
  CHECK(again->choices[0].last.stats.cached_tokens == 12);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(after->choices[i].tokens == want->choices[i].tokens);
    CHECK(again->choices[i].tokens == want->choices[i].tokens);
  }
}

TEST_CASE("cancel, finish_choice and deadlines end choices once and free their blocks", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  Fixture f({}, small_limits(depth));
  f.wait_ready();
  f.control->stall_ms = 2;
  const auto endless = [&](std::shared_ptr<TokenSink> sink, int32_t n) {
    Request r = make_request(std::move(sink), prompt_of(2, 9), 200);
    r.stop.ignore_eos = true;
    r.n = n;
    return r;
  };
  auto cancelled = std::make_shared<CollectSink>(2), halved = std::make_shared<CollectSink>(2),
       late = std::make_shared<CollectSink>();
  auto id = f.engine->submit(endless(cancelled, 2));
  REQUIRE_OK(id);
  auto half = f.engine->submit(endless(halved, 2));
  REQUIRE_OK(half);
  Request r = endless(late, 1);
  r.deadline = Clock::now() + 30ms;
  REQUIRE_OK(f.engine->submit(std::move(r)));
  REQUIRE(cancelled->wait_tokens(3));
  f.engine->cancel(*id);
  f.engine->cancel(*id);
  f.engine->cancel(123456);
  f.engine->finish_choice(*half, 1, FinishReason::kStop);
  f.engine->finish_choice(*half, 7, FinishReason::kStop);
  REQUIRE(cancelled->wait());
  REQUIRE(late->wait());
  CHECK(late->choices[0].finish == FinishReason::kDeadline);
  CHECK(late->choices[0].last.status.code() == StatusCode::kDeadlineExceeded);
  f.control->stall_ms = 0;
  REQUIRE(halved->wait());
  CHECK(halved->choices[0].finish == FinishReason::kLength);
  CHECK(halved->choices[0].tokens.size() == 200);
  CHECK(halved->choices[1].finish == FinishReason::kStop);
  for (const auto& c : cancelled->choices) CHECK((c.finish == FinishReason::kCancelled && c.finishes == 1));
  // A cancel right behind the submit finds the request.
  auto quick = std::make_shared<CollectSink>(2);
  id = f.engine->submit(endless(quick, 2));
  REQUIRE_OK(id);
  f.engine->cancel(*id);
  REQUIRE(quick->wait());
  CHECK(f.engine->drain(5s));
  CHECK(f.engine->stats().blocks_used == 0);
  CHECK_FALSE(cancelled->late);
}

TEST_CASE("a device fault fails what is in flight and refuses what comes", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  Fixture f({}, small_limits(depth));
  f.wait_ready();
  f.control->stall_ms = 1;
  std::vector<std::shared_ptr<CollectSink>> sinks;
  for (int i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<CollectSink>());
    Request r = make_request(sinks.back(), prompt_of(1, 20), 200);
    r.stop.ignore_eos = true;
    REQUIRE_OK(f.engine->submit(std::move(r)));
  }
  REQUIRE(sinks[0]->wait_tokens(2));
  f.control->fail = true;
  for (auto& s : sinks) {
    REQUIRE(s->wait());
    CHECK(s->choices[0].finish == FinishReason::kError);
    CHECK(s->choices[0].last.status.code() == StatusCode::kUnavailable);
    CHECK(s->choices[0].finishes == 1);
  }
  CHECK(f.engine->health() == EngineHealth::kFailed);
  f.control->fail = false;
  auto late = f.engine->submit(make_request(sinks[0], {1}, 1));
  REQUIRE_FALSE(late.ok());
  CHECK(late.status().code() == StatusCode::kUnavailable);
  CHECK(late.status().message().find("fake device fault") != std::string::npos);
  CHECK(f.engine->drain(1s));
}

TEST_CASE("a warm-up that fails is a failed engine, not a ready one", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  auto control = std::make_shared<FakeControl>();
  control->fail = true;
  auto made = Engine::create(std::make_unique<FakeRunner>(small_limits(depth), control), {});
  REQUIRE_OK(made);
  for (int i = 0; i < 2000 && (*made)->health() == EngineHealth::kStarting; ++i)
    std::this_thread::sleep_for(1ms);
  CHECK((*made)->health() == EngineHealth::kFailed);
}

TEST_CASE("health says kFailed while a step is stuck, and recovers", "[engine]") {
  EngineOptions options;
  options.step_timeout = 30ms;
  Fixture f(options);
  f.wait_ready();
  f.control->stall_ms = 200;
  auto sink = std::make_shared<CollectSink>();
  REQUIRE_OK(f.engine->submit(make_request(sink, {1, 2}, 1)));
  bool seen = false;
  for (int i = 0; i < 180 && !seen; ++i, std::this_thread::sleep_for(1ms))
    seen = f.engine->health() == EngineHealth::kFailed;
  CHECK(seen);
  REQUIRE(sink->wait());
  f.control->stall_ms = 0;
  CHECK(f.engine->drain(5s));
  CHECK(f.engine->health() == EngineHealth::kDraining);
}

TEST_CASE("an idle engine rests", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  Fixture f({}, small_limits(depth));
  f.wait_ready();
  CHECK(f.engine->stats().steps == 0);  // the warm-up is not counted
  const int64_t before = f.control->steps;
  std::this_thread::sleep_for(50ms);
  CHECK(f.control->steps == before);
}

TEST_CASE("drain lets requests finish, or cancels them when time is up", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  Fixture f({}, small_limits(depth));
  f.wait_ready();
  f.control->stall_ms = 5;
  auto sink = std::make_shared<CollectSink>();
  Request r = make_request(sink, {1, 2, 3}, 200);
  r.stop.ignore_eos = true;
  REQUIRE_OK(f.engine->submit(std::move(r)));
  CHECK_FALSE(f.engine->drain(20ms));
  REQUIRE(sink->wait());
  CHECK(sink->choices[0].finish == FinishReason::kCancelled);
  CHECK(f.engine->health() == EngineHealth::kDraining);
  auto late = f.engine->submit(make_request(sink, {1}, 1));
  REQUIRE_FALSE(late.ok());
  CHECK(late.status().code() == StatusCode::kUnavailable);
}

TEST_CASE("destroying an engine cancels what is left", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  auto running = std::make_shared<CollectSink>(), waiting = std::make_shared<CollectSink>();
  {
    Fixture f({}, small_limits(depth));
    f.wait_ready();
    f.control->stall_ms = 3;
    for (auto& s : {running, waiting}) {
      Request r = make_request(s, prompt_of(1, 30), 200);
      r.stop.ignore_eos = true;
      REQUIRE_OK(f.engine->submit(std::move(r)));
    }
    REQUIRE(running->wait_tokens(1));
  }
  CHECK(running->choices[0].finish == FinishReason::kCancelled);
  CHECK(waiting->choices[0].finish == FinishReason::kCancelled);
}

TEST_CASE("how many alternatives beside a token a request may ask for", "[engine]") {
  const auto limit = [](int32_t asked) {
    EngineOptions options;
    options.max_logprobs = asked;
    return Fixture(options, small_limits(0)).engine->request_limits().max_logprobs;
  };
  const auto vocab = static_cast<int32_t>(small_limits(0).vocab_size);
  CHECK(limit(EngineOptions().max_logprobs) == 20);
  CHECK(limit(5) == 5);
  CHECK(limit(-1) == vocab);
  CHECK(limit(vocab + 1) == vocab);
  RunnerLimits device = small_limits(0);
  device.device_draws = true;
  EngineOptions options;
  options.max_logprobs = 21;
  const auto refused =
      Engine::create(std::make_unique<FakeRunner>(device, std::make_shared<FakeControl>()), options);
  CHECK(refused.status().param() == "max_logprobs");
}

TEST_CASE("what cannot be served is refused at submit", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  EngineOptions options;
  options.max_waiting = 3;
  RunnerLimits limits = small_limits(depth);
  limits.groups = {{0, 1, 20}};  // 80 tokens
  Fixture f(options, limits);
  f.wait_ready();
  auto sink = std::make_shared<CollectSink>();
  const auto code = [&](Request r) { return f.engine->submit(std::move(r)).status().code(); };
  CHECK(code(make_request(sink, prompt_of(1, 80), 5)) == StatusCode::kOutOfRange);
  CHECK(code(make_request(sink, prompt_of(1, 256), 5)) == StatusCode::kInvalidArgument);
  CHECK(code(make_request(nullptr, {1}, 5)) == StatusCode::kInvalidArgument);
  f.control->stall_ms = 20;
  int refused = 0;
  std::vector<std::shared_ptr<CollectSink>> sinks;
  for (int i = 0; i < 30; ++i) {
    auto s = std::make_shared<CollectSink>();
    Request r = make_request(s, prompt_of(1, 10), 30);
    auto id = f.engine->submit(std::move(r));
    if (id.ok()) sinks.push_back(s);
    else refused += id.status().code() == StatusCode::kResourceExhausted;
  }
  CHECK(refused > 10);
  f.control->stall_ms = 0;
  for (auto& s : sinks) CHECK(s->wait());
}

TEST_CASE("a full engine says when a place may be free", "[engine]") {
  EngineOptions options;
  options.max_waiting = 1;
  options.max_sequences = 1;
  Fixture f(options, small_limits(0));
  f.wait_ready();
  CHECK(f.engine->check_room().ok());
  CHECK(f.engine->has_room());
  f.control->stall_ms = 20;
  auto running = std::make_shared<CollectSink>(), waiting = std::make_shared<CollectSink>();
  REQUIRE_OK(f.engine->submit(make_request(running, {1}, 100)));
  REQUIRE(running->wait_tokens(1));
  REQUIRE_OK(f.engine->submit(make_request(waiting, {1}, 3)));
  // Nothing has ended: a place takes longer than all that has passed.
  const Status first = f.engine->check_room();
  CHECK(first.code() == StatusCode::kResourceExhausted);
  CHECK_FALSE(f.engine->has_room());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const Status later = f.engine->check_room();
  CHECK(later.code() == StatusCode::kResourceExhausted);
  CHECK(later.retry_after() >= first.retry_after() + 0.02);
  f.control->stall_ms = 0;
  CHECK(waiting->wait());
  CHECK(f.engine->check_room().ok());
  CHECK(f.engine->has_room());
  CHECK(f.engine->drain(std::chrono::milliseconds(1000)));
  CHECK_FALSE(f.engine->has_room());
}

TEST_CASE("create refuses options that do not fit the runner", "[engine]") {
  const auto code = [](EngineOptions o, RunnerLimits l = small_limits()) {
    return Engine::create(std::make_unique<FakeRunner>(l, std::make_shared<FakeControl>()), o)
        .status()
        .code();
  };
  EngineOptions o;
  o.max_context = 257;
  CHECK(code(o) == StatusCode::kInvalidArgument);
  o = {};
  o.max_sequences = -1;
  CHECK(code(o) == StatusCode::kInvalidArgument);
  o = {};
  o.eos_token_ids = {64};
  CHECK(code(o) == StatusCode::kInvalidArgument);
  o = {};
  o.mixed_prefix = true;  // rows have no phases
  CHECK(code(o) == StatusCode::kInvalidArgument);
  RunnerLimits l = small_limits();
  l.phases = true;
  CHECK(code(o, l) == StatusCode::kOk);
  o.prefix_cache = false;
  CHECK(code(o, l) == StatusCode::kInvalidArgument);
  l = small_limits();
  l.groups = {{0, 1, 0}};
  CHECK(code({}, l) == StatusCode::kFailedPrecondition);
  l.groups = {{0, 1, 64}, {24, 1, 7}};  // a window of 24 unaligned tokens touches 8 pages of 4
  CHECK(code({}, l) == StatusCode::kFailedPrecondition);
}

TEST_CASE("steps tell what they took: stretches in order, none across another or a step's end", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  Fixture f({}, small_limits(depth));
  f.wait_ready();
  std::vector<StepInfo> steps;  // the engine's thread until it has drained
  f.engine->on_step([&](const StepInfo& s) { steps.push_back(s); });
  std::vector<std::shared_ptr<CollectSink>> sinks;
  for (uint64_t k = 0; k < 12; ++k) {
    sinks.push_back(std::make_shared<CollectSink>());
    REQUIRE_OK(f.engine->submit(make_request(sinks.back(), prompt_of(k, 3 + 5 * k), 20)));
  }
  int64_t tokens = 0, generated = 0;
  for (const auto& sink : sinks) {
    REQUIRE(sink->wait());
    tokens += sink->choices[0].last.stats.completion_tokens;
  }
  CHECK(f.engine->drain(5s));
  REQUIRE_FALSE(steps.empty());
  using Stretch = std::pair<Clock::time_point, Clock::time_point>;
  std::vector<Stretch> work;
  for (size_t k = 0; k < steps.size(); ++k) {
    const StepTimes& t = steps[k].times;
    CHECK(steps[k].number == k + 1);
    CHECK(steps[k].seconds == std::chrono::duration<double>(t.ended - t.since).count());
    generated += steps[k].generated_tokens;
    CHECK(steps[k].running <= 8);
    if (k > 0) CHECK(t.since >= steps[k - 1].times.ended);
    if (k > 0 && depth == 1 && t.began < steps[k - 1].times.ended) CHECK(t.since == steps[k - 1].times.ended);
    for (const Stretch& s : {Stretch(t.began, t.planned), Stretch(t.planned, t.submitted),
                             Stretch(t.sampling, t.sampled), Stretch(t.collecting, t.ended)}) {
      CHECK(s.first <= s.second);
      work.push_back(s);
    }
  }
  CHECK(generated == tokens);
  CHECK(steps.back().running == 0);
  CHECK(steps.back().blocks_used == 0);
  std::sort(work.begin(), work.end());
  for (size_t k = 1; k < work.size(); ++k) CHECK(work[k].first >= work[k - 1].second);
  // Each lies in one step's stretch.
  for (const Stretch& s : work) {
    CHECK(std::count_if(steps.begin(), steps.end(), [&](const StepInfo& step) {
            return step.times.since <= s.first && s.second <= step.times.ended;
          }) >= 1);
  }
}

TEST_CASE("many threads submit and cancel at once", "[engine]") {
  const int32_t depth = GENERATE(0, 1);
  RunnerLimits limits = small_limits(depth);
  limits.groups = {{0, 1, 70}};
  Fixture f({}, limits);
  std::atomic<int64_t> steps{0};
  f.engine->on_step([&](const StepInfo& s) { steps += s.sequences > 0; });
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 25; ++i) {
        const int32_t n = 1 + static_cast<int32_t>(mix(t * 100 + i) % 3);
        auto sink = std::make_shared<CollectSink>(n);
        Request r = make_request(sink, prompt_of(mix(t + i) % 4, 1 + mix(i) % 40),
                                 static_cast<int64_t>(mix(i * t) % 30));
        r.n = n;
        if (i % 5 == 0) r.deadline = Clock::now() + 3ms;
        auto id = f.engine->submit(std::move(r));
        if (!id.ok()) {
          ++wrong;
          continue;
        }
        if (i % 3 == 0) f.engine->cancel(*id);
        if (i % 4 == 0) f.engine->finish_choice(*id, 0, FinishReason::kStop);
        (void)f.engine->stats();
        (void)f.engine->health();
        if (!sink->wait() || sink->late) ++wrong;
        for (const auto& c : sink->choices) wrong += c.finishes != 1;
      }
    });
  }
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
  CHECK(steps > 0);
  CHECK(f.engine->drain(5s));
  const EngineStats st = f.engine->stats();
  CHECK(st.blocks_used == 0);
  CHECK(st.running == 0);
  CHECK(st.waiting == 0);
}
