// Engines over real kernels, for every tier of the KV cache: what a request gets does not depend on the
// prefix cache, on preemption, on choices that share a prompt, or on who else is in the batch. Tokens and
// their log-probabilities, to the bit: a log-probability sees every key and value the token's query saw.
#include <algorithm>

#include "engine/base/format.h"
#include "tests/models/served_fixture.h"
#include "tests/runtime/replay_drafter.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr const char* kTierNames[] = {"bf16", "int8",      "fp8",  "k8v4",
                                      "int4", "int4-mean", "k4v3", "int8/int4"};

}  // namespace

TEST_CASE("KV tiers: prefix hit equals miss, a batch equals each alone, choices equal requests") {
  oar_test::Sample sample(2);
  for (const std::string name :
       // mistral with a window, qwen2 with biased keys, gemma4 with groups of pages of two sizes, which
       // layers share, llama4 with chunks, gpt-oss with sinks and windows
       {"llama3", "mistral", "qwen2", "gemma4-e2b", "llama4", "gpt-oss"}) {
    const bool some = name == "llama4" || name == "gpt-oss";
    const std::string path = write_tiny_model(load_tiny_golden(name), TinyDtype::bf16);
    for (const std::string tier : kTierNames) {
      if (tier.find('/') != std::string::npos && name != "llama3") continue;  // names llama3's two layers
      if ((some && tier != "int8" && tier != "k4v3") || !sample.take()) continue;
      INFO(name << " " << tier);
      Served s(path, tier, 96, true, 48), plain(path, tier, 96, false, 512);
      const auto prompt = prompt_of(3, 75, s.vocab);
      auto longer = prompt;
      for (int32_t t : prompt_of(4, 20, s.vocab)) longer.push_back(t);

      // Alone, nothing cached, the prompt in one chunk.
      const Text want = text_of(*plain.submit(prompt, 30)), want_longer = text_of(*plain.submit(longer, 30));
      CHECK(want.cached == 0);
      const Text miss = text_of(*s.submit(prompt, 30)), hit = text_of(*s.submit(prompt, 30)),
                 continued = text_of(*s.submit(longer, 30));
      CHECK(hit.cached >= 64);
      CHECK(continued.cached >= 64);
      CHECK((miss == want));
      CHECK((hit == want));
      CHECK((continued == want_longer));

      // Eight at once: hits, misses, different lengths.
      std::vector<std::shared_ptr<CollectSink>> sinks;
      std::vector<Text> alone;
      for (size_t i = 0; i < 8; ++i) {
        const auto own = i % 3 == 0 ? prompt : prompt_of(20 + i, 9 + 13 * i, s.vocab);
        alone.push_back(text_of(*plain.submit(own, 25, 1, 100 + i)));
        sinks.push_back(s.submit(own, 25, 1, 100 + i));
      }
      for (size_t i = 0; i < sinks.size(); ++i) CHECK((text_of(*sinks[i]) == alone[i]));

      // Choices share the prompt's pages, the last of them open, and write their own from there.
      const auto many = s.submit(prompt_of(50, 41, s.vocab), 40, 3, 500);
      for (size_t i = 0; i < 3; ++i) {
        CHECK((text_of(*many, i) == text_of(*plain.submit(prompt_of(50, 41, s.vocab), 40, 1, 500 + i))));
      }
    }
  }
}

// Rows of drafts are verified together, over pages that rejected rows have written and that quantize in
// between; bits are those of one row after the other.
TEST_CASE("KV tiers: verified drafts equal decoding one by one") {
  oar_test::Sample sample(2);
  uint64_t accepted = 0, rejected = 0;
  for (const std::string name : {"llama3", "mistral"}) {
    const std::string path = write_tiny_model(load_tiny_golden(name), TinyDtype::bf16);
    for (const std::string tier : {"f32", "bf16", "int8", "fp8", "k8v4", "int4", "int4-mean", "k4v3"}) {
      if (!sample.take()) continue;
      Served plain(path, tier, 96, false, 512);
      for (const double rate : {0.5, 0.85}) {
        INFO(name << " " << tier << ", right at " << rate);
        auto drafter = std::make_shared<ReplayDrafter>(rate, static_cast<int32_t>(plain.vocab));
        std::vector<Text> want;
        for (uint64_t i = 0; i < 4; ++i) {
          want.push_back(
              text_of(*plain.submit(prompt_of(i, 10 + 9 * i, plain.vocab), 90, 1, 1000 * (i + 1))));
          drafter->record(1000 * (i + 1), want.back().tokens);
        }
        // Pages enough for two of them.
        Served s(path, tier, 18, true, 512, drafter);
        std::vector<std::shared_ptr<CollectSink>> sinks;
        for (uint64_t i = 0; i < 4; ++i)
          sinks.push_back(s.submit(prompt_of(i, 10 + 9 * i, s.vocab), 90, 1, 1000 * (i + 1)));
        for (size_t i = 0; i < sinks.size(); ++i) CHECK((text_of(*sinks[i]) == want[i]));
        accepted += s.engine->stats().accepted_drafts;
        rejected += s.engine->stats().rejected_drafts;
      }
    }
  }
  CHECK(accepted > 20);
  CHECK(rejected > 0);
}

