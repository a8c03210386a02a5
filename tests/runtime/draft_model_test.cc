// A draft model in the Engine: its cache is checked at every row by FakeCache, which knows the history that
// each slot must hold; texts, ends and counts are those without it; no block stays behind.
#include "engine/runtime/core/draft_model.h"

#include "tests/runtime/varied_requests.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace oar_test;

namespace {

// How a draft model relates to its target: the fake runner is a hash of the history, so it knows the same
// logits, or others for a share of the histories, or NaN.
class FakeDraft final : public FakeRunner {
 public:
  FakeDraft(const RunnerLimits& limits, std::shared_ptr<FakeControl> control, double right)
      : FakeRunner(limits, std::move(control)), right_(right) {}
  Result<std::span<const float>> run(const Batch& b) override {
    OAR_ASSIGN(const std::span<const float> logits, FakeRunner::run(b));
    copy_.assign(logits.begin(), logits.end());
    const auto v = static_cast<size_t>(limits().vocab_size);
    for (size_t r = 0; r * v < copy_.size(); ++r) {
      const std::span<float> row = std::span(copy_).subspan(r * v, v);
      const uint64_t dice = mix(static_cast<uint64_t>(row[0] * 0x1p21f) + 7);
      if (static_cast<double>(dice >> 11) * 0x1p-53 < right_) continue;
      if (right_ < 0) row[0] = std::numeric_limits<float>::quiet_NaN();
      else std::reverse(row.begin(), row.end());
    }
    return std::span<const float>(copy_);
  }

 private:
  double right_;
  std::vector<float> copy_;
};

RunnerLimits draft_limits(const RunnerLimits& target, std::vector<CacheGroup> groups) {
  RunnerLimits l = target;
  l.depth = 0;
  l.max_batch_tokens = 16;  // less than the target's: catching up takes several passes
  l.max_logit_rows = 0;
  l.groups = std::move(groups);
  // Of recurrent layers the rows of a step run in one pass.
  if (l.has_states()) l.max_batch_tokens = target.max_batch_tokens;
  return l;
}

// What recurrent layers keep, beside `groups`.
std::vector<CacheGroup> with_states(std::vector<CacheGroup> groups, int32_t blocks) {
  groups.push_back({.block_bytes = 1, .num_blocks = blocks, .pages = CachePages::kState});
  groups.push_back({.block_bytes = 1, .num_blocks = blocks, .pages = CachePages::kRows});
  return groups;
}

}  // namespace

TEST_CASE("a draft model changes no text, whatever it says", "[engine][draft]") {
  VariedSinks want;
  {
    Fixture f;
    f.wait_ready();
    want = run_varied(*f.engine, false);
  }
  const int32_t depth = GENERATE(0, 1);
  const double right = GENERATE(-1.0, 0.0, 0.7, 1.0);
  const int32_t vocab = GENERATE(64, 50, 80);  // its own rows of logits, padded otherwise
  const int states = GENERATE(0, 1, 2);        // none, beside pages, alone
  INFO("depth " << depth << ", right " << right << ", vocabulary " << vocab << ", states " << states);
  for (const bool together : {false, true}) {
    RunnerLimits limits = small_limits(depth);
    limits.max_logit_rows = 28;
    std::vector<CacheGroup> groups = {{0, 1, 96}, {12, 1, 64}};
    if (together) {
      limits.groups = {{0, 1, 20}, {24, 1, 14}};
      limits.max_context = 80;
      groups = {{0, 1, 20}, {12, 1, 12}};
    }
    if (states == 2) groups.clear();
    if (states > 0) groups = with_states(groups, together ? 13 : 64);
    RunnerLimits drafts = draft_limits(limits, groups);
    drafts.vocab_size = vocab;
    EngineOptions options;
    options.speculative.max_tokens = 5;
    options.speculative.paced = false;
    auto control = std::make_shared<FakeControl>();
    {
      Fixture f(options, limits, std::make_unique<FakeDraft>(drafts, control, right));
      f.wait_ready();
      check_same_texts(want, run_varied(*f.engine, together));
      const EngineStats st = f.engine->stats();
      CHECK(control->steps > 0);
      // At depth 1 only who has nothing in flight is drafted for.
      const uint64_t many = depth == 0 ? 400 : 20;
      if (right >= 0.7 && vocab >= 64) CHECK(st.accepted_drafts > many);
      if (right == 0) CHECK(st.rejected_drafts > many);
      // A row with NaN gives no draft, except where a mask leaves that token out; and nothing fails.
      if (right < 0) CHECK(st.accepted_drafts + st.rejected_drafts < 400);
      if (together) CHECK(st.preemptions > 0);
      if (!together) CHECK(st.prefix_hits > 0);
      CHECK(st.blocks_used == 0);
    }
    CHECK(control->error == "");
  }
}

