// Callers get what their weights say, nobody waits without end, and an exchange of places changes no token.
#include "engine/runtime/core/fair_shares.h"

#include <map>
#include <random>

#include "engine/runtime/core/scheduler.h"
#include "tests/support/catch.h"

using namespace oar;

namespace {

SchedulerOptions options(int64_t sequences, int32_t blocks = 1000) {
  SchedulerOptions o;
  o.vocab_size = 1000;
  o.max_context = 4096;
  o.max_batch_tokens = 64;
  o.max_sequences = sequences;
  o.page_tokens = 16;
  o.groups = {{0, 1, blocks}};
  o.prefix_cache = false;
  o.eos_token_ids = {0};
  return o;
}

// Steps of a scheduler; counts the tokens of each caller, prompts included.
struct Steps {
  std::unique_ptr<Scheduler> s;
  Step step;
  std::vector<Outcome> out;
  std::vector<std::span<const int32_t>> spans;
  Clock::time_point now{std::chrono::hours(1)};
  std::map<std::string, int64_t> tokens, unfinished;
  std::map<uint64_t, int64_t> ended_at;  // step
  int64_t number = 0;
  uint64_t last_id = 0;
  static constexpr int32_t kToken = 5;

  explicit Steps(const SchedulerOptions& o) {
    auto made = Scheduler::create(o);
    REQUIRE_OK(made);
    s = std::move(made).value();
  }
  uint64_t add(const std::string& caller, double weight, int64_t prompt, int64_t max_tokens) {
    Request r;
    r.prompt.assign(static_cast<size_t>(prompt), 7);
    r.stop.max_tokens = max_tokens;
    r.stop.ignore_eos = true;
    r.caller = caller, r.weight = weight;
    REQUIRE_OK(s->add(++last_id, std::move(r), 1, now));
    ++unfinished[caller];
    return last_id;
  }
  bool advance() {
    ++number;
    if (!s->next(now, step)) return false;
    for (size_t k = 0; k < step.entries.size(); ++k)
      tokens[s->sequence(step.entries[k].slot).request->request.caller] +=
          step.seq_start[k + 1] - step.seq_start[k];
    spans.assign(step.samples.size(), {&kToken, 1});
    s->commit(step, spans, now, out);
    for (const Outcome& o : out) {
      if (o.finish == FinishReason::kNone) continue;
      --unfinished[o.request->request.caller];
      ended_at[o.request->id] = number;
    }
    out.clear();
    s->reclaim();
    REQUIRE_OK(s->verify());
    return true;
  }
};

}  // namespace

TEST_CASE("fair shares: tokens by weight while everybody waits", "[scheduler]") {
  struct Caller {
    const char* name;
    double weight;
    int64_t prompt, answer;  // at most
  };
  const std::vector<std::vector<Caller>> worlds = {
      {{"a", 1, 20, 20}, {"b", 3, 20, 20}},
      {{"a", 1, 5, 60}, {"b", 1, 60, 5}},
      {{"a", 2, 40, 40}, {"b", 1, 10, 10}, {"c", 5, 30, 5}},
  };
  std::mt19937 dice(11);
  const auto roll = [&dice](int64_t most) { return 1 + static_cast<int64_t>(dice()) % most; };
  for (const auto& callers : worlds) {
    Steps t(options(8));
    double weights = 0;
    for (const Caller& c : callers) weights += c.weight;
    std::map<std::string, int64_t> warm;
    for (int64_t step = 0; step < 1300; ++step) {
      for (const Caller& c : callers) {
        while (t.unfinished[c.name] < 20) t.add(c.name, c.weight, roll(c.prompt), roll(c.answer));
      }
      REQUIRE(t.advance());
      if (step == 299) warm = t.tokens;  // how long answers are has been learned
    }
    double all = 0;
    for (const Caller& c : callers) all += static_cast<double>(t.tokens[c.name] - warm[c.name]);
    for (const Caller& c : callers) {
      const double share = static_cast<double>(t.tokens[c.name] - warm[c.name]) / all;
      INFO(c.name << " has " << share << " of the tokens");
      CHECK(std::abs(share - c.weight / weights) <= 0.05 * c.weight / weights);
    }
  }
}

TEST_CASE("fair shares: who holds every slot makes way", "[scheduler]") {
  Steps t(options(4));
  for (int i = 0; i < 12; ++i) t.add("greedy", 1, 10, 500);
  for (int i = 0; i < 50; ++i) t.advance();
  CHECK(t.s->stats().preemptions == 0);  // nobody else waits
  const uint64_t late = t.add("late", 1, 10, 5);
  for (int i = 0; i < 17 + 5; ++i) t.advance();
  CHECK(t.ended_at.contains(late));
  CHECK(t.s->stats().preemptions == 1);
  // A second caller takes two of four slots, and no more.
  for (int i = 0; i < 8; ++i) t.add("late", 1, 10, 500);
  for (int i = 0; i < 200; ++i) t.advance();
  int64_t late_running = 0;
  t.s->for_each_running([&](Sequence& s) { late_running += s.request->request.caller == "late"; });
  CHECK(late_running == 2);
  CHECK(t.s->stats().preemptions <= 4);
  while (t.advance()) {}
  CHECK(t.ended_at.size() == 21);
}

TEST_CASE("fair shares: a place for blocks as for slots", "[scheduler]") {
  Steps t(options(16, 64));  // 1024 tokens
  for (int i = 0; i < 12; ++i) t.add("greedy", 1, 60, 190);
  for (int i = 0; i < 40; ++i) t.advance();
  const uint64_t late = t.add("late", 1, 60, 5);
  for (int i = 0; i < 60; ++i) t.advance();
  CHECK(t.ended_at.contains(late));
  while (t.advance()) {}
  CHECK(t.ended_at.size() == 13);
}

TEST_CASE("fair shares: new callers without end do not keep one waiting", "[scheduler]") {
  Steps t(options(1));
  t.add("first", 1, 400, 5);
  const uint64_t patient = t.add("first", 1, 10, 5);
  for (int64_t i = 0; i < 6000 && !t.ended_at.contains(patient); ++i) {
    if (t.s->stats().waiting < 4) t.add("crowd " + std::to_string(i), 1, 1, 1);
    t.advance();
  }
  CHECK(t.ended_at.contains(patient));
}

TEST_CASE("fair shares: what is remembered of callers is bounded", "[scheduler]") {
  FairShares shares;
  for (int i = 0; i < 100000; ++i) {
    const auto t = shares.arrive("caller " + std::to_string(i), 1, 0, 10, 1, 10);
    shares.started(t);
    shares.ended(t, 10, 5, 1);
  }
  CHECK(shares.size() < 1000);
}

TEST_CASE("fair shares: an estimate is put right", "[scheduler]") {
  FairShares shares;
  const auto long_asked = shares.arrive("a", 1, 0, 10, 1, 100000);
  shares.started(long_asked);
  shares.ended(long_asked, 10, 1, 1);
  const auto next = shares.arrive("a", 1, 0, 10, 1, 10);
  CHECK(next.start - long_asked.start == 11);
  const auto heavy = shares.arrive("b", 2, 0, 10, 1, 10);
  const auto behind = shares.arrive("b", 2, 0, 10, 1, 10);
  CHECK(behind.start - heavy.start == 10);
  CHECK(shares.arrive("c", 1, -1, 10, 1, 10).tag < shares.arrive("d", 1, 0, 10, 1, 10).tag);
}
