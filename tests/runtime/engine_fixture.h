// An Engine over a FakeRunner, and the requests that tests of the Engine make.
#pragma once

#include <memory>
#include <vector>

#include "engine/runtime/engine.h"
#include "tests/runtime/fake_runner.h"
#include "tests/support/catch.h"

namespace oar_test {

using namespace oar;
using namespace std::chrono_literals;

inline constexpr int32_t kEos = 0;

inline RunnerLimits small_limits(int32_t depth = 0) {
  RunnerLimits l;
  l.depth = depth;
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
  explicit Fixture(EngineOptions options = {}, RunnerLimits limits = small_limits(),
                   std::unique_ptr<HostRunner> draft = nullptr) {
    if (options.eos_token_ids.empty()) options.eos_token_ids = {kEos};
    if (options.seed == 0) options.seed = 7;
    auto made = Engine::create(std::make_unique<FakeRunner>(limits, control), options, std::move(draft));
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

inline Request make_request(std::shared_ptr<TokenSink> sink, std::vector<int32_t> prompt,
                            int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.stop.max_tokens = max_tokens;
  r.sampling.temperature = 0.f;
  r.sink = std::move(sink);
  return r;
}

inline std::vector<int32_t> prompt_of(uint64_t seed, size_t size) {
  std::vector<int32_t> p;
  for (size_t i = 0; i < size; ++i) p.push_back(static_cast<int32_t>(mix(seed * 1000 + i) % 64));
  return p;
}

}  // namespace oar_test