TEST_CASE("a model that agrees with its target is accepted at every temperature", "[engine][draft]") {
  const bool states = GENERATE(false, true);
  for (const float temperature : {0.f, 0.7f, 1.5f}) {
    const RunnerLimits limits = [] {
      RunnerLimits l = small_limits();
      l.max_logit_rows = 28;
      return l;
    }();
    EngineOptions options;
    options.speculative.max_tokens = 4;
    options.speculative.paced = false;
    auto control = std::make_shared<FakeControl>();
    const std::vector<CacheGroup> pages = {{0, 1, 96}};
    const RunnerLimits drafts = draft_limits(limits, states ? with_states(pages, 8) : pages);
    Fixture f(options, limits, std::make_unique<FakeDraft>(drafts, control, 1.0));
    f.wait_ready();
    auto sink = std::make_shared<CollectSink>(1);
    Request r = make_request(sink, prompt_of(3, 9), 101);
    r.sampling.temperature = temperature;
    r.sampling.seed = 5;
    r.stop.ignore_eos = true;
    REQUIRE_OK(f.engine->submit(std::move(r)));
    REQUIRE(sink->wait());
    const EngineStats st = f.engine->stats();
    // One by the prompt's step, then five by each; of states, whose steps have a page of rows at most, four.
    CHECK(st.rejected_drafts == 0);
    CHECK(st.accepted_drafts == (states ? 75 : 80));
    CHECK(sink->choices[0].tokens.size() == 101);
  }
}

// They are found at snapshots, of which a prompt leaves one at its last border.
TEST_CASE("prompts are found again where a draft model has recurrent layers", "[engine][draft]") {
  EngineOptions options;
  options.speculative.max_tokens = 4;
  options.speculative.paced = false;
  RunnerLimits limits = small_limits();
  limits.max_logit_rows = 16;
  auto control = std::make_shared<FakeControl>();
  {
    Fixture f(options, limits,
              std::make_unique<FakeDraft>(draft_limits(limits, with_states({{0, 1, 96}}, 32)), control, 0.5));
    f.wait_ready();
    const auto ask = [&](size_t size) {
      auto sink = std::make_shared<CollectSink>(1);
      REQUIRE_OK(f.engine->submit(make_request(sink, prompt_of(3, size), 9)));
      REQUIRE(sink->wait());
      return sink->choices[0].last.stats.cached_tokens;
    };
    CHECK(ask(41) == 0);
    CHECK(ask(41) == 40);
    CHECK(ask(70) == 40);
    CHECK(ask(70) == 68);
  }
  CHECK(control->error == "");
}

TEST_CASE("a draft model with recurrent layers takes the steps of its target", "[engine][draft]") {
  const RunnerLimits limits = small_limits();
  RunnerLimits drafts = draft_limits(limits, with_states({}, 32));
  drafts.max_batch_tokens = limits.max_batch_tokens - 1;
  const auto control = std::make_shared<FakeControl>();
  const auto made = Engine::create(std::make_unique<FakeRunner>(limits, control), {},
                                   std::make_unique<FakeDraft>(drafts, control, 1.0));
  CHECK(made.status().code() == StatusCode::kFailedPrecondition);
  CHECK(made.status().param() == "draft_model");
}

