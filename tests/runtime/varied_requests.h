// Requests that differ in everything that changes what is drawn, run by one engine and by another: their
// texts, log-probabilities and ends are to be the same.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/runtime/collect_sink.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/fake_grammar.h"

namespace oar_test {

// Everything that changes what is drawn, every way to end, and prompts that share pages.
inline std::vector<Request> varied_requests() {
  std::vector<Request> out;
  for (uint64_t i = 0; i < 48; ++i) {
    Request r = make_request(nullptr, prompt_of(i % 5, 3 + 3 * (i % 11)), static_cast<int64_t>(1 + i % 37));
    r.sampling.temperature = i % 3 == 0 ? 0.f : 1.1f;
    r.sampling.seed = 1000 * (i + 1);
    r.n = 1 + static_cast<int32_t>(i % 3);
    if (i % 4 == 1) r.sampling.repetition_penalty = 1.4f;
    if (i % 8 == 3) r.sampling.frequency_penalty = 0.5f;
    if (i % 5 == 0) r.sampling.top_k = 7;
    if (i % 3 == 1) r.sampling.logprobs = 2;
    if (i % 6 == 0) r.stop.min_tokens = std::min<int64_t>(5, r.stop.max_tokens);
    if (i % 7 == 2) r.stop.stop_token_ids = {3, 4, 5};
    if (i % 7 == 5) r.sampling.logit_bias = {{9, 3.f}, {63, -100.f}};
    if (i % 4 == 2) r.constraint = std::make_shared<FakeGrammar>(i, 64, std::vector<int32_t>{kEos});
    if (i % 9 == 4) r.cache_salt = "apart";
    out.push_back(std::move(r));
  }
  return out;
}

using VariedSinks = std::vector<std::shared_ptr<CollectSink>>;
inline VariedSinks run_varied(Engine& engine, bool together) {
  VariedSinks out;
  for (Request& r : varied_requests()) {
    out.push_back(std::make_shared<CollectSink>(r.n));
    r.sink = out.back();
    REQUIRE_OK(engine.submit(std::move(r)));
    if (!together) REQUIRE(out.back()->wait());
  }
  for (auto& s : out) REQUIRE(s->wait());
  return out;
}

inline void check_same_texts(const VariedSinks& want, const VariedSinks& got) {
  for (size_t i = 0; i < want.size(); ++i)
    for (size_t c = 0; c < want[i]->choices.size(); ++c) {
      INFO("request " << i << ", choice " << c);
      const auto &a = want[i]->choices[c], &b = got[i]->choices[c];
      REQUIRE(b.tokens == a.tokens);
      CHECK(b.finish == a.finish);
      CHECK(b.finishes == 1);
      CHECK(b.last.stop_token == a.last.stop_token);
      CHECK(b.last.status.code() == a.last.status.code());
      CHECK(b.last.stats.completion_tokens == a.last.stats.completion_tokens);
      CHECK(b.last.stats.accepted_drafts <= b.last.stats.completion_tokens);
      REQUIRE(a.events.size() == b.events.size());
      for (size_t e = 0; e < a.events.size(); ++e) {
        CHECK(a.events[e].logprob == b.events[e].logprob);
        REQUIRE(a.events[e].top_logprobs.size() == b.events[e].top_logprobs.size());
        for (size_t k = 0; k < a.events[e].top_logprobs.size(); ++k)
          CHECK(a.events[e].top_logprobs[k].token == b.events[e].top_logprobs[k].token);
      }
    }
}

}  // namespace oar_test