// The same with a model that drafts: one that agrees with its target but for the tier, and one of other
// weights. Greedy and drawn, with and without penalties.
TEST_CASE("KV tiers: a draft model changes no text") {
  oar_test::Sample sample(2);
  uint64_t accepted = 0, rejected = 0;
  const std::string llama = write_tiny_model(load_tiny_golden("llama3"), TinyDtype::bf16),
                    other = write_tiny_model(load_tiny_golden("llama2"), TinyDtype::bf16);
  const auto submit = [](Served& s, uint64_t i) {
    SamplingParams sampling;
    sampling.temperature = i % 3 == 0 ? 0.f : 0.5f * static_cast<float>(i);
    if (i % 2 == 1) sampling.frequency_penalty = 0.4f;
    return s.submit(prompt_of(i, 10 + 9 * i, s.vocab), 90, 1, 1000 * (i + 1), sampling);
  };
  for (const std::string tier : {"f32", "bf16", "int8", "fp8", "k8v4", "int4", "int4-mean", "k4v3"}) {
    if (!sample.take()) continue;
    Served plain(llama, tier, 96, false, 512);
    std::vector<Text> want;
    for (uint64_t i = 0; i < 4; ++i) want.push_back(text_of(*submit(plain, i)));
    for (const std::string& draft : {llama, other}) {
      INFO(tier << ", drafted by " << (draft == llama ? "its equal" : "another"));
      Served s(llama, tier, 18, true, 512, nullptr, draft);  // pages enough for two of them
      std::vector<std::shared_ptr<CollectSink>> sinks;
      for (uint64_t i = 0; i < 4; ++i) sinks.push_back(submit(s, i));
      for (size_t i = 0; i < sinks.size(); ++i) CHECK((text_of(*sinks[i]) == want[i]));
      accepted += s.engine->stats().accepted_drafts;
      rejected += s.engine->stats().rejected_drafts;
    }
  }
  CHECK(accepted > 20);
  CHECK(rejected > 20);
}

TEST_CASE("KV tiers: preempted and resumed equals uninterrupted") {
  oar_test::Sample sample(3);
  const std::string path = write_tiny_model(load_tiny_golden("llama3"), TinyDtype::bf16);
  for (const std::string tier : kTierNames) {
    for (const bool prefix_cache : {false, true}) {
      if (!sample.take()) continue;
      INFO(tier << (prefix_cache ? " with" : " without") << " prefix cache");
      // Four sequences of up to 130 tokens want 9 pages each; there are 16.
      Served roomy(path, tier, 96, false, 512), tight(path, tier, 16, prefix_cache, 512);
      std::vector<std::shared_ptr<CollectSink>> sinks;
      for (uint64_t i = 0; i < 4; ++i)
        sinks.push_back(tight.submit(prompt_of(i, 30 + i, tight.vocab), 95, 1, i));
      int64_t preemptions = 0;
      for (uint64_t i = 0; i < 4; ++i) {
        const Text got = text_of(*sinks[i]);
        preemptions += got.preemptions;
        CHECK((got == text_of(*roomy.submit(prompt_of(i, 30 + i, roomy.vocab), 95, 1, i))));
      }
      CHECK(preemptions > 0);
    }
  }
}

TEST_CASE("heads that no cache keeps are refused by layer and size") {
  for (const int64_t size : {20, 520}) {
    TinyGolden golden = load_tiny_golden("qwen3");
    const std::string key = "\"head_dim\": ";
    const size_t at = golden.config.find(key + "32");
    REQUIRE(at != std::string::npos);
    golden.config.replace(at + key.size(), 2, std::to_string(size));
    for (TinyTensor& t : golden.tensors) {
      const auto has = [&](const char* part) { return t.name.find(part) != std::string::npos; };
      if (has("q_norm") || has("k_norm")) t.shape[0] = size;
      if (has("q_proj")) t.shape[0] = 4 * size;
      if (has("k_proj") || has("v_proj")) t.shape[0] = 2 * size;
      if (has("o_proj")) t.shape[1] = 4 * size;
    }
    LanguageModelOptions options;
    options.threads = 1;
    CHECK_THROWS_WITH(
        RunnerFixture(write_tiny_model(golden, TinyDtype::f32), options),
        Contains(cat("attention layer 0: head size ", size, " is not a multiple of 8 up to 512")));
  }
}
