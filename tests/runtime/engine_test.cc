// The Engine over a fake model: what callers see, from submit to the last event.
#include "engine/runtime/engine.h"

#include "tests/runtime/collect_sink.h"
#include "tests/runtime/fake_runner.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace oar_test;
using namespace std::chrono_literals;

namespace {

constexpr int32_t kEos = 0;

RunnerLimits small_limits() {
  RunnerLimits l;
  l.vocab_size = 64;
  l.max_context = 256;
  l.max_batch_tokens = 32;
  l.max_sequences = 8;
  l.page_tokens = 4;
  l.groups = {{0, 1, 96}, {24, 1, 64}};
  return l;
}

struct Fixture {
  std::shared_ptr<FakeControl> control = std::make_shared<FakeControl>();
  std::unique_ptr<Engine> engine;
  explicit Fixture(EngineOptions options = {}, RunnerLimits limits = small_limits()) {
    if (options.eos_token_ids.empty()) options.eos_token_ids = {kEos};
    if (options.seed == 0) options.seed = 7;
    auto made = Engine::create(std::make_unique<FakeRunner>(limits, control), options);
    REQUIRE_OK(made);
    engine = std::move(made).value();
  }
  ~Fixture() {
    engine.reset();
    CHECK(control->error == "");
  }
  void wait_ready() {
    for (int i = 0; i < 2000 && engine->health() == EngineHealth::kStarting; ++i)
      std::this_thread::sleep_for(1ms);
    REQUIRE(engine->health() == EngineHealth::kReady);
  }
};

Request make_request(std::shared_ptr<TokenSink> sink, std::vector<int32_t> prompt, int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.stop.max_tokens = max_tokens;
  r.sampling.temperature = 0.f;
  r.sink = std::move(sink);
  return r;
}

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

std::vector<int32_t> prompt_of(uint64_t seed, size_t size) {
  std::vector<int32_t> p;
  for (size_t i = 0; i < size; ++i) p.push_back(static_cast<int32_t>(mix(seed * 1000 + i) % 64));
  return p;
}

}  // namespace

TEST_CASE("a request produces the model's greedy text and one finish event", "[engine]") {
  Fixture f;
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