TEST_CASE("prompts are found by prefix as without a draft model", "[engine][draft]") {
  uint64_t hits[2];
  for (const bool drafted : {false, true}) {
    EngineOptions options;
    options.speculative.max_tokens = 4;
    options.speculative.paced = false;
    RunnerLimits limits = small_limits();
    limits.max_logit_rows = 16;
    auto control = std::make_shared<FakeControl>();
    std::unique_ptr<HostRunner> draft;
    if (drafted) draft = std::make_unique<FakeDraft>(draft_limits(limits, {{0, 1, 96}}), control, 0.5);
    Fixture f(options, limits, std::move(draft));
    f.wait_ready();
    for (int i = 0; i < 4; ++i) {
      auto sink = std::make_shared<CollectSink>(1);
      REQUIRE_OK(f.engine->submit(make_request(sink, prompt_of(3, 41 + static_cast<size_t>(i)), 1)));
      REQUIRE(sink->wait());
    }
    hits[drafted] = f.engine->stats().prefix_hits;
  }
  CHECK(hits[1] == hits[0]);
  CHECK(hits[0] == 3 * 40);
}

// Choices share the page of the prompt's last row. Both draws are taken back, so that row runs again: in the
// first choice's own block, with no copy, since the target computes all rows that it needs there.
TEST_CASE("a draft model goes back with a sequence whose block is replaced", "[scheduler][draft]") {
  SchedulerOptions o;
  o.vocab_size = 8;
  o.max_context = 32;
  o.max_batch_tokens = 16;
  o.max_sequences = 2;
  o.max_logit_rows = 8;
  o.page_tokens = GENERATE(1, 4);
  const std::vector<CacheGroup> drafts = {{0, 1, 64}, {6, 1, 64}};
  o.groups = {{0, 1, 64}, drafts[0], drafts[1]};
  o.draft_groups = 2;
  auto made = Scheduler::create(o);
  REQUIRE_OK(made);
  Scheduler& scheduler = **made;
  RunnerLimits limits;
  limits.vocab_size = o.vocab_size;
  limits.max_batch_tokens = o.max_batch_tokens;
  limits.max_sequences = o.max_sequences;
  limits.page_tokens = o.page_tokens;
  limits.groups = drafts;
  const auto control = std::make_shared<FakeControl>();
  DraftPacer pacer;
  DraftModel model(std::make_unique<FakeRunner>(limits, control), o.vocab_size, pacer);

  Request r;
  r.prompt.assign(9, 3);
  r.n = 2;
  r.stop.max_tokens = 16;
  const Clock::time_point now{std::chrono::hours(1)};
  REQUIRE_OK(scheduler.add(1, std::move(r), 7, now));
  std::vector<Outcome> out;
  Step step;
  const int32_t token = 2;
  const auto advance = [&](std::span<const int32_t> drawn) {
    REQUIRE(scheduler.next(now, step));
    REQUIRE_OK(model.copy_blocks(step.copies, scheduler.target_groups()));
    REQUIRE_OK(model.draft(scheduler, step));
    REQUIRE_OK(model.follow(scheduler, step));
    scheduler.commit(step, std::vector<std::span<const int32_t>>(step.samples.size(), drawn), now, out);
    REQUIRE_OK(scheduler.verify());
  };
  advance({});
  REQUIRE(scheduler.stats().running == 2);
  for (int k = 0; k < 8; ++k) {
    advance({&token, 1});
    scheduler.for_each_running([&](Sequence& s) { scheduler.propose(s, 2); });
  }
  CHECK(control->error == "");
}

TEST_CASE("a draft model that cannot hold what its target holds is refused", "[engine][draft]") {
  RunnerLimits drafts = draft_limits(small_limits(), {{0, 1, 96}});
  drafts.max_context = 100;
  const auto made =
      Engine::create(std::make_unique<FakeRunner>(small_limits(), std::make_shared<FakeControl>()), {},
                     std::make_unique<FakeRunner>(drafts, std::make_shared<FakeControl>()));
  CHECK(made.status().code() == StatusCode::kFailedPrecondition);
  CHECK(made.status().message().find("of 100 tokens") != std::string::npos);
}
