// Memory that a server does not need any more goes back to the system, also where the allocator would keep
// it: blocks that lie between others. Counted in pages of this process.
#include <unistd.h>

#include <barrier>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "clients/cli/heap_keeper.h"
#include "server/api/model_reaper.h"
#include "tests/support/catch.h"

namespace {

using oar::api::ModelReaper;
using oar::cli::HeapKeeper;

constexpr int64_t kMiB = 1 << 20;

[[maybe_unused]] const bool kBeforeAnyThread = (HeapKeeper::use_one_arena(), true);

int64_t resident() {
  int64_t pages = 0, of = 0;
  std::ifstream("/proc/self/statm") >> of >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

using Block = std::unique_ptr<std::vector<char>>;

// `bytes` in blocks that are too small for mappings of their own. Of each block one in `between` lies behind
// it.
std::vector<Block> blocks(int64_t bytes, std::vector<Block>& between) {
  constexpr int64_t kBlock = 64 << 10, kBetween = 2 << 10;
  std::vector<Block> out;
  for (int64_t at = 0; at < bytes; at += kBlock) {
    out.push_back(std::make_unique<std::vector<char>>(kBlock, 'x'));
    between.push_back(std::make_unique<std::vector<char>>(kBetween, 'x'));
  }
  return out;
}

TEST_CASE("given back: what a model held, when its last holder lets go") {
  const auto reaper = std::make_shared<ModelReaper>();
  std::vector<Block> between;
  const int64_t before = resident();
  auto model =
      ModelReaper::hand_out(reaper, std::make_shared<const std::vector<Block>>(blocks(24 * kMiB, between)));
  CHECK(resident() >= before + 23 * kMiB);
  model.reset();
  reaper->settle();
  CHECK(resident() <= before + 6 * kMiB);
  CHECK(reaper->finish());
}

TEST_CASE("given back: what bursts left, within a minute also where it is little") {
  HeapKeeper heap;
  HeapKeeper::Clock::time_point now{std::chrono::hours(1)};
  heap.look(now);
  std::vector<Block> between;
  const int64_t before = resident();
  blocks(12 * kMiB, between);
  const auto pass = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) heap.look(now += std::chrono::seconds(1));
  };
  pass(50);
  CHECK(resident() >= before + 11 * kMiB);  // it may be wanted again at once
  pass(10);
  CHECK(resident() <= before + 4 * kMiB);
}

TEST_CASE("given back: much of it as soon as nothing moves") {
  HeapKeeper heap;
  HeapKeeper::Clock::time_point now{std::chrono::hours(1)};
  heap.look(now);
  std::vector<Block> between;
  const int64_t before = resident();
  blocks(64 * kMiB, between);
  heap.look(now += std::chrono::seconds(1));
  CHECK(resident() >= before + 60 * kMiB);
  heap.look(now += std::chrono::seconds(1));
  CHECK(resident() <= before + 16 * kMiB);
}

TEST_CASE("given back: what other threads freed, while they live on") {
  HeapKeeper heap;
  HeapKeeper::Clock::time_point now{std::chrono::hours(1)};
  heap.look(now);
  const int64_t before = resident();
  std::barrier freed(4), looked(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      // Large ones first: after them the allocator would keep more.
      for (int k = 0; k < 3; ++k) std::vector<char>(24 * kMiB, 'x');
      std::vector<Block> between;
      blocks(48 * kMiB, between);
      between.clear();
      freed.arrive_and_wait();
      looked.arrive_and_wait();
    });
  }
  freed.arrive_and_wait();
  for (int i = 0; i < 3; ++i) heap.look(now += std::chrono::seconds(1));
  CHECK(resident() <= before + 8 * kMiB);
  looked.arrive_and_wait();
  for (std::thread& t : threads) t.join();
}

}  // namespace
