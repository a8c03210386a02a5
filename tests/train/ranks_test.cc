// Trainers of several ranks against one of as many micro-batches; here ranks are threads
// (tests/cli/test_finetune_ranks.py has processes).
#include "tests/support/ranks.h"
#include "tests/train/image_network.h"
#include "tests/train/training_fixture.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

// The parameters behind `steps` steps, their losses first; or what went wrong.
struct Trained {
  std::string error;
  std::vector<float> values;
};
template <class Make>
Trained train_as(std::shared_ptr<Group> group, int64_t accumulate, int steps, Make&& make) {
  Trained out;
  auto t = make(std::move(group), accumulate);
  if (!t.ok()) return {t.status().message(), {}};
  for (int k = 0; k < steps; ++k) {
    const auto r = (*t)->step();
    if (!r.ok()) return {r.status().message(), {}};
    out.values.push_back(static_cast<float>(r->loss));
    out.values.push_back(static_cast<float>(r->norm));
  }
  for (size_t p = 0; p < (*t)->parameters().size(); ++p) {
    const auto v = (*t)->value(p).template values<float>();
    out.values.insert(out.values.end(), v.begin(), v.end());
  }
  return out;
}

template <class Make>
void check_ranks(int ranks, int64_t accumulate, Make&& make) {
  const Trained alone = train_as(nullptr, accumulate * ranks, 4, make);
  INFO(alone.error);
  REQUIRE(alone.error.empty());
  const auto together = by_ranks(ranks, kPatient, [&](std::shared_ptr<Group> group) {
    return train_as(std::move(group), accumulate, 4, make);
  });
  for (const Trained& t : together) {
    INFO(t.error);
    REQUIRE(t.values.size() == alone.values.size());
    CHECK(std::memcmp(t.values.data(), alone.values.data(), t.values.size() * sizeof(float)) == 0);
  }
}

}  // namespace

TEST_CASE("ranks train to the bits of one process with as many micro-batches") {
  for (const bool full : {true, false}) {
    TinyRun run("llama3",
                {{1, 2, 3, 4, 5}, {7, 8, 9}, {3, 1, 4, 1, 5, 9, 2, 6}, {11, 12}, {20, 21, 22, 23, 24, 25}});
    run.options.graph.full = full;
    run.options.samples.length = run.options.graph.tokens = 8;
    run.options.rate = 1e-2;
    for (const auto& [ranks, accumulate] : {std::pair(2, 1), {3, 2}}) {
      check_ranks(ranks, accumulate, [&](std::shared_ptr<Group> group, int64_t each) {
        TrainerOptions o = run.options;
        o.group = std::move(group), o.accumulate = each;
        return Trainer::create(o, {});
      });
    }
  }
}

TEST_CASE("ranks move a network's averages as one process does") {
  ImageRun run("ranks");
  run.options.images.batch = 3;
  for (const auto& [ranks, accumulate] : {std::pair(2, 2), {3, 1}}) {
    check_ranks(ranks, accumulate, [&](std::shared_ptr<Group> group, int64_t each) {
      TrainerOptions o = run.options;
      o.group = std::move(group), o.accumulate = each;
      return ImageTrainer::create(o, {});
    });
    // Averages are no parameters.
    const auto collect = [&](std::shared_ptr<Group> group, int64_t each) {
      TrainerOptions o = run.options;
      o.group = std::move(group), o.accumulate = each;
      auto t = ImageTrainer::create(o, {});
      std::vector<float> out;
      if (!t.ok() || !(*t)->step().ok() || !(*t)->step().ok()) return out;
      for (const auto& s : (*t)->statistics()) {
        const auto v = s.value.values<float>();
        out.insert(out.end(), v.begin(), v.end());
      }
      return out;
    };
    const std::vector<float> alone = collect(nullptr, accumulate * ranks);
    REQUIRE_FALSE(alone.empty());
    for (const auto& v : by_ranks(
             ranks, kPatient, [&](std::shared_ptr<Group> g) { return collect(std::move(g), accumulate); }))
      CHECK(v == alone);
  }
}

TEST_CASE("a rank that lives and lags ends the run of all, by name") {
  TinyRun run("llama3");
  const auto said = by_ranks(2, kPatient, [&](std::shared_ptr<Group> group) {
    TrainerOptions o = run.options;
    o.group = group, o.rank_wait = 0.3;
    auto t = Trainer::create(o, {});
    if (!t.ok()) return t.status().message();
    if (const auto first = (*t)->step(); !first.ok()) return first.status().message();
    while (group->rank() == 1 && group->failed().ok())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto second = (*t)->step();
    return second.ok() ? std::string("ok") : cat(second.status().message(), "; ", (*t)->done(), " done");
  });
  for (const std::string& s : said) {
    INFO(s);
    CHECK(s.starts_with("rank 1 (process "));
    CHECK(s.ends_with("s; 1 done"));
  }
}
