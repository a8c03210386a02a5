// Work of loading on several threads: each item once, whatever the number of threads; copies arrive whole.
#include "engine/tensor/load_threads.h"

#include <atomic>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <new>
#include <numeric>
#include <set>
#include <thread>

#include "engine/tensor/mapped_file.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace oar {
namespace {

// KB of the mapping around `address` that this process has in memory.
uint64_t resident_kb(const void* address) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::ifstream in("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    uintptr_t from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &from, &to) == 2) inside = from <= at && at < to;
    if (inside && line.rfind("Rss:", 0) == 0) return std::stoull(line.substr(4));
  }
  return 0;
}

TEST_CASE("load threads: every item once, for any number of threads and sizes") {
  for (const int threads : {0, 1, 2, 3, 16}) {
    for (const size_t count : {0, 1, 2, 5, 1000}) {
      std::vector<uint64_t> sizes(count);
      for (size_t i = 0; i < count; ++i) sizes[i] = i * 7919 % 97 << 20;
      std::vector<std::atomic<int>> calls(count);
      for_each_largest_first(threads, sizes, [&](size_t i) { ++calls[i]; });
      for (const auto& c : calls) REQUIRE(c == 1);
    }
  }
}

TEST_CASE("load threads: the caller alone does little work, in order") {
  const std::vector<uint64_t> sizes = {1, 1000, 20, 300};
  std::vector<size_t> order;
  const auto me = std::this_thread::get_id();
  for_each_largest_first(8, sizes, [&](size_t i) {
    REQUIRE(std::this_thread::get_id() == me);
    order.push_back(i);
  });
  CHECK(order == std::vector<size_t>{0, 1, 2, 3});
}

TEST_CASE("load threads: large work is divided, the largest items begun first") {
  const std::vector<uint64_t> sizes = {1 << 20, 8 << 20, 2 << 20, 4 << 20};
  std::mutex mutex;
  std::vector<size_t> begun;
  std::set<std::thread::id> seen;
  std::atomic<int> waiting{0};
  for_each_largest_first(2, sizes, [&](size_t i) {
    {
      const std::lock_guard lock(mutex);
      begun.push_back(i);
      seen.insert(std::this_thread::get_id());
    }
    // The first two items wait for each other: one thread alone would never come to the second.
    if (i == 1 || i == 3) {
      ++waiting;
      while (waiting < 2) std::this_thread::yield();
    }
  });
  REQUIRE(begun.size() == 4);
  CHECK(std::set<size_t>(begun.begin(), begun.begin() + 2) == std::set<size_t>{1, 3});
  CHECK(seen.size() == 2);
}

TEST_CASE("load threads: what an item throws reaches the caller") {
  for (const int threads : {1, 4}) {
    const std::vector<uint64_t> sizes(64, 1 << 20);
    std::atomic<int> calls{0};
    CHECK_THROWS_AS(for_each_largest_first(threads, sizes,
                                           [&](size_t i) {
                                             ++calls;
                                             if (i == 5) throw std::bad_alloc();
                                           }),
                    std::bad_alloc);
    CHECK(calls >= 1);
    CHECK(calls <= 64);
  }
}

TEST_CASE("load threads: deferred copies arrive whole, once") {
  std::vector<uint8_t> from(5'000'003), to(from.size() + 1, 0xee);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 2654435761u >> 24);
  for (const int threads : {1, 4}) {
    DeferredCopies copies;
    const Buffer all = Buffer::wrap_const(from.data(), from.size(), nullptr);
    copies.add(to.data(), all.slice(3, 3'000'000));
    copies.add(to.data() + 3'000'000, all.slice(3'000'003, 2'000'000));
    copies.add(to.data(), Buffer());
    CHECK(to[0] == 0xee);
    copies.run(threads);
    CHECK(std::equal(to.begin(), to.begin() + 5'000'000, from.begin() + 3));
    CHECK(to[5'000'000] == 0xee);
    std::fill(to.begin(), to.end(), uint8_t{0xee});
    copies.run(threads);  // nothing is left
    CHECK(to[0] == 0xee);
  }
}

TEST_CASE("load threads: what was copied from a mapped file is in memory once") {
  const std::string path = oar_test::temp_dir() + "/mapped.bin";
  const uint64_t size = 8 << 20;
  std::ofstream(path, std::ios::binary) << std::string(size, 'x');
  auto file = MappedFile::open(path, FileOptions());
  REQUIRE_OK(file);
  const Buffer bytes = file_slice(*file, 1, size - 1);
  std::vector<uint8_t> to(size - 1);
  for (const int threads : {1, 4}) {
    DeferredCopies copies;
    copies.add(to.data(), bytes);
    const uint64_t sum =
        std::accumulate(static_cast<const uint8_t*>(bytes.data()),
                        static_cast<const uint8_t*>(bytes.data()) + bytes.size(), uint64_t{0});
    CHECK(resident_kb(bytes.data()) >= size >> 10);
    copies.run(threads);
    CHECK(resident_kb(bytes.data()) <= 1024);
    CHECK(std::accumulate(to.begin(), to.end(), uint64_t{0}) == sum);
  }
}

}  // namespace
}  // namespace oar
