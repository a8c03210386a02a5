// Single promises of the scheduler, one scenario each; the random traces are in scheduler_property_test.cc.
#include "engine/runtime/core/scheduler.h"

#include <cstdio>

#include "tests/runtime/counting_allocator.h"
#include "tests/runtime/fake_model.h"
#include "tests/support/catch.h"

using namespace oar;

namespace {

SchedulerOptions options(int64_t budget, int64_t sequences, int32_t blocks, int64_t context = 4096) {
  SchedulerOptions o;
  o.vocab_size = 1000;
  o.max_context = context;
  o.max_batch_tokens = budget;
  o.max_sequences = sequences;
  o.page_tokens = 16;
  o.groups = {{0, 1, blocks}};
  o.eos_token_ids = {0};
  return o;
}

Request request(size_t prompt, int64_t max_tokens, int32_t family = 1) {
  Request r;
  for (size_t i = 0; i < prompt; ++i) r.prompt.push_back(static_cast<int32_t>(i) % 97 + family * 100);
  r.stop.max_tokens = max_tokens;
  r.stop.ignore_eos = true;
  return r;
}

// Lockstep driver: every sample draws token 5.
struct Driver {
  std::unique_ptr<Scheduler> s;
  Step step;
  std::vector<Outcome> out;
  std::vector<std::span<const int32_t>> spans;
  Clock::time_point now{std::chrono::hours(1)};
  std::vector<std::pair<uint64_t, FinishReason>> finished;
  int64_t tokens = 0;
  int64_t prompt_rows = 1 << 20;
  static constexpr int32_t kToken = 5;

  explicit Driver(const SchedulerOptions& o) {
    auto made = Scheduler::create(o);
    REQUIRE_OK(made);
    s = std::move(made).value();
  }
  void add(uint64_t id, Request r) { REQUIRE_OK(s->add(id, std::move(r), 1, now)); }
  bool advance() {
    if (!s->next(now, step, prompt_rows)) return false;
    spans.assign(step.samples.size(), {&kToken, 1});
    s->commit(step, spans, now, out);
    for (const Outcome& o : out) {
      tokens += o.has_token;
      if (o.finish != FinishReason::kNone) finished.emplace_back(o.request->id, o.finish);
    }
    out.clear();
    s->reclaim();
    return true;
  }
  // Rows this step gave to the n-th of its entries.
  int64_t rows(size_t n) const { return step.seq_start[n + 1] - step.seq_start[n]; }
};

}  // namespace

