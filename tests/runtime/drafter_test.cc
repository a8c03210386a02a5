// What may follow: prompt lookup against a search that tries everything, and how many drafts the pacer takes.
#include "engine/runtime/core/drafter.h"

#include <algorithm>

#include "engine/runtime/core/draft_pacer.h"
#include "tests/runtime/fake_model.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"

using namespace oar;
using oar_test::mix;

namespace {

std::vector<int32_t> look_up(const std::vector<int32_t>& prompt, const std::vector<int32_t>& output,
                             int32_t least, int32_t most_same, int64_t most) {
  std::vector<int32_t> out;
  PromptLookup(least, most_same).look_up({prompt, output}, most, out);
  return out;
}

}  // namespace

TEST_CASE("prompt lookup proposes what followed the last tokens", "[drafter]") {
  CHECK(look_up({1, 2, 3, 4, 9, 1, 2}, {}, 2, 4, 3) == std::vector<int32_t>{3, 4, 9});
  CHECK(look_up({1, 2, 3, 4, 9, 1}, {2}, 2, 4, 2) == std::vector<int32_t>{3, 4});
  CHECK(look_up({1, 2, 3, 4, 9, 7, 2}, {}, 2, 4, 3).empty());
  CHECK(look_up({1, 2, 3, 4, 9, 7, 2}, {}, 1, 4, 1) == std::vector<int32_t>{3});
  CHECK(look_up({5, 1, 2, 8, 6, 1, 2, 7, 5, 1, 2}, {}, 2, 4, 1) ==
        std::vector<int32_t>{8});                                                        // the longer run
  CHECK(look_up({1, 2, 8, 1, 2, 7, 1, 2}, {}, 2, 2, 1) == std::vector<int32_t>{7});      // the later one
  CHECK(look_up({3, 4, 3, 4}, {3, 4}, 2, 4, 5) == std::vector<int32_t>{3, 4, 3, 4, 3});  // repeats itself
  CHECK(look_up({3}, {}, 1, 4, 5).empty());
  CHECK(look_up({3, 3}, {}, 1, 4, 0).empty());
}

TEST_CASE("prompt lookup agrees with trying every place", "[drafter]") {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const size_t size = 2 + mix(seed) % 150, cut = mix(seed + 1) % size + 1;
    const uint64_t vocab = 2 + mix(seed + 2) % 6;
    std::vector<int32_t> all;
    for (size_t i = 0; i < size; ++i) all.push_back(static_cast<int32_t>(mix(seed * 1000 + i) % vocab));
    const int64_t least = 1 + static_cast<int64_t>(mix(seed + 3) % 3),
                  top = least + static_cast<int64_t>(mix(seed + 4) % 3);
    int64_t longest = least - 1, best = -1;
    for (int64_t at = 0; at + 1 < static_cast<int64_t>(size); ++at) {
      int64_t same = 0;
      while (same < top && same <= at &&
             all[static_cast<size_t>(at - same)] == all[size - 1 - static_cast<size_t>(same)])
        ++same;
      if (same >= least && same >= longest) longest = same, best = at;
    }
    std::vector<int32_t> want;
    std::vector<int32_t> text = all;
    for (int64_t k = 0; best >= 0 && k < 5; ++k) {
      want.push_back(text[static_cast<size_t>(best + 1 + k)]);
      text.push_back(want.back());
    }
    const std::vector<int32_t> prompt(all.begin(), all.begin() + static_cast<ptrdiff_t>(cut)),
        output(all.begin() + static_cast<ptrdiff_t>(cut), all.end());
    INFO("seed " << seed);
    REQUIRE(look_up(prompt, output, static_cast<int32_t>(least), static_cast<int32_t>(top), 5) == want);
  }
}

