// The batcher's rules, with a made-up clock, and random traces that hold them to what batcher.h promises.
#include "engine/runtime/core/batcher.h"

#include <algorithm>
#include <random>

#include "engine/base/format.h"
#include "tests/support/catch.h"

namespace {

using namespace oar;  // NOLINT
using std::chrono::microseconds;

const Clock::time_point kStart = Clock::time_point{} + std::chrono::hours(1);
Clock::time_point at(int64_t us) { return kStart + microseconds(us); }

Batcher::Item item(uint64_t id, int64_t us, int64_t rows = 1, std::string key = "k") {
  Batcher::Item i;
  i.id = id;
  i.rows = rows;
  i.key = std::move(key);
  i.arrived = at(us);
  return i;
}

using Ids = std::vector<uint64_t>;

TEST_CASE("Batcher: without a delay whatever waits runs at once, up to the limit") {
  Batcher b({.max_rows = 4});
  CHECK(b.next(at(0)).run.empty());
  for (uint64_t id = 1; id <= 6; ++id) REQUIRE_OK(b.push(item(id, 0)));
  CHECK(b.next(at(0)).run == Ids{1, 2, 3, 4});
  CHECK(b.next(at(0)).run == Ids{5, 6});
  CHECK(b.waiting() == 0);
}

TEST_CASE("Batcher: the oldest waits for company at most its delay") {
  Batcher b({.max_rows = 4, .max_delay = microseconds(100)});
  REQUIRE_OK(b.push(item(1, 0)));
  REQUIRE_OK(b.push(item(2, 50)));
  const auto early = b.next(at(60));
  CHECK(early.run.empty());
  REQUIRE(early.wake.has_value());
  CHECK(*early.wake == at(100));
  CHECK(b.next(at(100)).run == Ids{1, 2});
  // A full batch does not wait.
  for (uint64_t id = 3; id <= 6; ++id) REQUIRE_OK(b.push(item(id, 200)));
  CHECK(b.next(at(200)).run == Ids{3, 4, 5, 6});
}

TEST_CASE("Batcher: preferred sizes") {
  Batcher b({.max_rows = 8, .preferred = {2, 4}, .max_delay = microseconds(100)});
  for (uint64_t id = 1; id <= 3; ++id) REQUIRE_OK(b.push(item(id, 0)));
  CHECK(b.next(at(10)).run.empty());  // 3 rows: the largest preferred size is not reached
  REQUIRE_OK(b.push(item(4, 20)));
  CHECK(b.next(at(20)).run == Ids{1, 2, 3, 4});
  for (uint64_t id = 5; id <= 7; ++id) REQUIRE_OK(b.push(item(id, 30)));
  CHECK(b.next(at(130)).run == Ids{5, 6});  // late: the largest preferred prefix
  CHECK(b.next(at(130)).run == Ids{7});     // no preferred size left: what there is
}

TEST_CASE("Batcher: a request that does not fit makes the group due, and is not overtaken") {
  Batcher b({.max_rows = 4, .max_delay = microseconds(1000)});
  REQUIRE_OK(b.push(item(1, 0, 3)));
  REQUIRE_OK(b.push(item(2, 1, 2)));
  REQUIRE_OK(b.push(item(3, 2, 1)));
  CHECK(b.next(at(3)).run == Ids{1});
  CHECK(b.next(at(3)).run.empty());
  CHECK(b.next(at(1001)).run == Ids{2, 3});
}

TEST_CASE("Batcher: different keys never share a run, and the oldest that is due goes first") {
  Batcher b({.max_rows = 2, .max_delay = microseconds(50)});
  REQUIRE_OK(b.push(item(1, 0, 1, "b")));
  REQUIRE_OK(b.push(item(2, 1, 1, "a")));
  REQUIRE_OK(b.push(item(3, 2, 1, "a")));
  CHECK(b.next(at(2)).run == Ids{2, 3});  // full, while the older one may still wait
  CHECK(b.next(at(50)).run == Ids{1});
}

TEST_CASE("Batcher: deadlines, removal, a full queue") {
  Batcher b({.max_rows = 4, .max_delay = microseconds(1000), .max_queue = 2});
  auto hurried = item(1, 0);
  hurried.deadline = at(10);
  REQUIRE_OK(b.push(hurried));
  REQUIRE_OK(b.push(item(2, 0)));
  const Status full = b.push(item(3, 0));
  CHECK(full.code() == StatusCode::kResourceExhausted);
  CHECK_THAT(full.message(), oar_test::Contains("2 requests are waiting"));
  CHECK(*b.next(at(5)).wake == at(10));
  const auto late = b.next(at(10));
  CHECK(late.expired == Ids{1});
  CHECK(late.run.empty());
  CHECK(b.remove(2));
  CHECK_FALSE(b.remove(2));
  CHECK(b.waiting() == 0);
}

// Every request leaves exactly once; a run has one key, at most max_rows rows, and keeps the order of arrival
// within its key; nothing waits past its delay while the batcher is being asked.
TEST_CASE("Batcher: random traces") {
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int trace = 0; trace < 300; ++trace) {
    BatchPolicy policy;
    policy.max_rows = 1 + draw(8);
    policy.max_delay = microseconds(draw(3) * 40);
    policy.max_queue = 1 + static_cast<size_t>(draw(20));
    for (int64_t r = 1; r <= policy.max_rows; ++r)
      if (draw(4) == 0) policy.preferred.push_back(r);
    Batcher b(policy);
    std::map<uint64_t, Batcher::Item> waiting;
    int64_t now = 0;
    uint64_t next_id = 0;
    for (int step = 0; step < 200; ++step) {
      now += draw(30);
      if (draw(3) > 0) {
        auto i = item(++next_id, now, 1 + draw(policy.max_rows), cat("k", draw(3)));
        if (draw(5) == 0) i.deadline = at(now + draw(100));
        const bool room = waiting.size() < policy.max_queue;
        REQUIRE(b.push(i).ok() == room);
        if (room) waiting.emplace(i.id, i);
      }
      if (draw(10) == 0 && !waiting.empty()) {
        const uint64_t id = waiting.begin()->first;
        REQUIRE(b.remove(id));
        waiting.erase(id);
      }
      const auto d = b.next(at(now));
      for (const uint64_t id : d.expired) {
        REQUIRE(waiting.count(id) == 1);
        REQUIRE(*waiting[id].deadline <= at(now));
        waiting.erase(id);
      }
      int64_t rows = 0;
      for (const uint64_t id : d.run) {
        REQUIRE(waiting.count(id) == 1);
        REQUIRE(waiting[id].key == waiting[d.run[0]].key);
        rows += waiting[id].rows;
        for (const auto& [other, i] : waiting) {  // nobody older of the same key stays behind
          if (i.key == waiting[id].key && other < id)
            REQUIRE(std::find(d.run.begin(), d.run.end(), other) != d.run.end());
        }
      }
      REQUIRE(rows <= policy.max_rows);
      for (const uint64_t id : d.run) waiting.erase(id);
      if (d.run.empty()) {
        for (const auto& [id, i] : waiting) REQUIRE(i.arrived + policy.max_delay > at(now));
        if (!waiting.empty()) REQUIRE((d.wake && *d.wake > at(now)));
      }
      REQUIRE(b.waiting() == waiting.size());
    }
  }
}

}  // namespace
