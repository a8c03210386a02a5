// The scheduler's promises on random traces: blocks conserved, budgets kept, nobody starves, one finish per
// choice, and every token the one the model alone would have produced (so batching, chunking, preemption,
// prefix hits, forks, roll-backs and depth change nothing).
#include <algorithm>
#include <cstdlib>

#include "tests/runtime/trace.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"

using namespace oar_test;

namespace {

constexpr uint64_t kTraces = kSlow ? 10'000 : 100'000;  // a sanitizer makes each ten times as slow

struct Totals {
  int64_t traces = 0, steps = 0;
  uint64_t state_hits = 0;  // in worlds with recurrent layers
  uint64_t phase_hits = 0;  // in worlds whose rows have phases
  // In worlds with a draft model: what it named, and what was found where both models have it.
  uint64_t drafted = 0, draft_hits = 0;
  uint64_t both_states = 0;  // drafts of a recurrent model for a recurrent model
  uint64_t preemptions = 0, hits = 0, copies = 0, rollbacks = 0, jumps = 0, accepted = 0, suspensions = 0;
};

void run_traces(uint64_t first, uint64_t count, int32_t depth) {
  Totals t;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Dice dice(mix(seed));  // the same trace at every depth
    const World world = random_world(dice, depth);
    Trace trace(world, dice.next());
    const std::string error = trace.run();
    if (!error.empty()) FAIL("depth " << depth << ", seed " << seed << ": " << error);
    t.traces += trace.lived();
    t.steps += trace.steps();
    t.preemptions += trace.preemptions();
    t.hits += trace.prefix_hits();
    if (std::ranges::any_of(world.options.groups, oar::has_holes, &oar::CacheGroup::pages))
      t.state_hits += trace.prefix_hits();
    if (world.options.phases) t.phase_hits += trace.prefix_hits();
    t.drafted += trace.drafted();
    if (world.options.draft_groups > 0) t.draft_hits += trace.prefix_hits();
    const auto states =
        std::ranges::count(world.options.groups, oar::CachePages::kState, &oar::CacheGroup::pages);
    if (states == 2) t.both_states += trace.drafted();
    t.copies += trace.copies();
    t.rollbacks += trace.rollbacks();
    t.jumps += trace.jumps();
    t.accepted += trace.accepted();
    t.suspensions += trace.suspensions();
  }
  WARN("depth " << depth << ": " << t.traces << " traces, " << t.steps << " steps, " << t.preemptions
                << " preemptions, " << t.hits << " tokens of prefix hits, " << t.copies << " copies, "
                << t.rollbacks << " roll-backs, " << t.jumps << " forced tokens, " << t.accepted
                << " accepted drafts, " << t.drafted << " of a model, " << t.suspensions << " suspensions");
  CHECK(t.traces > static_cast<int64_t>(count / 2));  // the rest were worlds too small for one sequence
  CHECK(t.steps > 5 * t.traces);
  CHECK(t.preemptions > 0);
  CHECK(t.hits > 0);
  CHECK(t.state_hits > 0);
  CHECK(t.phase_hits > 0);
  CHECK(t.drafted > 0);
  CHECK(t.draft_hits > 0);
  CHECK(t.both_states > 0);
  CHECK(t.copies > 0);
  CHECK(t.rollbacks > 0);
  CHECK(t.jumps > 0);
  CHECK(t.accepted > 0);
  CHECK(t.suspensions > 0);
}

}  // namespace

TEST_CASE("random traces in lockstep", "[scheduler]") { run_traces(0, kTraces, 0); }
TEST_CASE("random traces one step ahead", "[scheduler]") { run_traces(0, kTraces, 1); }

TEST_CASE("a million random traces", "[scheduler][slow][.]") {
  for (const int32_t depth : {0, 1}) run_traces(1'000'000, 1'000'000, depth);
}