namespace {

// A device whose steps take as long as its memory needs for the weights (1), or its arithmetic for the rows,
// and something for each row.
struct StepCost {
  double row_arithmetic, row_overhead;
  double seconds(int64_t rows) const {
    const auto r = static_cast<double>(rows);
    return 1e-3 * (std::max(1.0, row_arithmetic * r) + row_overhead * r);
  }
};
struct Simulated {
  double tokens = 0, seconds = 0, rejected = 0, rows = 0;
};
// Streams whose drafts are right at `rate`. `noise`: steps take up to so many times as long.
Simulated simulate(double rate, int64_t streams, const StepCost& device, int64_t steps, double noise = 1) {
  DraftPacer pacer;
  std::vector<DraftChance> chances(static_cast<size_t>(streams));
  Simulated out;
  uint64_t dice = 1;
  for (int64_t s = 0; s < steps; ++s) {
    std::vector<DraftPacer::Candidate> all;
    for (DraftChance& c : chances) all.push_back({&c, 8, 0});
    pacer.plan(all, streams, streams, 128 - streams);
    int64_t rows = streams;
    for (auto& c : all) {
      rows += c.take;
      int64_t accepted = 0;
      while (accepted < c.take && static_cast<double>(mix(++dice) >> 11) * 0x1p-53 < rate) ++accepted;
      pacer.verified(*c.chance, accepted, c.take);
      out.tokens += static_cast<double>(accepted + 1);
      out.rejected += static_cast<double>(c.take - accepted);
    }
    const double chance = static_cast<double>(mix(++dice) >> 11) * 0x1p-53;
    const double seconds = device.seconds(rows) * (1 + (noise - 1) * chance * chance);
    pacer.ran(rows, seconds);
    out.seconds += seconds;
    out.rows += static_cast<double>(rows);
  }
  return out;
}
// The best that chains of one length can do.
double best_rate(double rate, int64_t streams, const StepCost& device) {
  double best = 0;
  for (int64_t m = 0; m <= 8 && streams * (m + 1) <= 128; ++m) {
    double tokens = 1, p = rate;
    for (int64_t k = 0; k < m; ++k, p *= rate) tokens += p;
    best = std::max(best, static_cast<double>(streams) * tokens / device.seconds(streams * (m + 1)));
  }
  return best;
}

}  // namespace

TEST_CASE("the draft pacer finds the chain length that pays", "[drafter]") {
  oar_test::Sample sample(7);
  for (const double arithmetic : {1. / 64, 1. / 16, 1. / 4, 1.})
    for (const double overhead : {0.0, 0.02, 0.1, 0.5})
      for (const int64_t streams : {1, 8, 32})
        for (const double rate : {0.0, 0.3, 0.6, 0.8, 1.0}) {
          if (!sample.take()) continue;
          INFO("rate " << rate << ", " << streams << " streams, " << arithmetic << " and " << overhead
                       << " for each row");
          const StepCost device{arithmetic, overhead};
          const Simulated o = simulate(rate, streams, device, 4000);
          CHECK(o.tokens / o.seconds >= 0.9 * best_rate(rate, streams, device));
          if (rate == 0) CHECK(o.rejected <= 0.03 * o.rows);
        }
}

TEST_CASE("a short run with wrong drafts loses few rows", "[drafter]") {
  const Simulated o = simulate(0, 1, {1. / 16, 0.02}, 200);
  CHECK(o.rejected <= 0.03 * o.rows);
}

// Two cores and a model of 1B: 8 rows are past what memory hides. A hundred tokens, on a machine with others.
TEST_CASE("a short run finds out whether drafts pay", "[drafter]") {
  for (const double arithmetic : {1. / 16, 1. / 3, 1. / 2})
    for (const int64_t streams : {1, 8, 32})
      for (const double rate : {0.0, 0.3, 0.6, 0.8, 1.0}) {
        const StepCost device{arithmetic, 0.02};
        const Simulated o = simulate(rate, streams, device, 100, 1.3);
        INFO("rate " << rate << ", " << streams << " streams, " << arithmetic << " for each row");
        // Noise of a tenth on average, which the best pays as well.
        CHECK(o.tokens / o.seconds >= 0.88 / 1.1 * best_rate(rate, streams, device));
        if (rate == 0) CHECK(o.rejected <= 0.05 * o.rows);
      }
}
