// Bytes of a budget: who holds them, what is refused, and that they go back with their owner.
#include <thread>

#include "engine/tensor/charge.h"
#include "engine/tensor/load_threads.h"
#include "engine/tensor/tensor.h"
#include "tests/support/catch.h"

using namespace oar;

namespace {
constexpr uint64_t kMiB = 1 << 20;
}

TEST_CASE("a reservation goes back with its owner, and a refusal changes nothing") {
  const auto budget = MemoryBudget::make(10 * kMiB);
  {
    auto a = budget->reserve(4 * kMiB, "alpha", "weights");
    REQUIRE_OK(a);
    auto b = budget->reserve(5 * kMiB, "beta");
    REQUIRE_OK(b);
    CHECK(budget->free() == kMiB);
    const Status refused = a->grow(2 * kMiB, "scratch");
    CHECK(refused.code() == StatusCode::kResourceExhausted);
    for (const char* word : {"10.0 MiB", "2.0 MiB", "alpha", "scratch", "beta 5.0 MiB", "raise the memory"}) {
      CHECK(refused.message().find(word) != std::string::npos);
    }
    CHECK(a->bytes() == 4 * kMiB);
    CHECK(budget->reserved() == 9 * kMiB);
    Reservation moved = std::move(*a);
    moved.shrink(kMiB);
    CHECK(budget->reserved() == 6 * kMiB);
    moved = std::move(*b);
    CHECK(budget->reserved() == 5 * kMiB);
    // A part for one buffer: first of what is held, then of the budget.
    auto part = moved.take(7 * kMiB);
    REQUIRE_OK(part);
    CHECK(moved.bytes() == 0);
    CHECK(budget->reserved() == 7 * kMiB);
    CHECK_FALSE(moved.take(4 * kMiB).ok());
  }
  CHECK(budget->reserved() == 0);
}

TEST_CASE("a large buffer takes its bytes out of the budget until its last holder lets go") {
  const auto budget = MemoryBudget::make(8 * kMiB);
  auto own = budget->reserve(2 * kMiB, "a model");
  REQUIRE_OK(own);
  Buffer kept;
  {
    const ChargeTo charge(*own);
    auto first = Buffer::allocate(2 * kMiB);
    REQUIRE_OK(first);
    CHECK(budget->reserved() == 2 * kMiB);  // foreseen
    kept = first->slice(0, 64);
    auto second = Tensor::zeros({3 * kMiB / 4}, Format::f32());
    REQUIRE_OK(second);
    CHECK(budget->reserved() == 5 * kMiB);
    CHECK(Buffer::allocate(4 * kMiB).status().code() == StatusCode::kResourceExhausted);
    REQUIRE_OK(Buffer::allocate(Buffer::kCharged - 1));
    CHECK(budget->reserved() == 5 * kMiB);
    const ChargeTo nobody(nullptr);
    REQUIRE_OK(Buffer::allocate(9 * kMiB));
  }
  CHECK(budget->reserved() == 2 * kMiB);  // a slice holds the whole
  own = Reservation();
  CHECK(budget->reserved() == 2 * kMiB);
  kept = {};
  CHECK(budget->reserved() == 0);
  REQUIRE_OK(Buffer::allocate(9 * kMiB));
}

TEST_CASE("threads that load for somebody charge to the same reservation") {
  const auto budget = MemoryBudget::make(64 * kMiB);
  auto own = budget->reserve(0, "a model");
  REQUIRE_OK(own);
  std::vector<Buffer> made(16);
  {
    const ChargeTo charge(*own);
    const std::vector<uint64_t> sizes(made.size(), kMiB);
    for_each_largest_first(4, sizes, [&](size_t i) { made[i] = std::move(Buffer::allocate(kMiB)).value(); });
  }
  CHECK(budget->reserved() == 16 * kMiB);
  made.clear();
  CHECK(budget->reserved() == 0);
}