TEST_CASE("decodes run in every step of a long prefill", "[scheduler]") {
  Driver d(options(64, 8, 1000, 16'000));
  for (uint64_t id = 1; id <= 4; ++id) d.add(id, request(10, 2000, static_cast<int32_t>(id)));
  d.advance();
  d.add(5, request(9000, 10, 9));
  int64_t steps = 0;
  for (; d.s->stats().prompt_tokens < 9040; ++steps) {
    const int64_t before = d.tokens;
    REQUIRE(d.advance());
    REQUIRE(d.tokens - before >= 4);      // all four decodes
    REQUIRE(d.step.tokens.size() == 64);  // and the budget is used up
  }
  CHECK(steps == (9000 + 59) / 60);
}

TEST_CASE("prompts that wait for a slot are wanted as those that have one", "[scheduler]") {
  Driver d(options(64, 2, 1000, 16'000));
  for (uint64_t id = 1; id <= 6; ++id) d.add(id, request(20, 50, id));
  CHECK(d.s->demand().prompts == 6);
  while (d.s->demand().decodes < 2) d.advance();
  CHECK(d.s->demand().prompts == 4);  // two slots, both taken
}

TEST_CASE("rows of prompts are limited beside decodes and only there", "[scheduler]") {
  Driver d(options(64, 8, 1000, 16'000));
  d.prompt_rows = 5;
  d.add(1, request(100, 200, 1));
  d.advance();
  CHECK(d.rows(0) == 64);  // nobody decodes: the whole budget
  d.advance();             // the rest of the prompt, and the first token
  d.add(2, request(60, 3, 2));
  CHECK(d.s->demand().decodes == 1);
  CHECK(d.s->demand().prompts == 1);
  for (int i = 0; i < 12; ++i) {
    d.advance();
    REQUIRE(d.step.entries.size() == 2);
    CHECK(d.step.prefill_tokens == 5);
    REQUIRE_OK(d.s->verify());
  }
  d.prompt_rows = 0;
  d.add(3, request(60, 3, 3));
  d.advance();
  CHECK(d.step.prefill_tokens == 0);
  CHECK(d.s->stats().waiting == 1);  // not admitted in vain
  while (d.finished.size() < 2) REQUIRE(d.advance());
  CHECK(d.advance());  // with nobody decoding the limit does not count
  CHECK(d.step.prefill_tokens == 60);
}

TEST_CASE("a short prompt behind a long one does not wait for it", "[scheduler]") {
  Driver d(options(64, 8, 1000, 16'000));
  d.add(1, request(9000, 10, 1));
  d.advance();
  CHECK(d.rows(0) == 64);
  d.add(2, request(30, 3, 2));
  d.advance();
  REQUIRE(d.step.entries.size() == 2);
  CHECK(d.rows(0) == 34);  // half, and what the short one left over
  CHECK(d.rows(1) == 30);
  for (int i = 0; i < 3; ++i) d.advance();
  REQUIRE(d.finished.size() == 1);
  CHECK(d.finished[0].first == 2);
}

TEST_CASE("the youngest is preempted, resumes first, and nobody overtakes it", "[scheduler]") {
  SchedulerOptions o = options(64, 8, 8);  // 128 tokens
  o.prefix_cache = false;
  Driver d(o);
  d.add(1, request(30, 90, 1));
  d.advance();
  d.add(2, request(30, 60, 2));
  d.advance();
  d.add(3, request(30, 10, 3));
  std::vector<uint64_t> order;
  while (d.advance()) REQUIRE_OK(d.s->verify());
  CHECK(d.s->stats().preemptions > 0);
  REQUIRE(d.finished.size() == 3);
  CHECK(d.finished[0].first == 1);  // never preempted
  CHECK(d.finished[1].first + d.finished[2].first == 5);
  for (const auto& f : d.finished) CHECK(f.second == FinishReason::kLength);
  CHECK(d.tokens == 160);
}

TEST_CASE("a sequence that reaches the context or fills the pool ends with kLength", "[scheduler]") {
  {
    Driver d(options(64, 8, 100, 40));
    d.add(1, request(30, 1000));
    while (d.advance()) {}
    CHECK(d.tokens == 10);
    CHECK(d.finished[0].second == FinishReason::kLength);
  }
  {
    Driver d(options(64, 8, 4, 4000));  // 64 tokens
    CHECK(d.s->max_length() == 64);
    d.add(1, request(60, 1000));
    while (d.advance()) {}
    CHECK(d.tokens == 4);
    const Status refused = d.s->add(2, request(64, 1), 1, d.now);
    CHECK(refused.code() == StatusCode::kOutOfRange);
    CHECK(refused.message().find("64") != std::string::npos);
    REQUIRE_OK(d.s->add(3, request(64, 0), 1, d.now));  // no token is asked for, so it fits
    while (d.advance()) {}
    CHECK(d.tokens == 4);
    CHECK(d.finished.back().second == FinishReason::kLength);
  }
}

TEST_CASE("a prefix hit computes only the rest", "[scheduler]") {
  Driver d(options(256, 8, 100));
  d.add(1, request(100, 1));
  while (d.advance()) {}
  d.add(2, request(100, 1));
  REQUIRE(d.advance());
  CHECK(d.step.tokens.size() == 4);  // 6 pages of 16 hit
  CHECK(d.s->stats().prefix_hits == 96);
  d.add(3, request(96, 1));
  REQUIRE(d.advance());
  CHECK(d.step.tokens.size() == 16);  // the last row's logits are wanted, so the last page runs again
  Request salted = request(100, 1);
  salted.cache_salt = "other";
  d.add(4, std::move(salted));
  REQUIRE(d.advance());
  CHECK(d.step.tokens.size() == 100);
  Request wants = request(100, 1);
  wants.sampling.prompt_logprobs = 1;
  d.add(5, std::move(wants));
  int64_t rows = 0;
  while (d.advance()) {
    REQUIRE(d.step.logit_rows.size() <= 8);
    rows += static_cast<int64_t>(d.step.tokens.size());
  }
  CHECK(rows == 100);  // every row's logits are wanted: no hit
}

TEST_CASE("choices share the prompt's blocks and copy only the open one", "[scheduler]") {
  Driver d(options(256, 8, 100));
  Request r = request(40, 8);
  r.n = 4;
  d.add(1, std::move(r));
  d.advance();
  CHECK(d.s->blocks().stats().used == 3);
  d.advance();
  CHECK(d.step.copies.size() == 3);  // the last holder writes in place
  CHECK(d.s->blocks().stats().used == 2 + 4);
  while (d.advance()) {}
  CHECK(d.finished.size() == 4);
  CHECK(d.tokens == 32);
}

TEST_CASE("drafts that are accepted stay as computed, others are computed again", "[scheduler]") {
  SchedulerOptions o = options(64, 8, 100);
  o.max_logit_rows = 12;
  Driver d(o);
  d.add(1, request(20, 30));
  d.advance();
  Sequence& s = d.s->sequence(0);
  const int32_t drafts[] = {7, 8, 9, 10};
  // Accepted drafts, and what is drawn behind them.
  for (size_t accepted = 0; accepted <= 4; ++accepted) {
    CHECK(d.s->propose(s, drafts) == 4);
    REQUIRE(d.s->next(d.now, d.step));
    CHECK(d.step.tokens.size() == 5);
    CHECK(d.step.logit_rows.size() == 5);
    CHECK(d.step.prefill_tokens == 0);
    CHECK(d.step.positions[0] == s.known() - 1);
    std::vector<int32_t> drawn(drafts, drafts + accepted);
    drawn.push_back(5);
    const std::span<const int32_t> span = drawn;
    d.s->commit(d.step, {&span, 1}, d.now, d.out);
    CHECK(d.out.size() == accepted + 1);
    CHECK(s.uncomputed() == 1);
    CHECK(s.committed == s.known() - 1);
    d.out.clear();
    REQUIRE_OK(d.s->verify());
  }
  CHECK(d.s->stats().accepted_drafts == 10);
  CHECK(d.s->stats().rejected_drafts == 10);
  CHECK(d.s->stats().verified_drafts == 5);
  for (size_t i = 0; i < 5; ++i) CHECK(d.s->stats().accepted_at[i] == 4 - i);
  CHECK(s.blocks.published == s.committed / 16);
  // As many as the rows of logits, the budget and the end allow.
  CHECK(d.s->propose(s, std::vector<int32_t>(40, 9)) == 50 - s.known() - 1);
  REQUIRE(d.s->next(d.now, d.step));
  CHECK(d.step.logit_rows.size() == 12);
}

TEST_CASE("a prompt takes pages of generated tokens where rows have one phase, or where both may mix",
          "[scheduler]") {
  const auto hits = [](bool phases, bool mixed_prefix) {
    SchedulerOptions o = options(128, 4, 40);
    o.phases = phases;
    o.mixed_prefix = mixed_prefix;
    Driver d(o);
    d.add(1, request(32, 40));
    while (d.finished.empty()) d.advance();
    Request again = request(32, 1);
    again.prompt.insert(again.prompt.end(), 40, Driver::kToken);  // the answer, and with it two pages
    d.add(2, std::move(again));
    while (d.finished.size() < 2) d.advance();
    return d.s->stats().prefix_hits;
  };
  CHECK(hits(false, false) == 64);
  CHECK(hits(true, false) == 32);
  CHECK(hits(true, true) == 64);
}

TEST_CASE("drafts take what nobody else wants", "[scheduler]") {
  SchedulerOptions o = options(16, 4, 20);
  o.max_logit_rows = 16;
  o.prefix_cache = false;
  Driver d(o);
  d.add(1, request(14, 60));
  d.advance();
  d.add(2, request(60, 2, 2));
  const int32_t drafts[] = {7, 7, 7, 7};
  d.s->propose(d.s->sequence(0), drafts);
  d.advance();
  CHECK(d.rows(0) == 1);  // the other's prompt fills the step
  d.advance();
  CHECK(d.rows(0) == 1);  // and drafts of the step before are forgotten
  while (d.finished.empty()) d.advance();
  d.s->propose(d.s->sequence(0), drafts);
  d.advance();
  CHECK(d.rows(0) == 5);
}

TEST_CASE("order is priority first, then arrival", "[scheduler]") {
  SchedulerOptions o = options(64, 1, 100);
  Driver d(o);
  const int32_t priorities[] = {5, 9, 7, 7};
  for (uint64_t id = 1; id <= 4; ++id) {
    Request r = request(10, 3, static_cast<int32_t>(id));
    r.priority = priorities[id - 1];
    REQUIRE_OK(d.s->add(id, std::move(r), 1, d.now));
  }
  while (d.advance()) {}
  REQUIRE(d.finished.size() == 4);
  CHECK(d.finished[0].first == 1);
  CHECK(d.finished[1].first == 3);
  CHECK(d.finished[2].first == 4);
  CHECK(d.finished[3].first == 2);
}

TEST_CASE("planning and committing a decode step allocates nothing", "[scheduler]") {
  SchedulerOptions o = options(512, 64, 64 * 40);
  o.groups.push_back({128, 1, 64 * 12});
  Driver d(o);
  for (uint64_t id = 1; id <= 64; ++id) d.add(id, request(100 + id, 400, static_cast<int32_t>(id)));
  for (int i = 0; i < 40; ++i) d.advance();  // all admitted, buffers at their size
  const int64_t steps = 200, before = oar_test::allocations();
  const auto began = Clock::now();
  for (int64_t i = 0; i < steps; ++i) {
    d.advance();
    if (d.step.entries.size() != 64) FAIL("not all 64 decode");
  }
  const double us =
      std::chrono::duration<double, std::micro>(Clock::now() - began).count() / static_cast<double>(steps);
  const int64_t allocated = oar_test::allocations() - before;
  CHECK(allocated == 0);
  std::printf("scheduler: %.1f us per step of 64 decodes, two cache groups\n", us);
}
