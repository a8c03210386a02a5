// Groups of ranks: sums in their order, agreement, and ranks that end.
#include "engine/tensor/group.h"

#include <fcntl.h>

#include <atomic>
#include <cmath>
#include <fstream>

#include "engine/base/format.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/test_data.h"

using namespace oar;
using namespace oar_test;

namespace {

std::vector<float> wave(int rank, size_t n) {
  std::vector<float> out(n);
  for (size_t k = 0; k < n; ++k)
    out[k] = static_cast<float>(std::sin(1.3 * static_cast<double>(k) + rank) * std::pow(10, rank % 3));
  return out;
}

}  // namespace

TEST_CASE("buckets of ranks are added in their order, for any number of threads") {
  for (const int size : {1, 2, 3, 5}) {
    for (const size_t n : {size_t{1}, size_t{17}, size_t{10000}}) {
      std::vector<float> want(n, 0.5f);
      for (int round = 0; round < 3; ++round)
        for (int r = 0; r < size; ++r) {
          const auto add = wave(r + round, n);
          for (size_t k = 0; k < n; ++k) want[k] += add[k];
        }
      const auto got = by_ranks(size, kPatient, [&](const std::shared_ptr<Group>& g) {
        ThreadPoolOptions pool;
        pool.threads = 1 + g->rank() % 2;
        ThreadPool threads(pool);
        std::vector<float> sum(n, 0.5f);
        bool ok = g->reserve(n + 16).ok();
        for (int round = 0; round < 3 && ok; ++round) {
          const auto mine = wave(g->rank() + round, n);
          std::copy(mine.begin(), mine.end(), g->mine() + 16);
          ok = g->barrier().ok();
          g->add_buckets(16, sum, threads);
          ok = ok && g->barrier().ok();
        }
        if (!ok) sum.clear();
        return sum;
      });
      for (const auto& sum : got) CHECK(sum == want);
    }
  }
}

TEST_CASE("ranks agree, and learn the first one's numbers") {
  const auto got = by_ranks(4, kPatient, [&](const std::shared_ptr<Group>& g) {
    std::vector<double> out;
    for (const int who : {-1, 0, 3}) out.push_back(g->any(g->rank() == who).value() ? 1 : 0);
    double numbers[] = {g->rank() + 0.25, -g->rank() - 1.5};
    if (!g->from_first(numbers).ok()) return std::vector<double>();
    out.insert(out.end(), std::begin(numbers), std::end(numbers));
    return out;
  });
  for (const auto& v : got) CHECK(v == std::vector<double>{0, 1, 1, 0.25, -1.5});
}

TEST_CASE("a rank that all others wait for ends all, by name, and ranks that wait for several do not") {
  const auto most = std::chrono::milliseconds(200);
  auto said = by_ranks(3, kPatient, [&](const std::shared_ptr<Group>& g) {
    // All begin, however late a busy machine starts their threads.
    Status s = g->barrier(kPatient);
    // It lives and computes, and comes when it is too late.
    while (g->rank() == 1 && g->failed().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (s.ok()) s = g->barrier(most);
    return s.ok() ? std::string("ok")
                  : cat(s.message(), " ", g->failed_rank(), g->failed_silently() ? " silent" : "");
  });
  for (const std::string& s : said) {
    INFO(s);
    CHECK(s.starts_with("rank 1 (process "));
    CHECK(s.find(") is slow: all others have waited for it for 0 s 1 silent") != std::string::npos);
  }
  // Two that are late: nobody is the one. Rank 1 waits for rank 2 less than that.
  std::atomic<bool> late{false};
  said = by_ranks(3, kPatient, [&](const std::shared_ptr<Group>& g) {
    if (g->rank() == 2) std::this_thread::sleep_for(5 * most), late = true;
    while (g->rank() == 1 && !late) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Status s = g->barrier(10 * most);
    return s.ok() ? std::string("ok") : s.message();
  });
  for (const std::string& s : said) CHECK(s == "ok");
}

TEST_CASE("a rank that falls behind the pace of others ends all, by name, wherever they are") {
  using std::chrono::milliseconds;
  constexpr milliseconds kPatience{1500}, kPart{5};
  // Rank 1 takes `slow` times as long for a part.
  const auto run = [&](int slow, int parts) {
    return by_ranks(3, kPatience, [&](const std::shared_ptr<Group>& g) {
      Status s = g->barrier();
      for (int k = 0; k < parts && s.ok(); ++k) {
        std::this_thread::sleep_for(kPart * (g->rank() == 1 ? slow : 1));
        g->mark(kPart);
        s = g->failed();
      }
      if (s.ok()) s = g->barrier();
      return s.ok() ? std::string("ok") : cat(s.message(), g->failed_silently() ? ", silently" : "");
    });
  };
  for (const std::string& s : run(20, 100000)) {
    INFO(s);
    CHECK(s.starts_with("rank 1 (process "));
    CHECK(s.find(") is slow: for ") != std::string::npos);
    CHECK(s.ends_with(", silently"));
  }
  // Half as fast is another's right, though all wait for it at last.
  for (const std::string& s : run(2, 400)) CHECK(s == "ok");
}

TEST_CASE("a rank that ends, leaves, differs or never comes ends all, by name") {
  using Words = std::vector<std::string>;
  const auto say = [](const Status& s) { return s.ok() ? std::string("ok") : s.message(); };
  // It says why.
  Words said = by_ranks(3, kPatient, [&](const std::shared_ptr<Group>& g) {
    if (g->rank() == 1) g->fail("the disk is full");
    const std::string why = say(g->barrier());
    return cat(why, " ", g->failed_rank());
  });
  for (const std::string& s : said) CHECK(s == "rank 1 ended: the disk is full 1");
  // It goes.
  said = by_ranks(3, kPatient, [&](std::shared_ptr<Group> g) {
    if (g->rank() == 2) return g.reset(), std::string();
    return say(g->barrier());
  });
  CHECK(said[0] == "rank 2 has left");
  CHECK(said[1] == "rank 2 has left");
  // It has something else to add up.
  said = by_ranks(2, kPatient, [&](const std::shared_ptr<Group>& g) {
    return say(g->reserve(10 + static_cast<uint64_t>(g->rank())));
  });
  CHECK(said[0] == "rank 1 wants 11 floats, rank 0 10; all must do the same");
  // It never begins.
  const auto alone = Group::create(2, std::chrono::milliseconds(300)).value();
  CHECK(say(alone->barrier()).starts_with("rank 1 has not begun within"));
  CHECK(alone->barrier().code() == StatusCode::kUnavailable);
  // What is no group.
  CHECK_FALSE(Group::create(0).ok());
  CHECK_FALSE(Group::create(Group::kMostRanks + 1).ok());
  CHECK_FALSE(Group::join(fcntl(alone->fd(), F_DUPFD_CLOEXEC, 3), 2).ok());
  const std::string path = temp_dir() + "/no-group";
  std::ofstream(path) << std::string(100000, 'x');
  CHECK_FALSE(Group::join(::open(path.c_str(), O_RDWR), 0).ok());
}
