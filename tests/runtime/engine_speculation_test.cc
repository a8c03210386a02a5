// Speculation through the Engine: texts, log-probabilities and ends are those without it, whatever is
// drafted.
#include <numeric>

#include "tests/runtime/replay_drafter.h"
#include "tests/runtime/varied_requests.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace oar_test;

TEST_CASE("speculation changes no text, at any rate of right drafts", "[engine][speculation]") {
  VariedSinks want;
  {
    Fixture f;
    f.wait_ready();
    want = run_varied(*f.engine, false);
  }
  const int32_t depth = GENERATE(0, 1);
  const double rate = GENERATE(0.0, 0.3, 0.8, 1.0);
  INFO("depth " << depth << ", rate " << rate);
  RunnerLimits limits = small_limits(depth);
  limits.max_logit_rows = 28;
  RunnerLimits tight = limits;
  tight.groups = {{0, 1, 20}, {24, 1, 14}};
  tight.max_context = 80;
  for (const bool together : {false, true}) {
    auto drafter = std::make_shared<ReplayDrafter>(rate, 64);
    const auto all = varied_requests();
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t c = 0; c < want[i]->choices.size(); ++c) {
        std::vector<int32_t> text = want[i]->choices[c].tokens;
        for (int32_t k = 0; k < 4; ++k) text.push_back(k);  // beyond the end
        drafter->record(*all[i].sampling.seed + c, std::move(text));
      }
    EngineOptions options;
    options.speculative.drafter = drafter;
    options.speculative.max_tokens = 5;
    options.speculative.paced = together;  // then how many are verified depends on what steps take
    Fixture f(options, together ? tight : limits);
    f.wait_ready();
    check_same_texts(want, run_varied(*f.engine, together));
    const EngineStats st = f.engine->stats();
    if (!together && rate > 0) CHECK(st.accepted_drafts > 0);
    if (!together && rate < 1) CHECK(st.rejected_drafts > 0);
    if (together) CHECK(st.preemptions > 0);
    CHECK(st.blocks_used == 0);
  }
}

TEST_CASE("prompt lookup changes no text and counts its drafts", "[engine][speculation]") {
  const int32_t depth = GENERATE(0, 1);
  VariedSinks want;
  {
    Fixture f;
    f.wait_ready();
    want = run_varied(*f.engine, false);
  }
  EngineOptions options;
  options.speculative.prompt_lookup = true;
  options.speculative.lookup_min = 1;
  options.speculative.paced = false;  // else what steps take decides how many are verified
  RunnerLimits limits = small_limits(depth);
  limits.max_logit_rows = 16;
  Fixture f(options, limits);
  f.wait_ready();
  const VariedSinks got = run_varied(*f.engine, true);
  check_same_texts(want, got);
  int64_t verified = 0, drafts = 0;
  for (const auto& s : got) {
    for (const auto& c : s->choices) {
      verified += c.last.stats.accepted_drafts + c.last.stats.rejected_drafts;
      drafts += c.last.stats.verified_drafts;
    }
  }
  const EngineStats st = f.engine->stats();
  CHECK(verified > 0);
  CHECK(verified == static_cast<int64_t>(st.accepted_drafts + st.rejected_drafts));
  CHECK(drafts == static_cast<int64_t>(st.verified_drafts));
  CHECK((drafts > 0 && drafts <= verified));
  CHECK(std::accumulate(st.accepted_at.begin(), st.accepted_at.end(), uint64_t{0}) == st.accepted_drafts);
}

TEST_CASE("speculative options that cannot work are refused", "[engine][speculation]") {
  EngineOptions options;
  options.speculative.prompt_lookup = true;
  options.speculative.lookup_max = 1;
  const auto made =
      Engine::create(std::make_unique<FakeRunner>(small_limits(), std::make_shared<FakeControl>()), options);
  CHECK(made.status().code() == StatusCode::kInvalidArgument);
  CHECK(made.status().message().find("prompt_lookup_max 1") != std::string::npos);
}
