// An engine over a tiny model with real kernels, and what a request got from it: tokens and
// log-probabilities, whose bits are to be the same whatever else is served.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/runtime/engine.h"
#include "tests/models/runner_fixture.h"
#include "tests/runtime/collect_sink.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_weights.h"

namespace oar_test {

// Of pages of 16 tokens, contexts of 192 and at most 8 sequences, in as many blocks a group.
struct Served {
  std::unique_ptr<oar::Engine> engine;
  std::shared_ptr<oar::Adapters> adapters;  // null without slots
  int64_t vocab = 0;

  Served(const std::string& path, const std::string& tier, int32_t blocks, bool prefix_cache,
         int64_t batch_tokens, std::shared_ptr<oar::Drafter> drafter = nullptr,
         const std::string& draft_model = {}, const std::string& mla = "absorbed") {
    oar::LanguageModelOptions o;
    o.threads = 2;
    o.kv = tier;
    o.mla = mla;
    o.max_batch_tokens = batch_tokens;
    o.max_sequences = 8;
    o.max_context = 192;
    o.page_tokens = 16;
    o.speculative.drafter = drafter;
    o.speculative.draft_model = draft_model;
    o.speculative.paced = false;  // else what steps take decides how many are verified
    RunnerFixture model(path, o, blocks);
    vocab = model.vocab();
    oar::EngineOptions e;
    e.prefix_cache = prefix_cache;
    e.seed = 5;
    e.speculative = o.speculative;
    std::unique_ptr<oar::HostRunner> draft;
    if (!draft_model.empty()) {  // a cache as its file says, as load_draft has it
      o.speculative = {};
      o.kv = "auto";
      o.mla = "absorbed";
      draft = std::move(RunnerFixture(draft_model, o, blocks).runner);
    }
    auto made = oar::Engine::create(std::move(model.runner), e, std::move(draft));
    REQUIRE_OK(made);
    engine = std::move(made).value();
  }

  // As `options` say, with a prefix cache.
  Served(const std::string& path, const oar::LanguageModelOptions& options, int32_t blocks,
         bool mixed_prefix = false) {
    RunnerFixture model(path, options, blocks);
    vocab = model.vocab();
    adapters = model.adapters;
    oar::EngineOptions e;
    e.seed = 5;
    e.mixed_prefix = mixed_prefix;
    auto made = oar::Engine::create(std::move(model.runner), e);
    REQUIRE_OK(made);
    engine = std::move(made).value();
  }

  std::shared_ptr<CollectSink> submit(const std::vector<int32_t>& prompt, int64_t max_tokens, int32_t n = 1,
                                      uint64_t seed = 11, const oar::SamplingParams& sampling = {},
                                      std::shared_ptr<const oar::AdapterLease> adapter = nullptr) {
    oar::Request r;
    r.prompt = prompt;
    r.n = n;
    r.stop.max_tokens = max_tokens;
    r.sampling = sampling;
    r.sampling.seed = seed;
    r.sampling.logprobs = 0;
    r.adapter = std::move(adapter);
    auto sink = std::make_shared<CollectSink>(n);
    r.sink = sink;
    REQUIRE_OK(engine->submit(std::move(r)));
    return sink;
  }
};

// A golden's model in bf16, written once: engines read the mapped file while others are made.
inline std::string served_path(const std::string& name) {
  static std::map<std::string, std::string> written;
  std::string& path = written[name];
  if (path.empty()) path = write_tiny_model(load_tiny_golden(name), TinyDtype::bf16);
  return path;
}

// What a choice got.
struct Text {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int64_t cached = 0, preemptions = 0;
  bool operator==(const Text& o) const { return tokens == o.tokens && logprobs == o.logprobs; }
};

// Waits for a choice to reach its length, and fails where it does not.
inline Text text_of(CollectSink& sink, size_t choice = 0) {
  REQUIRE(sink.wait(std::chrono::seconds(60)));
  const auto& c = sink.choices[choice];
  REQUIRE(c.finish == oar::FinishReason::kLength);
  Text t;
  for (const oar::TokenEvent& e : c.events) {
    if (!e.has_token) continue;
    t.tokens.push_back(e.token);
    t.logprobs.push_back(e.logprob);
  }
  t.cached = c.last.stats.cached_tokens;
  t.preemptions = c.last.stats.preemptions;
  return t;
}

inline std::vector<int32_t> prompt_of(uint64_t seed, size_t size, int64_t vocab) {
  std::vector<int32_t> p;
  for (size_t i = 0; i < size; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    p.push_back(static_cast<int32_t>((seed >> 33) % static_cast<uint64_t>(vocab)));
  }
  return p;
}

}  // namespace oar_test
